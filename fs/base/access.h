/* SPDX-License-Identifier: MIT */
/*
 * The kernel's check of a file's mode, made again: the kernel checks a caller's request before it
 * sends the request, and root may have changed the file's owner or mode since.
 */
#ifndef GCR_FS_BASE_ACCESS_H
#define GCR_FS_BASE_ACCESS_H

#include <sys/stat.h>
#include <sys/types.h>

/* The caller of a request, which has not been answered yet: so the caller's thread still waits. */
struct gcr_access {
	pid_t pid; /* of the thread; 0: the thread has no number in our pid namespace */
	uid_t uid; /* for access to files, in our user namespace */
	gid_t gid;
};

/*
 * May the caller use a file with these attributes, as access(2) says? @wanted is R_OK, W_OK, X_OK,
 * or several. The supplementary groups and the capabilities over the file (CAP_DAC_OVERRIDE and
 * CAP_DAC_READ_SEARCH, in a user namespace that has an id for the file's owner and group) are those
 * of the caller's thread. If these are unknown, only files of root's are denied. Never waits for
 * the caller; holds no lock. 0, -EACCES.
 */
int gcr_access_check(const struct gcr_access *caller, const struct stat *stat, int wanted);

#endif

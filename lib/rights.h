/* SPDX-License-Identifier: MIT */
/*
 * Opening files with the rights of another process: a thread of the daemon (root) takes over that
 * process's rights in file systems for a while. Only the calling thread is changed.
 */
#ifndef GCR_LIB_RIGHTS_H
#define GCR_LIB_RIGHTS_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/cleanup.h"

struct gcr_file_rights {
	uid_t uid; /* effective ids */
	gid_t gid;
	gid_t *groups;
	size_t groups_count;
};

/*
 * Reads the rights of @pid; the caller destroys *ret_rights. -ESRCH, -ENOMEM, -EIO: its status
 * lacks a line.
 */
int gcr_file_rights_of(pid_t pid, struct gcr_file_rights **ret_rights);
/* A copy, which the caller destroys. NULL: no memory. */
struct gcr_file_rights *gcr_file_rights_copy(const struct gcr_file_rights *rights);
void gcr_file_rights_destroy(struct gcr_file_rights *rights);
GCR_DEFINE_CLEANUP(struct gcr_file_rights *, gcr_file_rights_destroy);

/*
 * The calling thread opens files with @rights from now on, until gcr_file_rights_give_back() is
 * called with *ret_ours, its previous rights. -EPERM (we are not root), -ENOMEM; nothing is changed
 * then.
 */
int gcr_file_rights_take(const struct gcr_file_rights *rights, struct gcr_file_rights **ret_ours);
/* Restores the thread's rights, and destroys @ours. NULL: does nothing. */
void gcr_file_rights_give_back(struct gcr_file_rights *ours);
GCR_DEFINE_CLEANUP(struct gcr_file_rights *, gcr_file_rights_give_back);

/*
 * May a process with @rights read the file of @fd (O_PATH suffices), by the file's mode and owner?
 * The owner always may, since he can change the mode. 1, 0, -errno.
 */
int gcr_file_rights_read_fd(const struct gcr_file_rights *rights, int fd);
/* Can a process with @rights look up @path? 1; 0: permission is denied; -ENOENT, ... */
int gcr_file_rights_find(const struct gcr_file_rights *rights, const char *path);

/*
 * Opens a file for reading, with @flags of open(2), by @link, its link in /proc/self/fd. The
 * calling thread has taken @rights. If their user owns the file, its mode does not matter. Returns
 * a descriptor, which the caller closes, or -errno.
 */
int gcr_file_rights_open(const struct gcr_file_rights *rights, const char *link, int flags);

#endif

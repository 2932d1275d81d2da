/* SPDX-License-Identifier: MIT */
/*
 * What a process may read, asked and used by root on its behalf: the rights of a thread of ours in
 * file systems become the process's for a while. Only the calling thread is changed.
 */
#ifndef GCR_LIB_RIGHTS_H
#define GCR_LIB_RIGHTS_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/cleanup.h"

struct gcr_file_rights {
	uid_t uid; /* effective ones */
	gid_t gid;
	gid_t *groups;
	size_t groups_count;
};

/* Those of @pid, for the caller to destroy. -ESRCH, -ENOMEM, -EIO. */
int gcr_file_rights_of(pid_t pid, struct gcr_file_rights **ret_rights);
/* A copy, likewise. NULL: no memory. */
struct gcr_file_rights *gcr_file_rights_copy(const struct gcr_file_rights *rights);
void gcr_file_rights_destroy(struct gcr_file_rights *rights);
GCR_DEFINE_CLEANUP(struct gcr_file_rights *, gcr_file_rights_destroy);

/*
 * The calling thread opens files with @rights from now on, until gcr_file_rights_give_back() with
 * what *ret_ours has been set to. -EPERM (we are not root), -ENOMEM; nothing is changed then.
 */
int gcr_file_rights_take(const struct gcr_file_rights *rights, struct gcr_file_rights **ret_ours);
/* Destroys @ours, too. NULL: nothing was taken. */
void gcr_file_rights_give_back(struct gcr_file_rights *ours);
GCR_DEFINE_CLEANUP(struct gcr_file_rights *, gcr_file_rights_give_back);

/*
 * May who has @rights read the file that @fd leads to (O_PATH will do), by its mode and owner? Who
 * owns it can make it readable. 1, 0, -errno.
 */
int gcr_file_rights_read_fd(const struct gcr_file_rights *rights, int fd);
/* May he go the way to what is at @path? -ENOENT, ... */
int gcr_file_rights_find(const struct gcr_file_rights *rights, const char *path);

/*
 * Open a file for reading by a link to it in /proc/self/fd, in a thread that has taken @rights. Who
 * owns the file may read it whatever its mode is. A descriptor, or -errno.
 */
int gcr_file_rights_open(const struct gcr_file_rights *rights, const char *link, int flags);

#endif

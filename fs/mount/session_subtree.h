/* SPDX-License-Identifier: MIT */
/*
 * The FUSE operations on files below a `snapshot`, and on places (incoming snapshots) as a whole;
 * session.c has the others.
 */
#ifndef GCR_FS_MOUNT_SESSION_SUBTREE_H
#define GCR_FS_MOUNT_SESSION_SUBTREE_H

#include "fs/base/credentials.h"
#include "fs/mount/tree.h"

/*
 * Replies with @entry. If the kernel does not take the reply (an interrupted request), the lookup
 * counted for the entry is undone.
 */
void gcr_session_reply_entry(fuse_req_t request, const struct fuse_entry_param *entry);

/* These functions answer @request. Where no change is possible the answer is EPERM. */
void gcr_session_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode);
void gcr_session_unlink(fuse_req_t request, fuse_ino_t parent, const char *name);
void gcr_session_rmdir(fuse_req_t request, fuse_ino_t parent, const char *name);
void gcr_session_rename(fuse_req_t request, fuse_ino_t parent, const char *name,
			fuse_ino_t new_parent, const char *new_name, unsigned int flags);
/*
 * Sets attributes and size. @file: the open file by which the request came; NULL: the request came
 * by name.
 */
void gcr_session_set(fuse_req_t request, fuse_ino_t node, const struct stat *stat, int valid,
		     struct gcr_subtree_file *file);
void gcr_session_read(fuse_req_t request, struct gcr_subtree_file *file, size_t size,
		      uint64_t offset);
void gcr_session_write(fuse_req_t request, struct gcr_subtree_file *file, const char *bytes,
		       size_t size, uint64_t offset);

/* Carries out a verb for an incoming snapshot, through a descriptor that @opener opened. */
void gcr_session_write_place(fuse_req_t request, const struct gcr_credentials *opener,
			     struct gcr_place *place, const char *bytes, size_t size,
			     bool nonblocking);

/* These functions do not answer @request; they return 0 or -errno. */
int gcr_session_open(fuse_req_t request, fuse_ino_t node, int flags,
		     struct gcr_subtree_file **ret_file);
/* Applies O_TRUNC to a file that gcr_session_open() has opened with the other @flags. */
int gcr_session_truncate(fuse_req_t request, fuse_ino_t node, int flags,
			 struct gcr_subtree_file *file);
/*
 * May the caller read the file, or list the directory, as its owner and mode are now? The kernel
 * has permitted that before the request waited for its turn. 0, -EACCES, or an error of
 * gcr_tree_getattr().
 */
int gcr_session_may_read(fuse_req_t request, fuse_ino_t node);
int gcr_session_create_file(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
			    int flags, struct fuse_entry_param *ret_entry,
			    struct gcr_subtree_file **ret_file);

#endif

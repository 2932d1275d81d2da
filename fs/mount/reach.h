/* SPDX-License-Identifier: MIT */
/* Whether what a node is about is there for a caller who has not looked it up. */
#ifndef GCR_FS_MOUNT_REACH_H
#define GCR_FS_MOUNT_REACH_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/daemon.h"

/*
 * The kernel lets a caller go on from an inode that another has looked up: by a descriptor that was
 * handed on, or by a file handle. In a pid namespace of its own it may go on only where a lookup
 * would have led it, and root there is told by that alone. 0, -ENOENT, -ESRCH, -ESTALE.
 */
int gcr_reach_check(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node);

#endif

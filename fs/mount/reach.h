/* SPDX-License-Identifier: MIT */
/* Whether a caller may use a node that another process has looked up. */
#ifndef GCR_FS_MOUNT_REACH_H
#define GCR_FS_MOUNT_REACH_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/daemon.h"

/*
 * May @caller use @node? The kernel lets a caller use an inode that another process has looked up:
 * by a descriptor that was passed on, or by a file handle. A caller in another pid namespace may
 * use only the nodes that its own lookup would find; for root of a container this is the only
 * check. A caller with the user id of a process has its snapshot and its texts only if the kernel
 * would let the caller look into the process (fs/base/tracing.h). Looks at both, within the user's
 * share, on kernels before 6.11 only. 0, -ENOENT, -ESRCH; -ESTALE also of a snapshot whose process
 * is not listed; -EACCES, -EBUSY, -ETIMEDOUT, with a message at the root.
 */
int gcr_reach_check(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node);
/*
 * The same for a request that has no turn (fs/mount/session_turn.h) since the kernel keeps a lock
 * of the whole mount for it: looks count as look-ups do (fs/base/turns.h).
 */
int gcr_reach_check_locked(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			   fuse_ino_t node);

#endif

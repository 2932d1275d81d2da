/* SPDX-License-Identifier: MIT */
/* FUSE operations under the eye of fs/base/watchdog.h. */
#ifndef GCR_FS_MOUNT_SESSION_WATCH_H
#define GCR_FS_MOUNT_SESSION_WATCH_H

#include "fs/mount/tree.h"

/*
 * The same operations as @operations, which stays the caller's, with the watchdog told when each
 * begins and ends. There is one set of them.
 */
const struct fuse_lowlevel_ops *gcr_session_watched(const struct fuse_lowlevel_ops *operations);

#endif

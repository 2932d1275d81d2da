/* SPDX-License-Identifier: MIT */
/* FUSE operations that report their begin and end to the watchdog (fs/base/watchdog.h). */
#ifndef GCR_FS_MOUNT_SESSION_WATCH_H
#define GCR_FS_MOUNT_SESSION_WATCH_H

#include "fs/mount/tree.h"

/*
 * Returns the operations of @operations with these reports. @operations stays the caller's; there
 * is one static result.
 */
const struct fuse_lowlevel_ops *gcr_session_watched(const struct fuse_lowlevel_ops *operations);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Protection of the directory beneath the mount. After a daemon is killed its mount may be removed
 * before the next daemon starts. A verb written to `ctl` in the bare directory would then create a
 * plain file, have no effect, and block the next start. So the directory is not writable while a
 * daemon runs or is expected: the directory is immutable (see chattr(1)) for root's daemon, where
 * the file system supports that, else its mode is 0. A clean shutdown restores the former
 * attributes, which are kept in the file "mountpoint" of the runtime directory.
 */
#ifndef GCR_FS_BASE_MOUNTPOINT_H
#define GCR_FS_BASE_MOUNTPOINT_H

#include <stdbool.h>
#include <sys/types.h>

#include "fs/daemon.h"

/*
 * Makes the mountpoint @path readable again if an ordinary user's daemon of this runtime directory
 * has left it protected: the check of the options looks at it. A failure is logged.
 */
void gcr_mountpoint_reopen(const char *runtime_directory, const char *path);

/* Has a daemon of this runtime directory left processes frozen, or in a verb? */
bool gcr_mountpoint_is_awaited(const char *runtime_directory);

/* Protects the directory, before mounting. Failures are logged and otherwise ignored. */
void gcr_mountpoint_protect(struct gcr_daemon *daemon);
/*
 * Completes the protection after mounting: for an ordinary user, fusermount3 needs a writable
 * directory.
 */
void gcr_mountpoint_mounted(void);
/*
 * The mount's st_dev; 0: not known. Does not query the filesystem: if the daemon were killed, a
 * thread waiting for the daemon's own answer would never end, and neither would the mount.
 */
dev_t gcr_mountpoint_device(const struct gcr_daemon *daemon);
/* Restores the directory, after unmounting or a failed mount. */
void gcr_mountpoint_release(struct gcr_daemon *daemon);

#endif

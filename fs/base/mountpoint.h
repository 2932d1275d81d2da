/* SPDX-License-Identifier: MIT */
/*
 * The directory beneath the mount. When a daemon is killed its mount can be taken away before the
 * next one is there; a verb that is written to a `ctl` of the bare directory then would make a
 * plain file, do nothing, and be in the way of the next start. So the directory cannot be written
 * to while a daemon is to be there: it is immutable (see chattr(1)) for root's daemon, where the
 * file system knows that, else its mode is 0. At a clean end it is what it was; what that is stands
 * in the runtime directory meanwhile, in the file "mountpoint".
 */
#ifndef GCR_FS_BASE_MOUNTPOINT_H
#define GCR_FS_BASE_MOUNTPOINT_H

#include <stdbool.h>
#include <sys/types.h>

#include "fs/daemon.h"

/*
 * For the check of the options: a mountpoint that a daemon of this runtime directory has left
 * closed can be looked into again.
 */
void gcr_mountpoint_reopen(const char *runtime_directory, const char *path);

/* Has a daemon of this runtime directory left processes frozen, or in a verb? */
bool gcr_mountpoint_is_awaited(const char *runtime_directory);

/* Before mounting. What cannot be done is told in the log, and harms nothing. */
void gcr_mountpoint_protect(struct gcr_daemon *daemon);
/* When it is mounted: what an ordinary user's mount needs a directory open for. */
void gcr_mountpoint_mounted(void);
/*
 * The mount's st_dev; 0: not known. The filesystem is not asked: a thread of the daemon's that
 * waits for an answer of the daemon's own would never end if the daemon is killed, and nor would
 * the mount.
 */
dev_t gcr_mountpoint_device(const struct gcr_daemon *daemon);
/* When it is no longer mounted, or could not be. */
void gcr_mountpoint_release(struct gcr_daemon *daemon);

#endif

/* SPDX-License-Identifier: MIT */
/* Which gpucrfs mount a tool uses if none is named. */
#ifndef GCR_LIB_MOUNT_H
#define GCR_LIB_MOUNT_H

/*
 * The mount point, for the caller to free: of the first mount of type fuse.gpucrfs that this user
 * has made, else of the first one that root has made. Any user can give a mount that type, so those
 * of other users are passed over. -ENOENT: there is none; -errno of reading /proc/self/mountinfo.
 */
int gcr_mount_search(char **ret_mount);

#endif

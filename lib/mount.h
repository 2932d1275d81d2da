/* SPDX-License-Identifier: MIT */
/* Finding the gpucrfs mount that a tool uses if none is named. */
#ifndef GCR_LIB_MOUNT_H
#define GCR_LIB_MOUNT_H

/*
 * Returns a mount point, which the caller frees: of the first mount of type fuse.gpucrfs that this
 * user has made, else of the first one that root has made. Any user can give a mount that type, so
 * mounts of other users are ignored. -ENOENT: there is none; -errno of reading
 * /proc/self/mountinfo.
 */
int gcr_mount_search(char **ret_mount);

#endif

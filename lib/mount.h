/* SPDX-License-Identifier: MIT */
/* Finding the gpucrfs mount that a tool uses if none is named, or the one that GPUCR_MOUNT names.
 */
#ifndef GCR_LIB_MOUNT_H
#define GCR_LIB_MOUNT_H

#include <sys/types.h>

#include "lib/error.h"

/*
 * Returns a mount point, which the caller frees: of the first mount of type fuse.gpucrfs that this
 * user has made, else of the first one that root has made. Any user can give a mount that type, so
 * mounts of other users are ignored. -ENOENT: there is none; -errno of reading
 * /proc/self/mountinfo.
 */
int gcr_mount_search(char **ret_mount);

/*
 * Resolves the mount point @given, which GPUCR_MOUNT in the environment contains, and which the
 * caller frees. The environment can be that of another user (su, sudo -E), who could have any file
 * there: the mount has to be a gpucrfs of root's or of this user's, or a directory that
 * gcr_trusted_path() accepts and that is below no FUSE mount of another user's. 0; -EPERM or other
 * -errno, with a message.
 */
int gcr_mount_given(const char *given, char **ret_mount, struct gcr_error *error);

/*
 * Is @path, which is without links, on a FUSE mount of a user who is neither root nor @user? 1: of
 * *ret_maker's; 0; -errno of reading /proc/self/mountinfo.
 */
int gcr_mount_find_maker(const char *path, uid_t user, unsigned long *ret_maker);

#endif

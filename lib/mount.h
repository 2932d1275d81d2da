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
 * Resolves @given, the value of GPUCR_MOUNT in the environment; the caller frees *ret_mount, a path
 * without links. The environment can be that of another user (su, sudo -E), so @given has to lead
 * to a gpucrfs that root or this user has mounted, or to a directory that gcr_trusted_path()
 * accepts. Errors, with a message: -EPERM another user can change @given, or it is on a FUSE mount
 * of another user's; errors of realpath(3), gcr_file_read() and gcr_trusted_path().
 */
int gcr_mount_given(const char *given, char **ret_mount, struct gcr_error *error);

/*
 * Is @path, which is without links, on a FUSE mount of a user who is neither root nor @user? 1:
 * *ret_maker is that user; 0: no; -errno of reading /proc/self/mountinfo.
 */
int gcr_mount_find_maker(const char *path, uid_t user, unsigned long *ret_maker);

#endif

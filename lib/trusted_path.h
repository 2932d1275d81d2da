/* SPDX-License-Identifier: MIT */
/* Whether another user can change what a path from the environment leads to. */
#ifndef GCR_LIB_TRUSTED_PATH_H
#define GCR_LIB_TRUSTED_PATH_H

#include "lib/error.h"

/*
 * Resolves @path, the value of the environment variable @name, which another user may have set (su,
 * sudo -E), and checks that only trusted users can change where @path leads. Each step of the
 * resolved path must belong to root, to this user, or to an owner of a step of the path of this
 * program itself. No step may be writable for all, but a directory with the sticky bit may be above
 * a step that exists; a group's rights do not count. No step may be on a FUSE mount of another
 * user. The end of @path may be missing: it is appended unresolved.
 *
 * *ret_path is the path without links. The caller frees it, and has to use it instead of @path.
 * Errors, with a message: -EPERM another user can change the path; -ENOENT the missing end has a
 * step ".."; other -errno.
 */
int gcr_trusted_path(const char *name, const char *path, char **ret_path, struct gcr_error *error);

/*
 * As gcr_trusted_path(), but if @path leads to a directory, all users may add files to that one, as
 * to /tmp (with the sticky bit, so that they cannot rename or remove the files of others).
 */
int gcr_trusted_directory(const char *name, const char *path, char **ret_path,
			  struct gcr_error *error);

/*
 * As gcr_trusted_path(), for @paths, a list of directories separated by ':'; if a file of the whole
 * name exists, @paths is that one. Leaves empty parts out. *ret_paths is a list of paths that begin
 * with '/'; the caller frees it. Also -EINVAL: the list is empty, or a resolved path has ':', ';'
 * or '$', which have a meaning in lists and in LD_LIBRARY_PATH.
 */
int gcr_trusted_paths(const char *name, const char *paths, char **ret_paths,
		      struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/* Whether another user can change what a path from the environment leads to. */
#ifndef GCR_LIB_TRUSTED_PATH_H
#define GCR_LIB_TRUSTED_PATH_H

#include "lib/error.h"

/*
 * Resolves @path, which the variable @name of the environment contains: the environment can be
 * that of another user (su, sudo -E). The path and each directory above it have to belong to root,
 * to this user, or to an owner on the way to this program itself, and others must not be able to
 * write to them, nor may they be on a FUSE mount of another user. What is missing at the end of the
 * path, where nobody else may be able to make it, is appended as it is. Returns the path
 * without links, which the caller frees, and has to use instead of @path: 0; -EPERM: another user
 * can change it; -ENOENT: what is missing has a step ".."; other -errno. Errors come with a
 * message.
 */
int gcr_trusted_path(const char *name, const char *path, char **ret_path, struct gcr_error *error);

/*
 * The same of a directory to which all users may add files, as to /tmp, if it is there: nobody else
 * can rename or remove it, or what belongs to root or to this user in it.
 */
int gcr_trusted_directory(const char *name, const char *path, char **ret_path,
			  struct gcr_error *error);

/*
 * gcr_trusted_path() of a list of directories, separated by ':', unless there is one of the whole
 * name. Empty ones are left out. Returns a list, in which each part begins with '/'. -EINVAL: a
 * directory without links has ':', ';' or '$' in its path, and would be several or others in the
 * list, or in LD_LIBRARY_PATH.
 */
int gcr_trusted_paths(const char *name, const char *paths, char **ret_paths,
		      struct gcr_error *error);

#endif

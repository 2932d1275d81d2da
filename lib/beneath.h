/* SPDX-License-Identifier: MIT */
/*
 * Files in a directory that any user may be able to change: a file is opened by a single name,
 * without following a symbolic link and without waiting for a peer (FIFO, device), and is replaced
 * as a whole.
 */
#ifndef GCR_BENEATH_H
#define GCR_BENEATH_H

#include <dirent.h>
#include <stddef.h>
#include <sys/uio.h>

#include "lib/error.h"

/*
 * Opens the file or directory @name in @directory_fd with @flags (which must not create it).
 * Returns a close-on-exec descriptor. -ELOOP: @name is a symbolic link; else -errno.
 */
int gcr_beneath_open(int directory_fd, const char *name, int flags);

/*
 * As gcr_beneath_open(), for a path of several names, none of them "." or "..". The path may not
 * leave the file system of @directory_fd; "." is @directory_fd itself.
 */
int gcr_beneath_open_path(int directory_fd, const char *path, int flags);

/*
 * Opens the directory @name in @directory_fd for reading its names; "." is @directory_fd itself,
 * with a position of its own. The caller closes *ret_directory. Errors as those of
 * gcr_beneath_open(), and -ENOMEM.
 */
int gcr_beneath_list(int directory_fd, const char *name, DIR **ret_directory);

/*
 * As gcr_beneath_list(), for the directory of @fd, which *ret_directory owns from then on; on
 * failure @fd is closed. -errno of fdopendir(3).
 */
int gcr_beneath_list_fd(int fd, DIR **ret_directory);

/*
 * As gcr_beneath_open(), for reading. -EPROTO: @name is not a regular file. Errors come with a
 * message.
 */
int gcr_beneath_open_file(int directory_fd, const char *name, struct gcr_error *error);

/*
 * Reads a whole regular file of at most @bytes_max bytes; the caller frees *ret_bytes. Errors, with
 * a message that does not contain the name: -ENOENT, -ELOOP, -EPROTO (not a regular file), -EFBIG,
 * -ENOMEM, or the error of reading.
 */
int gcr_beneath_read(int directory_fd, const char *name, size_t bytes_max, void **ret_bytes,
		     size_t *ret_size, struct gcr_error *error);

/*
 * Replaces the contents of @name by @parts: writes a temporary file (".NAME.new", mode 0600) and
 * renames it, so that no reader sees an incomplete file. On failure the old contents stay. Errors,
 * with a message: -EINVAL @name is not a single name, and the errors of writing.
 */
int gcr_beneath_replace(int directory_fd, const char *name, const struct iovec *parts, size_t count,
			struct gcr_error *error);

#endif

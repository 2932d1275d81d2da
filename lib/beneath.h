/* SPDX-License-Identifier: MIT */
/*
 * Files in a directory that may be anybody's: opened by one name, never through a symbolic link,
 * never waiting for a peer, and replaced whole.
 */
#ifndef GCR_BENEATH_H
#define GCR_BENEATH_H

#include <stddef.h>
#include <sys/uio.h>

#include "lib/error.h"

/*
 * A descriptor of the file or directory @name in @directory_fd, close-on-exec, opened with @flags
 * (none of which makes it). -ELOOP: it is a symbolic link; else -errno.
 */
int gcr_beneath_open(int directory_fd, const char *name, int flags);

/*
 * The same for a path of several names, none of them "." or "..", and without leaving the file
 * system of @directory_fd; "." is the directory itself.
 */
int gcr_beneath_open_path(int directory_fd, const char *path, int flags);

/* The same for reading, and it is a regular file: else -EPROTO. With words. */
int gcr_beneath_open_file(int directory_fd, const char *name, struct gcr_error *error);

/*
 * The whole of a regular file of at most @bytes_max, for the caller to free. Errors, with words
 * (without the name): -ENOENT, -ELOOP and -EPROTO (it is something else), -EFBIG, -ENOMEM, or what
 * reading gives.
 */
int gcr_beneath_read(int directory_fd, const char *name, size_t bytes_max, void **ret_bytes,
		     size_t *ret_size, struct gcr_error *error);

/*
 * Make @name what @parts are: a temporary file (".NAME.new", mode 0600) first, then a rename, so
 * that nobody sees half of it. Errors, with words.
 */
int gcr_beneath_replace(int directory_fd, const char *name, const struct iovec *parts, size_t count,
			struct gcr_error *error);

#endif

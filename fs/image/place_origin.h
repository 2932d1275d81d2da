/* SPDX-License-Identifier: MIT */
/*
 * The file `origin` in a place's directory: where the place comes from, and how far a restore of it
 * is, for a next daemon. One line; of a restore a second one. No process but a daemon sees the
 * file, and a machine may have stopped while it was written: what is not just as we write it says
 * nothing.
 */
#ifndef GCR_FS_IMAGE_PLACE_ORIGIN_H
#define GCR_FS_IMAGE_PLACE_ORIGIN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/image/place.h"

#define GCR_PLACE_ORIGIN_NAME	   "origin"
#define GCR_PLACE_ORIGIN_BYTES_MAX (PATH_MAX + 256)

/* What the file says: pid, start_ticks, is_ending, is_staying, and of a restore what is made. */
struct gcr_place_origin_file {
	struct gcr_place_origin origin; /* uid and gid are the directory's, and 0 here */
	struct gcr_place_made made;	/* progress GCR_PLACE_IDLE: no restore is under way */
};

/* @text ends with a NUL. -EIO: it is not what we write; -ENOMEM. made.cgroup is to be freed. */
int gcr_place_origin_parse(const char *text, size_t bytes, struct gcr_place_origin_file *ret_file);

/* The text for the caller to free; @made NULL: no restore is under way. -ENOMEM. */
int gcr_place_origin_print(const struct gcr_place_origin *origin, const struct gcr_place_made *made,
			   char **ret_text, size_t *ret_bytes);

/* Of the place whose directory is @fd. With words. */
int gcr_place_origin_write(int fd, const struct gcr_place_origin *origin,
			   const struct gcr_place_made *made, struct gcr_error *error);
/* -ENOENT; -EIO: it is not what we write; -ENOMEM, with words. made.cgroup is to be freed. */
int gcr_place_origin_read(int fd, struct gcr_place_origin_file *ret_file, struct gcr_error *error);

/*
 * What @fd, the directory of a place that was not published by an earlier daemon, says of whose it
 * is. -EIO: nothing.
 */
int gcr_place_origin_read_begun(int fd, pid_t *ret_pid, uint64_t *ret_start_ticks);

#endif

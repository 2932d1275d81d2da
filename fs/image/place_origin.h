/* SPDX-License-Identifier: MIT */
/*
 * The file `origin` in a place's directory: where the place comes from, and how far a restore of it
 * has come, for a next daemon. One line; during a restore a second one. Only daemons access the
 * file, but the machine may have stopped while it was written: a text that does not match the
 * format exactly is rejected as a whole.
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

/* Contents of the file: pid, start_ticks, is_ending, is_staying; during a restore also `made`. */
struct gcr_place_origin_file {
	struct gcr_place_origin origin; /* uid and gid are those of the directory, and 0 here */
	struct gcr_place_made made;	/* progress GCR_PLACE_IDLE: no restore is under way */
};

/*
 * Parses @text, which ends with a NUL. -EIO: not the format of gcr_place_origin_print(); -ENOMEM.
 * The caller frees made.cgroup.
 */
int gcr_place_origin_parse(const char *text, size_t bytes, struct gcr_place_origin_file *ret_file);

/*
 * Makes the file's text, of *ret_bytes without its NUL; the caller frees *ret_text. @made NULL: no
 * restore is under way. -ENOMEM.
 */
int gcr_place_origin_print(const struct gcr_place_origin *origin, const struct gcr_place_made *made,
			   char **ret_text, size_t *ret_bytes);

/* Replaces the file of the place whose directory is @fd. Errors set @error. */
int gcr_place_origin_write(int fd, const struct gcr_place_origin *origin,
			   const struct gcr_place_made *made, struct gcr_error *error);
/*
 * Reads the file of the place whose directory is @fd. -ENOENT; -EIO: not the expected format;
 * -ENOMEM; errors set @error. The caller frees made.cgroup.
 */
int gcr_place_origin_read(int fd, struct gcr_place_origin_file *ret_file, struct gcr_error *error);

/*
 * Reads for which process an earlier daemon began the place whose directory is @fd, and which is
 * not published. -EIO: not known.
 */
int gcr_place_origin_read_begun(int fd, pid_t *ret_pid, uint64_t *ret_start_ticks);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * CRIU's images of processes: two magic numbers, then for each process, or once, a length (32 bits,
 * the host's order) and a message of CRIU (its directory images/) in the encoding of protocol
 * buffers. The images are untrusted: they may have been copied from elsewhere.
 */
#ifndef GCR_CRIU_GLUE_IMAGE_H
#define GCR_CRIU_GLUE_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"

/* Kinds of images: criu/include/magic.h. */
#define GCR_IMAGE_PSTREE 0x50273030u
#define GCR_IMAGE_CORE	 0x55053847u

/* Checks the magic numbers; *ret_at is the position after them. -EIO. */
int gcr_image_begin(const uint8_t *image, size_t bytes, uint32_t kind, const uint8_t **ret_at);

/* Moves *at behind the next message of an image, which begins at *ret_message. -EIO. */
int gcr_image_next(const uint8_t **at, const uint8_t *end, const uint8_t **ret_message);

/*
 * Reads a whole image of the directory @images_fd; the caller frees *ret_bytes. Errors, with a
 * message: -EIO, -ENOMEM.
 */
int gcr_image_read(int images_fd, const char *name, void **ret_bytes, size_t *ret_size,
		   struct gcr_error *error);

/* Sets the message for an image that was not understood: -ENOMEM, or else -EIO. */
int gcr_image_fail(struct gcr_error *error, int result, const char *name);

#endif

/* SPDX-License-Identifier: MIT */
/* The contents of a program's memory in CRIU's images. */
#ifndef GCR_CRIU_GLUE_IMAGE_MEMORY_H
#define GCR_CRIU_GLUE_IMAGE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Reads @size bytes of the memory of the process @pid from the address @start, by its images in the
 * directory @images_fd. *ret_found: how many of them are in the images; the others, of pages that
 * are zero, or of files that are mapped, are set to zero. Errors, with a message: -EIO an image
 * cannot be read, or is invalid; -ENOMEM.
 */
int gcr_image_read_memory(int images_fd, pid_t pid, uint64_t start, void *bytes, size_t size,
			  size_t *ret_found, struct gcr_error *error);

#endif

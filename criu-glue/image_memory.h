/* SPDX-License-Identifier: MIT */
/* The contents of a program's memory in CRIU's images. */
#ifndef GCR_CRIU_GLUE_IMAGE_MEMORY_H
#define GCR_CRIU_GLUE_IMAGE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/* The memory of one process. */
struct gcr_image_memory {
	char name[32]; /* of the image, for messages */
	void *image;   /* which pages there are: from ranges to end */
	const uint8_t *ranges, *end;
	int pages_fd; /* their contents */
};

/*
 * Opens the memory of the process @pid, by its images in the directory @images_fd;
 * gcr_image_close_memory() frees it. Errors, with a message: -EIO an image cannot be read, or is
 * invalid; -ENOMEM.
 */
int gcr_image_open_memory(int images_fd, pid_t pid, bool is_for_writing,
			  struct gcr_image_memory *ret_memory, struct gcr_error *error);
/* Also for memory that was not opened, with pages_fd -1. */
void gcr_image_close_memory(struct gcr_image_memory *memory);

/*
 * Reads @size bytes from the address @start. *ret_found: how many of them are in the images; the
 * others, of pages that are zero, or of files that are mapped, are set to zero. -EIO, with a
 * message: an image cannot be read, or is invalid.
 */
int gcr_image_read_memory(const struct gcr_image_memory *image, uint64_t start, void *bytes,
			  size_t size, size_t *ret_found, struct gcr_error *error);

/* Sets the bytes from @start on to zero, as far as they are in the images. -EIO, with a message. */
int gcr_image_clear_memory(const struct gcr_image_memory *image, uint64_t start, size_t size,
			   struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The vdso of a program in CRIU's images: code that the kernel maps into every process. A program
 * can change its own. CRIU reads it as root, in a process that it makes, and writes where it says.
 */
#ifndef GCR_CRIU_GLUE_IMAGE_VDSO_H
#define GCR_CRIU_GLUE_IMAGE_VDSO_H

#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Is the memory from @start to @end of the process @pid, by its images in the directory @images_fd,
 * the vdso of this kernel, byte for byte? 1, 0. Errors, with a message: -EIO an image cannot be
 * read, or is invalid; -ENOMEM.
 */
int gcr_image_is_vdso(int images_fd, pid_t pid, uint64_t start, uint64_t end,
		      struct gcr_error *error);

#endif

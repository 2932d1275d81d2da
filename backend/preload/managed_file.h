/* SPDX-License-Identifier: MIT */
/* Managed memory to and from files, by the driver; @bounce has room for @bytes. */
#ifndef GCR_PRELOAD_MANAGED_FILE_H
#define GCR_PRELOAD_MANAGED_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/* What is zero leaves a hole in the file where there is one. -EIO, -ENOSPC and so on, with words.
 */
int gcr_managed_write(char *bounce, CUdeviceptr from, size_t bytes, int fd, off_t offset,
		      struct gcr_error *error);

/* To memory that is zero: a hole is not read. */
int gcr_managed_read(char *bounce, CUdeviceptr to, size_t bytes, int fd, off_t offset,
		     struct gcr_error *error);

/* All of it, without the driver. A file that is too short is -EIO. */
int gcr_managed_file_write(int fd, const char *memory, size_t bytes, off_t offset,
			   struct gcr_error *error);
int gcr_managed_file_read(int fd, char *memory, size_t bytes, off_t offset,
			  struct gcr_error *error);

/* What @from has of data in the first @bytes, into @to, whose other bytes stay. The same errors. */
int gcr_managed_file_copy(int from, int to, size_t bytes, struct gcr_error *error);

#endif

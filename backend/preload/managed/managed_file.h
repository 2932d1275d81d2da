/* SPDX-License-Identifier: MIT */
/* Copies managed memory to and from files by the driver. @bounce is a buffer of at least @bytes. */
#ifndef GCR_PRELOAD_MANAGED_FILE_H
#define GCR_PRELOAD_MANAGED_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/*
 * Writes memory to the file. Blocks of zeros are not written where the file has a hole. -EIO,
 * -ENOSPC and so on, with a message.
 */
int gcr_managed_write(char *bounce, CUdeviceptr from, size_t bytes, int fd, off_t offset,
		      struct gcr_error *error);

/* A hash of GCR_MANAGED_PAGE_BYTES bytes, never 0. */
#define GCR_MANAGED_PAGE_BYTES 4096ull
uint64_t gcr_managed_page_hash(const char *page);

/*
 * Does the file have the pages with these hashes, for @count pages from its start? A page whose
 * hash is 0 may have any bytes. -EIO: the file lacks one of the pages, or cannot be read.
 */
int gcr_managed_file_check(int fd, const uint64_t *hashes, size_t count);

/* Reads the file into memory that is zero: holes are skipped. Errors as of gcr_managed_write(). */
int gcr_managed_read(char *bounce, CUdeviceptr to, size_t bytes, int fd, off_t offset,
		     struct gcr_error *error);

/* Write or read all @bytes without the driver. A file that is too short is -EIO. */
int gcr_managed_file_write(int fd, const char *memory, size_t bytes, off_t offset,
			   struct gcr_error *error);
int gcr_managed_file_read(int fd, char *memory, size_t bytes, off_t offset,
			  struct gcr_error *error);

/*
 * Copies the data (not the holes) of the first @bytes of @from to @to, whose other bytes stay.
 * Errors as of gcr_managed_file_write().
 */
int gcr_managed_file_copy(int from, int to, size_t bytes, struct gcr_error *error);

#endif

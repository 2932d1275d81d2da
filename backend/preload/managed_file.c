/* SPDX-License-Identifier: MIT */
/*
 * Managed memory and its files. Copies go through memory of ours: whatever the file's state, that
 * is no SIGBUS.
 */
#include "backend/preload/managed_file.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "backend/preload/driver_error.h"
#include "backend/preload/entry_points.h"

static bool is_zero(const char *memory, size_t bytes)
{
	return !memory[0] && memcmp(memory, memory + 1, bytes - 1) == 0;
}

/* Is there nothing of the file in the range? */
static bool is_hole(int fd, off_t offset, size_t bytes)
{
	off_t data = lseek(fd, offset, SEEK_DATA);

	return data < 0 ? errno == ENXIO : data >= offset + (off_t)bytes;
}

int gcr_managed_file_write(int fd, const char *memory, size_t bytes, off_t offset,
			   struct gcr_error *error)
{
	while (bytes > 0) {
		ssize_t length = pwrite(fd, memory, bytes, offset);

		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return gcr_error_set(error, errno,
					     "writing managed memory to the store: %s",
					     strerror(errno));
		memory += length;
		offset += length;
		bytes -= (size_t)length;
	}
	return 0;
}

int gcr_managed_file_read(int fd, char *memory, size_t bytes, off_t offset, struct gcr_error *error)
{
	while (bytes > 0) {
		ssize_t length = pread(fd, memory, bytes, offset);

		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return gcr_error_set(error, EIO,
					     "reading managed memory from the store: %s",
					     length ? strerror(errno) : "it is too short");
		memory += length;
		offset += length;
		bytes -= (size_t)length;
	}
	return 0;
}

int gcr_managed_write(char *bounce, CUdeviceptr from, size_t bytes, int fd, off_t offset,
		      struct gcr_error *error)
{
	CUresult result = GCR_REAL(cuMemcpyDtoH_v2)(bounce, from, bytes);

	if (result)
		return gcr_driver_failed(error, "cuMemcpyDtoH", result);
	if (is_zero(bounce, bytes) && is_hole(fd, offset, bytes))
		return 0;
	return gcr_managed_file_write(fd, bounce, bytes, offset, error);
}

int gcr_managed_read(char *bounce, CUdeviceptr to, size_t bytes, int fd, off_t offset,
		     struct gcr_error *error)
{
	CUresult result;
	int r;

	if (is_hole(fd, offset, bytes))
		return 0;
	r = gcr_managed_file_read(fd, bounce, bytes, offset, error);
	if (r < 0)
		return r;
	result = GCR_REAL(cuMemcpyHtoD_v2)(to, bounce, bytes);
	return result ? gcr_driver_failed(error, "cuMemcpyHtoD", result) : 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * Managed memory and its files. Copies go through a buffer, not through a mapping of the file, so
 * no state of the file causes SIGBUS.
 */
#include "backend/preload/managed/managed_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "lib/cleanup.h"

#define COPY_BYTES (1ull << 20)

static bool is_zero(const char *memory, size_t bytes)
{
	return !memory[0] && memcmp(memory, memory + 1, bytes - 1) == 0;
}

/*
 * Is the range a hole of the file? A range past the end is no hole: the file may have been
 * truncated.
 */
static bool is_hole(int fd, off_t offset, size_t bytes)
{
	off_t data = lseek(fd, offset, SEEK_DATA);
	struct stat status;

	if (data >= 0)
		return data >= offset + (off_t)bytes;
	return errno == ENXIO && fstat(fd, &status) == 0 && status.st_size >= offset + (off_t)bytes;
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

uint64_t gcr_managed_page_hash(const char *page)
{
	uint64_t hash = 0, word;

	for (size_t at = 0; at < GCR_MANAGED_PAGE_BYTES; at += sizeof(word)) {
		memcpy(&word, page + at, sizeof(word));
		hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 32;
	}
	return hash ? hash : 1;
}

int gcr_managed_file_check(int fd, const uint64_t *hashes, size_t count)
{
	char page[GCR_MANAGED_PAGE_BYTES];
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		if (!hashes[i])
			continue;
		r = gcr_managed_file_read(fd, page, sizeof(page), (off_t)(i * sizeof(page)), NULL);
		if (r == 0 && gcr_managed_page_hash(page) != hashes[i])
			r = -EIO;
	}
	return r;
}

int gcr_managed_file_copy(int from, int to, size_t bytes, struct gcr_error *error)
{
	_cleanup_free_ char *buffer = malloc(COPY_BYTES);
	struct stat status;
	off_t end = (off_t)bytes;
	int r = 0;

	if (!buffer)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (fstat(from, &status) < 0)
		return gcr_error_set(error, errno, "a file of managed memory: %s", strerror(errno));
	if (status.st_size < end)
		end = status.st_size;
	for (off_t at = 0; at < end && r == 0; at += (off_t)COPY_BYTES) {
		size_t size = end - at < (off_t)COPY_BYTES ? (size_t)(end - at) : COPY_BYTES;

		if (is_hole(from, at, size))
			continue;
		r = gcr_managed_file_read(from, buffer, size, at, error);
		if (r == 0)
			r = gcr_managed_file_write(to, buffer, size, at, error);
	}
	return r;
}

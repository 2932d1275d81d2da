/* SPDX-License-Identifier: MIT */
/*
 * Writing zeros where a hole would free the memory of a file: a process that reads a hole through a
 * mapping takes memory again, which no account counts.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>

#include "fs/store/store.h"

#include "lib/full_io.h"

#define ZEROS_BYTES (64u << 10)

static int write_range(int fd, uint64_t offset, uint64_t end, const struct gcr_wanted *wanted)
{
	static const char zeros[ZEROS_BYTES];

	while (offset < end) {
		size_t size = end - offset < ZEROS_BYTES ? (size_t)(end - offset) : ZEROS_BYTES;
		int result;

		if (wanted && !wanted->is_wanted(wanted->data))
			return -EBUSY;
		result = gcr_pwrite_all(fd, zeros, size, offset);
		if (result < 0)
			return result;
		offset += size;
	}
	return 0;
}

int gcr_store_write_zeros(int fd, uint64_t offset, uint64_t end, const struct gcr_wanted *wanted)
{
	int result = 0;

	while (offset < end && !result) {
		off_t data = lseek(fd, (off_t)offset, SEEK_DATA);
		off_t hole;

		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		if ((uint64_t)data >= end)
			break;
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0) /* the file has been cut off */
			return errno == ENXIO ? 0 : -errno;
		offset = (uint64_t)hole < end ? (uint64_t)hole : end;
		result = write_range(fd, (uint64_t)data, offset, wanted);
	}
	return result;
}

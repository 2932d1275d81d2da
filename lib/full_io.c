/* SPDX-License-Identifier: MIT */
#include "lib/full_io.h"

#include <errno.h>
#include <unistd.h>

ssize_t gcr_read_all(int fd, void *ret_bytes, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = read(fd, (char *)ret_bytes + done, bytes - done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

ssize_t gcr_pread_all(int fd, void *ret_bytes, size_t bytes, uint64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got =
			pread(fd, (char *)ret_bytes + done, bytes - done, (off_t)(offset + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

int gcr_write_all(int fd, const void *from, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t written = write(fd, (const char *)from + done, bytes - done);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return written < 0 ? -errno : -EIO;
		done += (size_t)written;
	}
	return 0;
}

int gcr_pwrite_all(int fd, const void *from, size_t bytes, uint64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t written =
			pwrite(fd, (const char *)from + done, bytes - done, (off_t)(offset + done));

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return written < 0 ? -errno : -EIO;
		done += (size_t)written;
	}
	return 0;
}

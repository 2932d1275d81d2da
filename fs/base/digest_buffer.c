/* SPDX-License-Identifier: MIT */
/* A memfd and its mapping. */
#include "fs/base/digest_buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct gcr_digest_buffer {
	uint64_t count;
	size_t bytes;
	int fd;
	char *map;
};

int gcr_digest_buffer_create(uint64_t chunks, struct gcr_digest_buffer **ret_buffer)
{
	_cleanup_(gcr_digest_buffer_destroy_cleanup) struct gcr_digest_buffer *buffer =
		calloc(1, sizeof(*buffer));
	void *map;

	if (!buffer)
		return -ENOMEM;
	buffer->count = chunks;
	buffer->bytes = GCR_DIGESTS_HEADER_BYTES + chunks * GCR_DIGEST_BYTES;
	buffer->fd = memfd_create("gpucr-digests", MFD_CLOEXEC);
	if (buffer->fd < 0 || ftruncate(buffer->fd, (off_t)buffer->bytes) < 0)
		return -ENOMEM;
	map = mmap(NULL, buffer->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, buffer->fd, 0);
	if (map == MAP_FAILED)
		return -ENOMEM;
	buffer->map = map;
	*ret_buffer = TAKE_PTR(buffer);
	return 0;
}

void gcr_digest_buffer_destroy(struct gcr_digest_buffer *buffer)
{
	if (!buffer)
		return;
	if (buffer->map)
		munmap(buffer->map, buffer->bytes);
	if (buffer->fd >= 0)
		close(buffer->fd);
	free(buffer);
}

struct gcr_digest *gcr_digest_buffer_digests(const struct gcr_digest_buffer *buffer)
{
	return (struct gcr_digest *)(buffer->map + GCR_DIGESTS_HEADER_BYTES);
}

uint64_t gcr_digest_buffer_count(const struct gcr_digest_buffer *buffer)
{
	return buffer->count;
}

int gcr_digest_buffer_fd(const struct gcr_digest_buffer *buffer)
{
	return buffer->fd;
}

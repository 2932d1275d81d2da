/* SPDX-License-Identifier: MIT */
/*
 * The file `table` of a snapshot: lists the allocations that its files belong to, for a later
 * daemon. A header, then the extents in their memory layout: the file is read only on this machine
 * and in this boot.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/extent.h"
#include "lib/full_io.h"

#define TABLE_NAME  "table"
#define TABLE_MAGIC "gpucrfs-table 1\n"

struct table_header {
	char magic[16];
	uint32_t extent_bytes; /* size of one extent */
	int32_t pid;
	uint64_t start_ticks;
	uint64_t count;
	char generation[40];
};

uint64_t gcr_store_table_bytes(size_t count)
{
	return sizeof(struct table_header) + count * sizeof(struct gcr_extent);
}

static void fill_header(const struct gcr_snapshot *snapshot, struct table_header *header)
{
	*header = (struct table_header){
		.extent_bytes = sizeof(struct gcr_extent),
		.pid = snapshot->pid,
		.start_ticks = snapshot->start_ticks,
		.count = snapshot->count,
	};
	memcpy(header->magic, TABLE_MAGIC, sizeof(header->magic));
	memcpy(header->generation, snapshot->generation, sizeof(header->generation));
}

int gcr_store_write_table(int directory_fd, const struct gcr_snapshot *snapshot)
{
	_cleanup_close_ int fd = openat(directory_fd, TABLE_NAME,
					O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct table_header header;
	int result;

	if (fd < 0)
		return -errno;
	fill_header(snapshot, &header);
	result = gcr_write_all(fd, &header, sizeof(header));
	if (!result)
		result = gcr_write_all(fd, snapshot->extents,
				       snapshot->count * sizeof(*snapshot->extents));
	return result;
}

int gcr_store_read_table(int directory_fd, struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	_cleanup_close_ int fd =
		openat(directory_fd, TABLE_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct table_header expected;
	struct table_header header;
	struct stat stat;
	int result;

	if (fd < 0)
		return gcr_error_set(error, EPROTO, "it has no table");
	if (fstat(fd, &stat) < 0 || !S_ISREG(stat.st_mode) ||
	    pread(fd, &header, sizeof(header), 0) != sizeof(header))
		return gcr_error_set(error, EPROTO, "its table is not a file, or is short");
	snapshot->count = header.count;
	fill_header(snapshot, &expected);
	if (memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0 ||
	    header.extent_bytes != expected.extent_bytes)
		return gcr_error_set(error, EPROTO, "its table is of another version");
	if (memcmp(&header, &expected, sizeof(header)) != 0)
		return gcr_error_set(error, EPROTO, "its table is another snapshot's");
	if (header.count > GCR_EXTENTS_MAX ||
	    (uint64_t)stat.st_size != gcr_store_table_bytes(header.count))
		return gcr_error_set(error, EPROTO, "its table is not as long as it says");
	result = gcr_extents_read_at(fd, sizeof(header), header.count, &snapshot->extents, error);
	if (result < 0)
		return result;
	for (size_t i = 0; i < snapshot->count; i++)
		if (snapshot->extents[i].gpu_index >= GCR_GPUS_MAX)
			return gcr_error_set(error, EPROTO, "its table has a GPU that cannot be");
	return 0;
}

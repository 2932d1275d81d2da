/* SPDX-License-Identifier: MIT */
/* The parts of a snapshot: its directories, extents and files. */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/digest.h"
#include "lib/extent.h"

/* Upper limits for the text of one allocation in a manifest, and for the rest of the manifest. */
#define ALLOCATION_TEXT_BYTES 256
#define OTHER_TEXT_BYTES      (128u << 10)

int gcr_snapshot_root(const struct gcr_snapshot *snapshot)
{
	return snapshot->root_fd;
}

int gcr_snapshot_directory(const struct gcr_snapshot *snapshot)
{
	return snapshot->files_fd;
}

size_t gcr_snapshot_count(const struct gcr_snapshot *snapshot)
{
	return snapshot->count;
}

const struct gcr_extent *gcr_snapshot_extent(const struct gcr_snapshot *snapshot, size_t index)
{
	return &snapshot->extents[index];
}

uint64_t gcr_snapshot_bytes(const struct gcr_snapshot *snapshot)
{
	return snapshot->bytes;
}

int gcr_snapshot_stat(const struct gcr_snapshot *snapshot, size_t index, struct stat *ret_stat)
{
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat stat;

	gcr_extent_name(&snapshot->extents[index], name);
	if (fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	*ret_stat = stat;
	return 0;
}

int gcr_snapshot_open_file(const struct gcr_snapshot *snapshot, size_t index, bool writable)
{
	char name[GCR_EXTENT_NAME_BYTES];
	int fd;

	gcr_extent_name(&snapshot->extents[index], name);
	fd = openat(snapshot->files_fd, name,
		    (writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

uint64_t gcr_snapshot_resident_bytes(const struct gcr_snapshot *snapshot, bool *ret_complete)
{
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t bytes = gcr_snapshot_metadata_bytes(snapshot->extents, snapshot->count);
	bool complete = true;
	struct stat stat;

	for (size_t i = 0; i < snapshot->count; i++) {
		uint64_t found = 0;

		gcr_extent_name(&snapshot->extents[i], name);
		if (snapshot->files_fd >= 0 &&
		    !fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW))
			found = (uint64_t)stat.st_blocks * 512;
		complete &= found >= snapshot->extents[i].bytes;
		bytes += found;
	}
	*ret_complete = complete;
	return bytes;
}

uint64_t gcr_snapshot_metadata_bytes(const struct gcr_extent *extents, size_t count)
{
	uint64_t chunks = 0;

	for (size_t i = 0; i < count; i++)
		chunks += gcr_digest_count(extents[i].bytes);
	return gcr_store_cost(gcr_store_table_bytes(count)) +
	       gcr_store_cost(GCR_DIGESTS_HEADER_BYTES + chunks * GCR_DIGEST_BYTES) +
	       gcr_store_cost(gcr_snapshot_manifest_bytes(count));
}

uint64_t gcr_snapshot_manifest_bytes(size_t count)
{
	return OTHER_TEXT_BYTES + (uint64_t)count * ALLOCATION_TEXT_BYTES;
}

uint64_t gcr_snapshot_first_chunk(const struct gcr_snapshot *snapshot, size_t index)
{
	uint64_t chunks = 0;

	for (size_t i = 0; i < index; i++)
		chunks += gcr_digest_count(snapshot->extents[i].bytes);
	return chunks;
}

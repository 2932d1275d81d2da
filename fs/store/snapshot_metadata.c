/* SPDX-License-Identifier: MIT */
/*
 * The metadata of a snapshot: its `digests` and, written last, its `manifest`. Users may change
 * both files, so the daemon checks what is read against the snapshot's table, which users cannot
 * reach.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/store/subtree.h"
#include "lib/beneath.h"
#include "lib/extent.h"
#include "lib/full_io.h"
#include "lib/manifest.h"

/* Files that are digested on the host are read in blocks of this size: whole chunks. */
#define READ_BYTES (1u << 20)

struct gcr_digest_buffer *gcr_snapshot_take_known(struct gcr_snapshot *snapshot)
{
	return TAKE_PTR(snapshot->digests);
}

bool gcr_snapshot_is_known(const struct gcr_snapshot *snapshot, size_t index)
{
	return snapshot->files[index].is_known;
}

int gcr_snapshot_digest_file(const struct gcr_snapshot *snapshot, size_t index,
			     struct gcr_digest *ret_digests, struct gcr_error *error)
{
	uint64_t bytes = snapshot->extents[index].bytes;
	_cleanup_free_ char *buffer = malloc(READ_BYTES);
	_cleanup_close_ int fd = -1;
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&snapshot->extents[index], name);
	if (!buffer)
		return gcr_error_set(error, ENOMEM, "out of memory");
	fd = gcr_snapshot_open_file(snapshot, index, false);
	if (fd < 0)
		return gcr_error_set(error, EIO, "vram/%s cannot be opened: %s", name,
				     strerror(-fd));
	for (uint64_t at = 0; at < bytes;) {
		size_t wanted = bytes - at < READ_BYTES ? bytes - at : READ_BYTES;
		ssize_t got = gcr_pread_all(fd, buffer, wanted, at);

		if (got != (ssize_t)wanted)
			return gcr_error_set(error, EIO, "vram/%s cannot be read: %s", name,
					     got < 0 ? strerror((int)-got) : "it is short");
		gcr_digest_chunks(buffer, wanted, ret_digests + at / GCR_CHUNK_BYTES);
		at += wanted;
	}
	return 0;
}

/*
 * Move the file from the snapshot's own directory to the one that users see, and give it to the
 * owner of the snapshot, who may read and replace it.
 */
static int show(struct gcr_snapshot *snapshot, int own_fd, const char *name,
		struct gcr_error *error)
{
	struct stat stat;
	int result;

	if (fstat(gcr_snapshot_root(snapshot), &stat) == 0 && stat.st_uid != geteuid())
		fchownat(own_fd, name, stat.st_uid, stat.st_gid, AT_SYMLINK_NOFOLLOW);
	result = gcr_subtree_put(snapshot->subtree, own_fd, name);
	return result ? gcr_error_set(error, -result, "%s cannot be written: %s", name,
				      strerror(-result))
		      : 0;
}

/*
 * Writes both files in the snapshot's own directory, which no user reaches, and then shows them by
 * gcr_subtree_put(). That function accounts for a user's file that is replaced, which may still be
 * in use under another name.
 */
static int write_files(struct gcr_snapshot *snapshot, struct gcr_manifest *manifest,
		       const struct gcr_digest *digests, struct gcr_error *error)
{
	uint64_t count = gcr_snapshot_first_chunk(snapshot, snapshot->count);
	_cleanup_close_ int fd =
		openat(gcr_snapshot_root(snapshot), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int result;

	if (fd < 0)
		return gcr_error_set(error, errno, "the snapshot's directory: %s", strerror(errno));
	result = gcr_digests_write(fd, snapshot->generation, digests, count, &manifest->digests,
				   error);
	if (!result)
		result = gcr_manifest_write(fd, manifest, error);
	if (!result)
		result = show(snapshot, fd, GCR_DIGESTS_NAME, error);
	if (!result)
		result = show(snapshot, fd, GCR_MANIFEST_NAME, error);
	if (result < 0) {
		unlinkat(fd, GCR_DIGESTS_NAME, 0);
		unlinkat(fd, GCR_MANIFEST_NAME, 0);
	}
	return result;
}

int gcr_snapshot_seal(struct gcr_snapshot *snapshot, struct gcr_manifest *manifest,
		      const struct gcr_digest *digests, struct gcr_error *error)
{
	struct gcr_extent *allocations = manifest->allocations;
	size_t allocations_count = manifest->allocations_count;
	int result;

	memcpy(manifest->generation, snapshot->generation, sizeof(snapshot->generation));
	manifest->pid = snapshot->pid;
	manifest->start_ticks = snapshot->start_ticks;
	manifest->allocations = snapshot->extents;
	manifest->allocations_count = snapshot->count;
	result = write_files(snapshot, manifest, digests, error);
	/* The manifest gets the caller's array back. */
	manifest->allocations = allocations;
	manifest->allocations_count = allocations_count;
	if (result < 0)
		gcr_error_prefix(error, "the snapshot's metadata");
	return result;
}

int gcr_snapshot_unseal(struct gcr_snapshot *snapshot)
{
	int result = gcr_subtree_take_out(snapshot->subtree, GCR_MANIFEST_NAME);

	/* The owner of the files has put a directory there, which is no manifest either. */
	return result == -EISDIR || result == -EPERM ? 0 : result;
}

static int differs(const char *what, struct gcr_error *error)
{
	return gcr_error_set(error, EIO, "it is not of this freeze: %s", what);
}

/* Does the manifest belong to this snapshot? */
static int compare(const struct gcr_snapshot *snapshot, const struct gcr_manifest *manifest,
		   struct gcr_error *error)
{
	if (strcmp(manifest->generation, snapshot->generation) != 0)
		return differs("its generation is another", error);
	if (manifest->pid != snapshot->pid || manifest->start_ticks != snapshot->start_ticks)
		return differs("it is about another process", error);
	if (manifest->allocations_count != snapshot->count)
		return differs("it has another number of allocations", error);
	for (size_t i = 0; i < snapshot->count; i++) {
		const struct gcr_extent *ours = &snapshot->extents[i];
		const struct gcr_extent *theirs = &manifest->allocations[i];

		if (!gcr_extent_same_file(ours, theirs) ||
		    memcmp(ours->gpu, theirs->gpu, sizeof(ours->gpu)) != 0)
			return differs("an allocation is another", error);
	}
	return 0;
}

int gcr_snapshot_read_manifest(const struct gcr_snapshot *snapshot,
			       struct gcr_manifest **ret_manifest, struct gcr_error *error)
{
	uint64_t bytes_max = gcr_snapshot_manifest_bytes(snapshot->count);
	_cleanup_free_ void *bytes = NULL;
	size_t size = 0;
	int result;

	if (bytes_max > GCR_MANIFEST_BYTES_MAX)
		bytes_max = GCR_MANIFEST_BYTES_MAX;
	result = gcr_beneath_read(gcr_snapshot_root(snapshot), GCR_MANIFEST_NAME, bytes_max, &bytes,
				  &size, error);
	return result < 0 ? result : gcr_manifest_parse(bytes, size, ret_manifest, error);
}

int gcr_snapshot_read_digests(const struct gcr_snapshot *snapshot, struct gcr_digest **ret_digests,
			      struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	uint64_t count = gcr_snapshot_first_chunk(snapshot, snapshot->count);
	int root = gcr_snapshot_root(snapshot);
	const char *name = GCR_DIGESTS_NAME;
	int result;

	result = gcr_snapshot_read_manifest(snapshot, &manifest, error);
	if (!result)
		result = compare(snapshot, manifest, error);
	if (result < 0)
		name = GCR_MANIFEST_NAME;
	else
		result = gcr_digests_read(root, snapshot->generation, count, &manifest->digests,
					  ret_digests, error);
	if (result < 0 && result != -ENOMEM) {
		/* Users may have put anything there: every error in the content is EIO. */
		gcr_error_prefix(error, "%s", name);
		error->number = EIO;
		return -EIO;
	}
	return result;
}

int gcr_snapshot_set_time(const struct gcr_snapshot *snapshot, size_t index,
			  const struct timespec *time)
{
	const struct timespec times[2] = {*time, *time};
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&snapshot->extents[index], name);
	return utimensat(snapshot->files_fd, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

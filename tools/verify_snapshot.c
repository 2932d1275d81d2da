/* SPDX-License-Identifier: MIT */
/*
 * gpucr-verify: one snapshot. The manifest says of itself that it is whole, and is the measure for
 * all else: `digests` first, then which files there are and how long, then what is in them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/manifest.h"
#include "tools/verify.h"

/* A manifest or `digests` that does not serve: is it wrong, or is it that we cannot tell? */
static void tell(struct verify *verify, const char *file, const struct gcr_error *error,
		 const char *consequence)
{
	switch (error->number) {
	case ENOENT:
	case ELOOP:
	case EPROTO:
	case EFBIG:
	case E2BIG:
	case EBADMSG:
	case ESTALE:
		verify_wrong(verify, "%s: %s%s", file, error->words, consequence);
		break;
	default:
		verify_unread(verify, "%s: %s%s", file, error->words, consequence);
		break;
	}
}

static int compare_names(const void *left, const void *right)
{
	const struct verify_file *const *a = left;
	const struct verify_file *const *b = right;

	return strcmp((*a)->name, (*b)->name);
}

static int compare_with_name(const void *name, const void *file)
{
	return strcmp(name, (*(const struct verify_file *const *)file)->name);
}

/* What is in vram/ that should not be. */
static void find_extra(struct verify *verify, int files_fd, const struct verify_file *files,
		       size_t count)
{
	_cleanup_free_ const struct verify_file **sorted = calloc(count + 1, sizeof(*sorted));
	/* Its own, for the place in the directory. */
	_cleanup_close_ int fd = openat(files_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_closedir_ DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!sorted || !directory) {
		verify_unread(verify, "%s/: it cannot be listed: %s", GCR_MANIFEST_FILES,
			      strerror(errno));
		return;
	}
	(void)TAKE_FD(fd);
	for (size_t i = 0; i < count; i++)
		sorted[i] = &files[i];
	qsort(sorted, count, sizeof(*sorted), compare_names);
	for (errno = 0; (entry = readdir(directory)); errno = 0) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (!bsearch(entry->d_name, sorted, count, sizeof(*sorted), compare_with_name))
			verify_wrong(verify, "%s/%s: it is not in the manifest", GCR_MANIFEST_FILES,
				     entry->d_name);
	}
	if (errno)
		verify_unread(verify, "%s/: it cannot be listed: %s", GCR_MANIFEST_FILES,
			      strerror(errno));
}

/* Is it there, a file, and as long as it should be? Sets how much of it can be compared. */
static void check_file(struct verify *verify, int files_fd, uint64_t bytes,
		       struct verify_file *file)
{
	struct stat stat;
	uint64_t found;

	if (fstatat(files_fd, file->name, &stat, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno == ENOENT)
			verify_wrong(verify, "%s/%s: it is missing", GCR_MANIFEST_FILES,
				     file->name);
		else
			verify_unread(verify, "%s/%s: %s", GCR_MANIFEST_FILES, file->name,
				      strerror(errno));
		return;
	}
	if (!S_ISREG(stat.st_mode)) {
		verify_wrong(verify, "%s/%s: it is %s", GCR_MANIFEST_FILES, file->name,
			     S_ISLNK(stat.st_mode) ? "a symbolic link" : "not a regular file");
		return;
	}
	found = (uint64_t)stat.st_size;
	if (found != bytes)
		verify_wrong(verify, "%s/%s: it is %" PRIu64 " bytes long, not %" PRIu64,
			     GCR_MANIFEST_FILES, file->name, found, bytes);
	/* Of a short file, the chunks that it has. */
	file->bytes = found >= bytes ? bytes : found / GCR_CHUNK_BYTES * GCR_CHUNK_BYTES;
}

/* Chunks that differ, neighbours in one line. */
static void tell_differences(struct verify *verify, const struct verify_file *file,
			     const uint8_t *differs)
{
	uint64_t count = gcr_digest_count(file->bytes);
	uint64_t rest = 0;
	unsigned int lines = 0;

	for (uint64_t first = 0; first < count; first++) {
		uint64_t last = first;

		if (!differs[first])
			continue;
		while (last + 1 < count && differs[last + 1])
			last++;
		if (lines == VERIFY_LINES_MAX)
			rest += last - first + 1;
		else if (last == first)
			verify_wrong(verify, "%s/%s: chunk at %" PRIu64 " differs",
				     GCR_MANIFEST_FILES, file->name, first * GCR_CHUNK_BYTES);
		else
			verify_wrong(verify, "%s/%s: chunks at %" PRIu64 " to %" PRIu64 " differ",
				     GCR_MANIFEST_FILES, file->name, first * GCR_CHUNK_BYTES,
				     last * GCR_CHUNK_BYTES);
		lines += lines < VERIFY_LINES_MAX;
		first = last;
	}
	if (rest)
		verify_wrong(verify, "%s/%s: %" PRIu64 " more chunks differ", GCR_MANIFEST_FILES,
			     file->name, rest);
}

static void check_contents(struct verify *verify, int files_fd, struct verify_file *files,
			   size_t count, const struct gcr_digest *digests, uint64_t digests_count)
{
	_cleanup_free_ uint8_t *differs = calloc(digests_count + 1, 1);

	if (!differs) {
		verify_unread(verify, "%s/: out of memory", GCR_MANIFEST_FILES);
		return;
	}
	verify_contents(verify, files_fd, files, count, digests, differs);
	for (size_t i = 0; i < count; i++) {
		tell_differences(verify, &files[i], differs + files[i].first_digest);
		if (files[i].error)
			verify_unread(verify, "%s/%s: %s", GCR_MANIFEST_FILES, files[i].name,
				      files[i].error == ENODATA ? "it has become shorter meanwhile"
								: strerror(files[i].error));
	}
}

static void check_files(struct verify *verify, int directory_fd,
			const struct gcr_manifest *manifest, const struct gcr_digest *digests)
{
	_cleanup_close_ int files_fd =
		gcr_beneath_open(directory_fd, GCR_MANIFEST_FILES, O_RDONLY | O_DIRECTORY);
	size_t count = manifest->allocations_count;
	_cleanup_free_ struct verify_file *files = calloc(count + 1, sizeof(*files));
	uint64_t digests_count = 0;

	if (files_fd == -ENOENT && !count)
		return; /* a copy need not have an empty directory */
	if (files_fd == -ENOENT || files_fd == -ENOTDIR || files_fd == -ELOOP)
		verify_wrong(verify, "%s/: it is %s", GCR_MANIFEST_FILES,
			     files_fd == -ENOENT ? "missing" : "not a directory");
	else if (files_fd < 0)
		verify_unread(verify, "%s/: %s", GCR_MANIFEST_FILES, strerror(-files_fd));
	else if (!files)
		verify_unread(verify, "%s/: out of memory", GCR_MANIFEST_FILES);
	if (files_fd < 0 || !files)
		return;

	for (size_t i = 0; i < count; i++) {
		uint64_t bytes = manifest->allocations[i].bytes;

		gcr_extent_name(&manifest->allocations[i], files[i].name);
		files[i].first_digest = digests_count;
		digests_count += gcr_digest_count(bytes);
		check_file(verify, files_fd, bytes, &files[i]);
		verify->files++;
		verify->bytes += files[i].bytes;
	}
	find_extra(verify, files_fd, files, count);
	if (digests)
		check_contents(verify, files_fd, files, count, digests, digests_count);
}

void verify_snapshot(struct verify *verify, int directory_fd)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	_cleanup_free_ struct gcr_digest *digests = NULL;
	struct gcr_error error = {0};

	if (gcr_manifest_read(directory_fd, &manifest, &error) < 0) {
		tell(verify, GCR_MANIFEST_NAME, &error, "; nothing else is checked");
		return;
	}
	if (gcr_digests_read(directory_fd, manifest->generation,
			     gcr_manifest_digests_count(manifest), &manifest->digests, &digests,
			     &error) < 0)
		tell(verify, GCR_DIGESTS_NAME, &error,
		     "; what is in " GCR_MANIFEST_FILES "/ is not checked");
	check_files(verify, directory_fd, manifest, digests);
}

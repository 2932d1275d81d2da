/* SPDX-License-Identifier: MIT */
/*
 * gpucr-verify: checks one snapshot. The manifest proves its own integrity, and everything else is
 * compared with it: `digests` first, then the files and their lengths, then their contents; for a
 * dumped tree also CRIU's images and the snapshots of its other processes.
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
#include "tools/verify/verify.h"

#define PID_TEXT_BYTES (sizeof("-2147483648"))

/* Reports an unusable manifest or `digests`: as wrong, or as unreadable if undecidable. */
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
	return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static void cannot_list(struct verify *verify, const char *directory)
{
	verify_unread(verify, "%s/: it cannot be listed: %s", directory, strerror(errno));
}

/* Reports unexpected entries in @name/. Sorts @wanted. */
static void find_extra(struct verify *verify, int files_fd, const char *name, const char **wanted,
		       size_t count)
{
	/* A separate descriptor, for its own position in the directory. */
	_cleanup_closedir_ DIR *directory = NULL;
	struct dirent *entry;
	int opened = gcr_beneath_list(files_fd, ".", &directory);

	if (opened < 0) {
		errno = -opened;
		cannot_list(verify, name);
		return;
	}
	qsort(wanted, count, sizeof(*wanted), compare_names);
	for (errno = 0; (entry = readdir(directory)); errno = 0) {
		const char *found = entry->d_name;

		if (!strcmp(found, ".") || !strcmp(found, ".."))
			continue;
		if (!bsearch(&found, wanted, count, sizeof(*wanted), compare_names))
			verify_wrong(verify, "%s/%s: it is not in the manifest", name, found);
	}
	if (errno)
		cannot_list(verify, name);
}

/* Checks that a regular file of the expected length exists. Returns its length; -1: no file. */
static int64_t check_file(struct verify *verify, int files_fd, const char *directory,
			  const char *name, uint64_t bytes)
{
	struct stat stat;

	if (fstatat(files_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno == ENOENT)
			verify_wrong(verify, "%s/%s: it is missing", directory, name);
		else
			verify_unread(verify, "%s/%s: %s", directory, name, strerror(errno));
		return -1;
	}
	if (!S_ISREG(stat.st_mode)) {
		verify_wrong(verify, "%s/%s: it is %s", directory, name,
			     S_ISLNK(stat.st_mode) ? "a symbolic link" : "not a regular file");
		return -1;
	}
	if ((uint64_t)stat.st_size != bytes)
		verify_wrong(verify, "%s/%s: it is %" PRIu64 " bytes long, not %" PRIu64, directory,
			     name, (uint64_t)stat.st_size, bytes);
	return stat.st_size;
}

/* Reports chunks that differ; adjacent ones in one line. */
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
	_cleanup_free_ const char **names = calloc(count + 1, sizeof(*names));
	uint64_t digests_count = 0;

	if (files_fd == -ENOENT && !count)
		return; /* a copy may lack an empty directory */
	if (files_fd == -ENOENT || files_fd == -ENOTDIR || files_fd == -ELOOP)
		verify_wrong(verify, "%s/: it is %s", GCR_MANIFEST_FILES,
			     files_fd == -ENOENT ? "missing" : "not a directory");
	else if (files_fd < 0)
		verify_unread(verify, "%s/: %s", GCR_MANIFEST_FILES, strerror(-files_fd));
	else if (!files || !names)
		verify_unread(verify, "%s/: out of memory", GCR_MANIFEST_FILES);
	if (files_fd < 0 || !files || !names)
		return;

	for (size_t i = 0; i < count; i++) {
		uint64_t bytes = manifest->allocations[i].bytes;
		int64_t found;

		gcr_extent_name(&manifest->allocations[i], files[i].name);
		files[i].first_digest = digests_count;
		digests_count += gcr_digest_count(bytes);
		names[i] = files[i].name;
		found = check_file(verify, files_fd, GCR_MANIFEST_FILES, files[i].name, bytes);
		/* Of a short file, only complete chunks are compared. */
		if (found > 0)
			files[i].bytes =
				(uint64_t)found >= bytes
					? bytes
					: (uint64_t)found / GCR_CHUNK_BYTES * GCR_CHUNK_BYTES;
		verify->files++;
		verify->bytes += files[i].bytes;
	}
	find_extra(verify, files_fd, GCR_MANIFEST_FILES, names, count);
	if (digests)
		check_contents(verify, files_fd, files, count, digests, digests_count);
}

/* Checks an image of CRIU: length and digest of the whole file. */
static void check_image(struct verify *verify, int images_fd,
			const struct gcr_manifest_image *image)
{
	_cleanup_close_ int fd = -1;
	struct gcr_digest digest;
	int64_t found =
		check_file(verify, images_fd, GCR_MANIFEST_IMAGES, image->name, image->bytes);
	int result;

	verify->files++;
	if (found < 0 || (uint64_t)found != image->bytes)
		return;
	fd = gcr_beneath_open_file(images_fd, image->name, NULL);
	result = fd < 0 ? fd : gcr_digest_file(fd, NULL, &digest);
	if (result < 0)
		verify_unread(verify, "%s/%s: %s", GCR_MANIFEST_IMAGES, image->name,
			      strerror(-result));
	else if (!gcr_digest_equal(&digest, &image->digest))
		verify_wrong(verify, "%s/%s: it differs", GCR_MANIFEST_IMAGES, image->name);
	verify->bytes += image->bytes;
}

static void check_images(struct verify *verify, int directory_fd,
			 const struct gcr_manifest *manifest)
{
	_cleanup_close_ int images_fd =
		gcr_beneath_open(directory_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY);
	size_t count = manifest->images_count;
	_cleanup_free_ const char **names = calloc(count + 1, sizeof(*names));

	if (images_fd == -ENOENT && !count)
		return;
	if (images_fd == -ENOENT || images_fd == -ENOTDIR || images_fd == -ELOOP)
		verify_wrong(verify, "%s/: it is %s", GCR_MANIFEST_IMAGES,
			     images_fd == -ENOENT ? "missing" : "not a directory");
	else if (images_fd < 0)
		verify_unread(verify, "%s/: %s", GCR_MANIFEST_IMAGES, strerror(-images_fd));
	else if (!names)
		verify_unread(verify, "%s/: out of memory", GCR_MANIFEST_IMAGES);
	if (images_fd < 0 || !names)
		return;
	for (size_t i = 0; i < count; i++) {
		names[i] = manifest->images[i].name;
		check_image(verify, images_fd, &manifest->images[i]);
	}
	find_extra(verify, images_fd, GCR_MANIFEST_IMAGES, names, count);
}

/* Checks the bytes of a snapshot, whether or not it belongs to a tree. */
static void check_bytes(struct verify *verify, int directory_fd,
			const struct gcr_manifest *manifest)
{
	_cleanup_free_ struct gcr_digest *digests = NULL;
	struct gcr_error error = {0};

	if (gcr_digests_read(directory_fd, manifest->generation,
			     gcr_manifest_digests_count(manifest), &manifest->digests, &digests,
			     &error) < 0)
		tell(verify, GCR_DIGESTS_NAME, &error,
		     "; what is in " GCR_MANIFEST_FILES "/ is not checked");
	check_files(verify, directory_fd, manifest, digests);
}

/* Checks a process's snapshot against the entry in the tree. */
static void check_process(struct verify *verify, int directory_fd,
			  const struct gcr_tree_process *process)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	struct gcr_error error = {0};

	if (gcr_manifest_read(directory_fd, &manifest, &error) < 0) {
		tell(verify, GCR_MANIFEST_NAME, &error, "; nothing else there is checked");
		return;
	}
	if (manifest->tree)
		verify_wrong(verify, "%s: it has a tree of its own", GCR_MANIFEST_NAME);
	if (manifest->pid != process->pid)
		verify_wrong(verify, "%s: it is of process %d, not %d", GCR_MANIFEST_NAME,
			     (int)manifest->pid, (int)process->pid);
	if (strcmp(manifest->generation, process->generation) != 0)
		verify_wrong(verify, "%s: it is of another generation (%s) than the tree (%s)",
			     GCR_MANIFEST_NAME, manifest->generation, process->generation);
	if (strcmp(manifest->engine, process->engine) != 0)
		verify_wrong(verify, "%s: it was frozen by %s, not %s", GCR_MANIFEST_NAME,
			     manifest->engine, process->engine);
	check_bytes(verify, directory_fd, manifest);
}

static void check_process_at(struct verify *verify, int processes_fd, const char *name,
			     const struct gcr_tree_process *process)
{
	_cleanup_close_ int fd = gcr_beneath_open(processes_fd, name, O_RDONLY | O_DIRECTORY);
	char part[sizeof(GCR_TREE_PROCESSES) + PID_TEXT_BYTES + 2];

	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP) {
		verify_wrong(verify, "%s/%s/: it is %s", GCR_TREE_PROCESSES, name,
			     fd == -ENOENT ? "missing" : "not a directory");
	} else if (fd < 0) {
		verify_unread(verify, "%s/%s/: %s", GCR_TREE_PROCESSES, name, strerror(-fd));
	} else {
		snprintf(part, sizeof(part), "%s/%s/", GCR_TREE_PROCESSES, name);
		verify->part = part;
		check_process(verify, fd, process);
		verify->part = "";
	}
}

static void check_processes_in(struct verify *verify, int processes_fd,
			       const struct gcr_manifest_tree *tree)
{
	size_t count = tree ? tree->processes_count : 0, wanted = 0;
	_cleanup_free_ char(*texts)[PID_TEXT_BYTES] = calloc(count + 1, sizeof(*texts));
	_cleanup_free_ const char **names = calloc(count + 1, sizeof(*names));

	if (!texts || !names) {
		verify_unread(verify, "%s/: out of memory", GCR_TREE_PROCESSES);
		return;
	}
	/* The first process is the root, whose snapshot surrounds the others. */
	for (size_t i = 1; i < count; i++) {
		if (!tree->processes[i].has_gpu)
			continue;
		snprintf(texts[wanted], sizeof(*texts), "%d", (int)tree->processes[i].pid);
		names[wanted] = texts[wanted];
		check_process_at(verify, processes_fd, names[wanted], &tree->processes[i]);
		wanted++;
	}
	find_extra(verify, processes_fd, GCR_TREE_PROCESSES, names, wanted);
}

static void check_processes(struct verify *verify, int directory_fd,
			    const struct gcr_manifest_tree *tree)
{
	_cleanup_close_ int processes_fd =
		gcr_beneath_open(directory_fd, GCR_TREE_PROCESSES, O_RDONLY | O_DIRECTORY);
	bool is_needed = false;

	for (size_t i = 1; tree && i < tree->processes_count; i++)
		is_needed |= tree->processes[i].has_gpu;
	if (processes_fd >= 0)
		check_processes_in(verify, processes_fd, tree);
	else if (processes_fd == -ENOENT && is_needed)
		verify_wrong(verify, "%s/: it is missing", GCR_TREE_PROCESSES);
	else if (processes_fd == -ENOTDIR || processes_fd == -ELOOP)
		verify_wrong(verify, "%s/: it is not a directory", GCR_TREE_PROCESSES);
	else if (processes_fd != -ENOENT)
		verify_unread(verify, "%s/: %s", GCR_TREE_PROCESSES, strerror(-processes_fd));
}

void verify_snapshot(struct verify *verify, int directory_fd)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	struct gcr_error error = {0};

	if (gcr_manifest_read(directory_fd, &manifest, &error) < 0) {
		tell(verify, GCR_MANIFEST_NAME, &error, "; nothing else is checked");
		return;
	}
	check_bytes(verify, directory_fd, manifest);
	check_images(verify, directory_fd, manifest);
	check_processes(verify, directory_fd, manifest->tree);
}

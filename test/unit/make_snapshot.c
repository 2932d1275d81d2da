/* SPDX-License-Identifier: MIT */
/*
 * What makes snapshots for tests.
 *
 * make_snapshot DIR GENERATION KIND:GPU:ADDRESS:BYTES:ID...
 *	Write `digests` and `manifest` for the files that are in DIR/vram, and in DIR/criu if there
 *is one. KIND is device or managed. make_snapshot --name KIND:GPU:ADDRESS:BYTES:ID... Print what
 *the files are called, a line each. make_snapshot --seal MANIFEST Make the digest at its end right
 *again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/beneath.h"
#include "lib/extent.h"
#include "lib/manifest.h"
#include "test/unit/test.h"

#define END_BYTES 36 /* of a manifest: the digits of the digest and what follows them */

static struct gcr_extent parse_extent(const char *text)
{
	struct gcr_extent extent = {0};
	char kind[16];

	CHECK(sscanf(text, "%15[a-z]:%" SCNu32 ":%" SCNx64 ":%" SCNu64 ":%" SCNu64, kind,
		     &extent.gpu_index, &extent.address, &extent.bytes, &extent.id) == 5);
	extent.kind = !strcmp(kind, "managed") ? GCR_MEMORY_MANAGED : GCR_MEMORY_DEVICE;
	memset(extent.gpu, (int)extent.gpu_index + 1, sizeof(extent.gpu));
	return extent;
}

static void add_gpu(struct gcr_manifest *manifest, const struct gcr_extent *extent)
{
	struct gcr_manifest_gpu *gpu = &manifest->gpus[manifest->gpus_count];

	for (size_t i = 0; i < manifest->gpus_count; i++)
		if (manifest->gpus[i].index == extent->gpu_index)
			return;
	*gpu = (struct gcr_manifest_gpu){
		.index = extent->gpu_index,
		.name = "a GPU",
		.memory_bytes = UINT64_C(80) << 30,
		.compute_capability = "9.0",
	};
	memcpy(gpu->uuid, extent->gpu, sizeof(gpu->uuid));
	manifest->gpus_count++;
}

static void digest_file(int files_fd, const struct gcr_extent *extent, struct gcr_digest *digests)
{
	static char chunk[GCR_CHUNK_BYTES];
	char name[GCR_EXTENT_NAME_BYTES];
	_cleanup_close_ int fd = -1;

	gcr_extent_name(extent, name);
	fd = openat(files_fd, name, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	/* Not mapped: that would fill the holes of a file in memory. */
	for (uint64_t offset = 0; offset < extent->bytes; offset += sizeof(chunk)) {
		uint64_t rest = extent->bytes - offset;
		ssize_t length = (ssize_t)(rest < sizeof(chunk) ? rest : sizeof(chunk));

		CHECK(pread(fd, chunk, (size_t)length, (off_t)offset) == length);
		gcr_digest_of(chunk, (uint64_t)length, digests++);
	}
}

static int compare_images(const void *left, const void *right)
{
	return strcmp(((const struct gcr_manifest_image *)left)->name,
		      ((const struct gcr_manifest_image *)right)->name);
}

static void add_images(int directory_fd, struct gcr_manifest *manifest)
{
	int fd = openat(directory_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *images = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!images)
		return;
	manifest->images = calloc(64, sizeof(*manifest->images));
	CHECK(manifest->images);
	while ((entry = readdir(images))) {
		struct gcr_manifest_image *image = &manifest->images[manifest->images_count];
		_cleanup_close_ int file = -1;

		if (entry->d_name[0] == '.')
			continue;
		CHECK(manifest->images_count++ < 64);
		CHECK(strlen(entry->d_name) < sizeof(image->name));
		strcpy(image->name, entry->d_name);
		file = openat(fd, entry->d_name, O_RDONLY | O_CLOEXEC);
		CHECK(file >= 0 && !gcr_digest_file(file, &image->bytes, &image->digest));
	}
	closedir(images);
	qsort(manifest->images, manifest->images_count, sizeof(*manifest->images), compare_images);
}

static void make(int directory_fd, const char *generation, int count, char **extents)
{
	_cleanup_close_ int files_fd =
		openat(directory_fd, GCR_MANIFEST_FILES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest =
		calloc(1, sizeof(*manifest));
	_cleanup_free_ struct gcr_digest *digests = NULL;
	struct gcr_digest *next;
	struct gcr_error error;

	CHECK(manifest && files_fd >= 0);
	manifest->pid = 4711;
	manifest->start_ticks = 8812;
	manifest->api_version = 13000;
	strcpy(manifest->comm, "python3");
	strcpy(manifest->exe, "/usr/bin/python3.11");
	strcpy(manifest->engine, "vmm");
	strcpy(manifest->driver_version, "580.159.04");
	snprintf(manifest->generation, sizeof(manifest->generation), "%s", generation);
	manifest->allocations = calloc((size_t)count + 1, sizeof(*manifest->allocations));
	CHECK(manifest->allocations);
	manifest->allocations_count = (size_t)count;
	for (int i = 0; i < count; i++) {
		manifest->allocations[i] = parse_extent(extents[i]);
		add_gpu(manifest, &manifest->allocations[i]);
	}
	digests = calloc(gcr_manifest_digests_count(manifest) + 1, sizeof(*digests));
	CHECK(digests);
	next = digests;
	for (int i = 0; i < count; i++) {
		digest_file(files_fd, &manifest->allocations[i], next);
		next += gcr_digest_count(manifest->allocations[i].bytes);
	}
	CHECK(!gcr_digests_write(directory_fd, generation, digests,
				 gcr_manifest_digests_count(manifest), &manifest->digests, &error));
	add_images(directory_fd, manifest);
	CHECK(!gcr_manifest_write(directory_fd, manifest, &error));
}

static void seal(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
	char digits[GCR_DIGEST_TEXT_BYTES];
	struct gcr_digest digest;
	struct stat stat;
	char *text;

	CHECK(fd >= 0 && !fstat(fd, &stat) && stat.st_size > END_BYTES);
	text = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(text != MAP_FAILED);
	gcr_digest_of(text, (uint64_t)stat.st_size - END_BYTES, &digest);
	gcr_digest_format(&digest, digits);
	memcpy(text + stat.st_size - END_BYTES, digits, sizeof(digits) - 1);
	munmap(text, (size_t)stat.st_size);
}

int main(int argc, char **argv)
{
	_cleanup_close_ int directory_fd = -1;

	if (argc == 3 && !strcmp(argv[1], "--seal")) {
		seal(argv[2]);
		return 0;
	}
	if (argc >= 2 && !strcmp(argv[1], "--name")) {
		for (int i = 2; i < argc; i++) {
			struct gcr_extent extent = parse_extent(argv[i]);
			char name[GCR_EXTENT_NAME_BYTES];

			gcr_extent_name(&extent, name);
			puts(name);
		}
		return 0;
	}
	CHECK(argc >= 3);
	directory_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
	make(directory_fd, argv[2], argc - 3, argv + 3);
	return 0;
}

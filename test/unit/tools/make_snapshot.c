/* SPDX-License-Identifier: MIT */
/*
 * Makes snapshots for tests.
 *
 * make_snapshot DIR GENERATION [pid:PID] [launcher] [process:PID:PARENT[:GENERATION]]...
 *               [KIND:GPU:ADDRESS:BYTES:ID]...
 * \tWrites `digests` and `manifest` for the files in DIR/vram, and in DIR/criu if that exists.
 * \tKIND is device or managed. PID is 4711 by default. With a DIR/criu, the manifest has a
 * \tprocess tree: this process (which uses no GPU if `launcher` is given) and the given
 * \tprocesses; a GENERATION makes a process a GPU process.
 * make_snapshot --name KIND:GPU:ADDRESS:BYTES:ID...
 * \tPrints the file names, one per line.
 * make_snapshot --digest FILE
 * \tPrints the digest of the file.
 * make_snapshot --seal MANIFEST
 * \tMakes the digest at the end of the manifest valid again.
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
#include "test/unit/lib/manifest.h"
#include "test/unit/test.h"

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
	/*
	 * Read the file instead of mapping it: a mapping would fill the holes of a file in memory.
	 */
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

static void add_process(struct gcr_manifest_tree *tree, const char *text)
{
	struct gcr_tree_process *process;
	char generation[GCR_GENERATION_BYTES] = "";
	int pid, parent, end = 0;

	tree->processes =
		reallocarray(tree->processes, tree->processes_count + 1, sizeof(*tree->processes));
	CHECK(tree->processes);
	process = &tree->processes[tree->processes_count++];
	CHECK(sscanf(text, "process:%d:%d%n", &pid, &parent, &end) == 2 && end);
	if (text[end] == ':')
		snprintf(generation, sizeof(generation), "%s", text + end + 1);
	*process = (struct gcr_tree_process){
		.pid = pid,
		.parent = parent,
		.comm = "worker",
		.has_gpu = *generation,
	};
	memcpy(process->generation, generation, sizeof(generation));
	strcpy(process->engine, *generation ? "vmm" : "");
}

static void add_tree(struct gcr_manifest *manifest, int count, char **words)
{
	if (!manifest->images_count)
		return;
	manifest->tree = least_tree(manifest);
	for (int i = 0; i < count; i++)
		if (!strncmp(words[i], "process:", strlen("process:")))
			add_process(manifest->tree, words[i]);
}

static void make(int directory_fd, const char *generation, int count, char **words)
{
	_cleanup_close_ int files_fd =
		openat(directory_fd, GCR_MANIFEST_FILES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest =
		calloc(1, sizeof(*manifest));
	_cleanup_free_ struct gcr_digest *digests = NULL;
	struct gcr_digest *next;
	struct gcr_error error;

	CHECK(manifest);
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
	for (int i = 0; i < count; i++) {
		struct gcr_extent *extent = &manifest->allocations[manifest->allocations_count];

		if (!strcmp(words[i], "launcher"))
			*manifest->engine = '\0';
		if (!strcmp(words[i], "launcher") || !strncmp(words[i], "process:", 8) ||
		    sscanf(words[i], "pid:%d", &manifest->pid) == 1)
			continue;
		*extent = parse_extent(words[i]);
		add_gpu(manifest, extent);
		manifest->allocations_count++;
	}
	CHECK(files_fd >= 0 || !manifest->allocations_count);
	digests = calloc(gcr_manifest_digests_count(manifest) + 1, sizeof(*digests));
	CHECK(digests);
	next = digests;
	for (size_t i = 0; i < manifest->allocations_count; i++) {
		digest_file(files_fd, &manifest->allocations[i], next);
		next += gcr_digest_count(manifest->allocations[i].bytes);
	}
	CHECK(!gcr_digests_write(directory_fd, generation, digests,
				 gcr_manifest_digests_count(manifest), &manifest->digests, &error));
	add_images(directory_fd, manifest);
	add_tree(manifest, count, words);
	CHECK(!gcr_manifest_write(directory_fd, manifest, &error));
}

static void seal_file(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat stat;
	char *text;

	CHECK(fd >= 0 && !fstat(fd, &stat) && stat.st_size > END_BYTES);
	text = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(text != MAP_FAILED);
	seal(text, (size_t)stat.st_size);
	munmap(text, (size_t)stat.st_size);
}

/* Prints a digest in the format of a manifest. */
static void print_digest(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[GCR_DIGEST_TEXT_BYTES];
	struct gcr_digest digest;

	CHECK(fd >= 0 && !gcr_digest_file(fd, NULL, &digest));
	gcr_digest_format(&digest, text);
	puts(text);
}

int main(int argc, char **argv)
{
	_cleanup_close_ int directory_fd = -1;

	if (argc == 3 && !strcmp(argv[1], "--digest")) {
		print_digest(argv[2]);
		return 0;
	}

	if (argc == 3 && !strcmp(argv[1], "--seal")) {
		seal_file(argv[2]);
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

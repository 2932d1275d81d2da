/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of the store: a store, its figures, a snapshot of five files, byte patterns.
 * All tests run twice: with a tmpfs of the store's own, and, as an ordinary user, with a directory
 * in /dev/shm.
 */
#ifndef GCR_TEST_STORE_H
#define GCR_TEST_STORE_H

#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/store/subtree.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/proc_cgroup.h"
#include "lib/procfs.h"
#include "test/unit/test.h"

#define MIB	      (1ull << 20)
#define PAGE	      (2 * MIB)
#define GENERATION    "0f8fad5b-d9cb-469f-a165-70867728950e"
#define GENERATION2   "1f8fad5b-d9cb-469f-a165-70867728950e"
#define NOBODY	      65534
#define PATIENCE_USEC (60 * GCR_USEC_PER_SEC)

static char directory[64];
static char runtime[96];
static struct gcr_daemon daemon_;
static struct gcr_store *store;
static uint64_t our_ticks;

static inline void start(uint64_t size, uint64_t pool)
{
	struct gcr_error error = {0};

	daemon_.options.store_bytes = size;
	daemon_.options.pool_bytes = pool;
	daemon_.options.allow_swap = 1; /* no warning on machines with swap */
	if (gcr_store_create(&daemon_, &store, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
}

static inline void stop(void)
{
	gcr_store_destroy(TAKE_PTR(store));
}

/*
 * Runs the `killed` function of run_tests() in a process that exits without cleaning up, like a
 * killed daemon.
 */
static inline void in_killed_daemon(void)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		execl("/proc/self/exe", "gpucrfs-killed", runtime, (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

static inline struct gcr_store_figures figures(void)
{
	struct gcr_store_figures found;

	gcr_store_figures(store, &found);
	return found;
}

static inline void wait_used(uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (figures().used_bytes != bytes) {
		if (gcr_clock_usec() > deadline)
			fprintf(stderr, "used %" PRIu64 ", expected %" PRIu64 "\n",
				figures().used_bytes, bytes);
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

/* Sizes of the files: three of one GPU, one of another, one managed: 8, 2, 36, 4 MiB and 12 KiB. */
static const uint64_t sizes[] = {8 * MIB, 2 * MIB, 36 * MIB, 4 * MIB, 12288};
#define COUNT	   GCR_ARRAY_SIZE(sizes)
#define FILES_COST (8 * MIB + 2 * MIB + 36 * MIB + 4 * MIB + PAGE)
#define LEFT_COST  (FILES_COST + PAGE)	   /* with the snapshot's table */
#define COST	   (FILES_COST + 3 * PAGE) /* with the table and the metadata */

static inline void fill_extents(struct gcr_extent *extents)
{
	memset(extents, 0, COUNT * sizeof(*extents));
	for (size_t i = 0; i < COUNT; i++) {
		extents[i].address = 0x7f3a40000000 + i * (1ull << 30);
		extents[i].bytes = sizes[i];
		extents[i].id = i + 1;
		extents[i].kind = i == 4 ? GCR_MEMORY_MANAGED : GCR_MEMORY_DEVICE;
		extents[i].gpu_index = i == 3;
	}
	extents[1].address = 0; /* a handle that is not mapped */
}

static inline struct gcr_snapshot *create(pid_t pid, const char *generation)
{
	struct gcr_extent extents[COUNT];
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};

	fill_extents(extents);
	if (gcr_snapshot_create(store, pid, pid == getpid() ? our_ticks : 77, generation, extents,
				COUNT, &snapshot, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return snapshot;
}

static inline int try_create(pid_t pid, uint64_t bytes, struct gcr_snapshot **ret,
			     struct gcr_error *error)
{
	struct gcr_extent extent = {.address = PAGE, .bytes = bytes, .kind = GCR_MEMORY_DEVICE};

	*error = (struct gcr_error){0};
	return gcr_snapshot_create(store, pid, 77, GENERATION, &extent, 1, ret, error);
}

/* The 8-byte word at offset @at of a file; each @seed gives another pattern. */
UNSEEN static inline uint64_t pattern(uint64_t at, unsigned char seed)
{
	return at * UINT64_C(0x9e3779b97f4a7c15) + seed;
}

UNSEEN static inline void write_pattern(struct gcr_snapshot *snapshot, size_t index,
					unsigned char seed)
{
	_cleanup_close_ int fd = gcr_snapshot_open_file(snapshot, index, true);
	uint64_t bytes = gcr_snapshot_extent(snapshot, index)->bytes;
	uint64_t *map;

	CHECK(fd >= 0);
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	for (uint64_t at = 0; at < bytes; at += sizeof(*map))
		map[at / sizeof(*map)] = pattern(at, seed);
	munmap(map, bytes);
}

UNSEEN static inline bool has_pattern(struct gcr_subtree_file *reader, uint64_t bytes,
				      unsigned char seed)
{
	bool is_right = true;

	for (uint64_t at = 0; at < bytes && is_right;) {
		struct gcr_subtree_bytes piece;
		const uint64_t *words;

		CHECK(!gcr_subtree_read(reader, at, 100000, &piece));
		CHECK(piece.size && piece.size <= 100000 && piece.size % sizeof(*words) == 0);
		words = piece.bytes;
		for (size_t i = 0; i < piece.size / sizeof(*words); i++, at += sizeof(*words))
			is_right &= words[i] == pattern(at, seed);
		gcr_subtree_read_done(reader, &piece);
	}
	return is_right;
}

/* Opens file @index as a user does: by name, through lookups. */
static inline int open_outside(struct gcr_snapshot *snapshot, size_t index, int flags,
			       struct gcr_subtree_file **ret_file)
{
	struct gcr_subtree *subtree = gcr_snapshot_subtree(snapshot);
	struct gcr_subtree_entry vram;
	struct gcr_subtree_entry file;
	char name[GCR_EXTENT_NAME_BYTES];
	int result;

	gcr_extent_name(gcr_snapshot_extent(snapshot, index), name);
	result = gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "vram", &vram);
	if (result < 0)
		return result;
	result = gcr_subtree_lookup(subtree, vram.item, name, &file);
	if (!result) {
		result = gcr_subtree_open(subtree, file.item, flags, ret_file);
		gcr_subtree_forget(subtree, file.item, 1);
	}
	gcr_subtree_forget(subtree, vram.item, 1);
	return result;
}

/* Unlinks the name of file @index as a user does. */
UNSEEN static inline void remove_file(struct gcr_snapshot *snapshot, size_t index)
{
	struct gcr_subtree *subtree = gcr_snapshot_subtree(snapshot);
	char name[GCR_EXTENT_NAME_BYTES];
	struct gcr_subtree_entry vram;

	gcr_extent_name(gcr_snapshot_extent(snapshot, index), name);
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "vram", &vram));
	CHECK(!gcr_subtree_remove(subtree, vram.item, name, false));
	gcr_subtree_forget(subtree, vram.item, 1);
}

static inline size_t read_size(struct gcr_subtree_file *reader, uint64_t offset, size_t size)
{
	struct gcr_subtree_bytes piece;

	CHECK(!gcr_subtree_read(reader, offset, size, &piece));
	size = piece.size;
	gcr_subtree_read_done(reader, &piece);
	return size;
}

static inline void check_pattern(struct gcr_snapshot *snapshot, size_t index, unsigned char seed)
{
	uint64_t bytes = gcr_snapshot_extent(snapshot, index)->bytes;
	struct gcr_subtree_file *reader;

	CHECK(!open_outside(snapshot, index, O_RDONLY, &reader));
	CHECK(has_pattern(reader, bytes, seed));
	CHECK(read_size(reader, bytes, 1) == 0);
	CHECK(read_size(reader, bytes + 5, 1) == 0);
	CHECK(read_size(reader, bytes - 1, 10) == 1);
	CHECK(gcr_subtree_seek(reader, 0, SEEK_DATA) == 0);
	CHECK(gcr_subtree_seek(reader, 0, SEEK_HOLE) == (int64_t)bytes);
	CHECK(gcr_subtree_seek(reader, (int64_t)bytes, SEEK_DATA) == -ENXIO);
	gcr_subtree_close(reader);
}

/* Bytes of memory that the files of the snapshot have allocated. */
static inline uint64_t resident(const struct gcr_snapshot *snapshot)
{
	uint64_t bytes = 0;
	struct stat stat;

	for (size_t i = 0; i < gcr_snapshot_count(snapshot); i++) {
		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		bytes += (uint64_t)stat.st_blocks * 512;
	}
	return bytes;
}

/* Waits until the store has allocated the memory of all files. */
static inline void wait_populated(const struct gcr_snapshot *snapshot)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (resident(snapshot) < gcr_snapshot_bytes(snapshot) || figures().pending_bytes) {
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

/* Waits until a removal has failed and is queued for a retry. */
static inline void wait_left_removal(void)
{
	bool has_failed = false;

	while (!has_failed) {
		usleep(1000);
		pthread_mutex_lock(&store->lock);
		has_failed = store->left_removals;
		pthread_mutex_unlock(&store->lock);
	}
}

/* The directory of the store must have been removed. */
static inline void check_gone(void)
{
	struct stat stat;
	char path[128];

	snprintf(path, sizeof(path), "%s/store", runtime);
	CHECK(lstat(path, &stat) < 0 && errno == ENOENT);
}

static inline void prepare(void)
{
	struct gcr_proc_stat stat;

	CHECK(!gcr_proc_stat(getpid(), &stat));
	our_ticks = stat.start_ticks;
	daemon_.options.runtime_directory = runtime;
	daemon_.options.store_bytes = 16 * MIB;
	daemon_.runtime_fd = open(runtime, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(daemon_.runtime_fd >= 0);
}

static inline void run_all(void (*tests)(void))
{
	snprintf(runtime, sizeof(runtime), "%s/%u", directory, (unsigned int)geteuid());
	CHECK(!mkdir(runtime, 0700));
	prepare();
	tests();
	check_gone();
	close(daemon_.runtime_fd);
	CHECK(!rmdir(runtime));
}

/* For main(). @killed runs in a process that exits without cleaning up, see in_killed_daemon(). */
static inline int run_tests(char **argv, void (*tests)(void), void (*killed)(void))
{
	const char *parent = getenv("TMPDIR");
	int status = 0;
	pid_t pid;

	if (!strcmp(argv[0], "gpucrfs-killed")) {
		snprintf(runtime, sizeof(runtime), "%s", argv[1]);
		prepare();
		killed();
		_exit(0);
	}
	snprintf(directory, sizeof(directory), "%s/gcr-store-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory));
	if (geteuid() == 0) {
		CHECK(!chmod(directory, 01777));
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			CHECK(!setgroups(0, NULL) && !setgid(NOBODY) && !setuid(NOBODY));
			if (access("/dev/shm", W_OK) < 0)
				exit(77);
			run_all(tests);
			exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
		CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
	}
	run_all(tests);
	CHECK(!rmdir(directory));
	if (status)
		SKIP("an ordinary user has no /dev/shm to write to");
	return 0;
}

#endif

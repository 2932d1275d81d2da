/* SPDX-License-Identifier: MIT */
/* The store: files that were made before the daemon began, and that a process may have mapped. */
#include <stdatomic.h>
#include <sys/syscall.h>

#include "fs/store/inodes.h"
#include "fs/store/store_private.h"
#include "test/unit/store/mapped.h"

static atomic_bool has_no_btime; /* the file system does not record when a file was made */
static atomic_int set_back_sec;	 /* the clock has been set back by so many seconds */

int statx(int parent_fd, const char *path, int flags, unsigned int mask, struct statx *ret_statx)
{
	int result = (int)syscall(SYS_statx, parent_fd, path, flags, mask, ret_statx);

	if (!result && atomic_load(&has_no_btime))
		ret_statx->stx_mask &= ~STATX_BTIME;
	return result;
}

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	int result = (int)syscall(SYS_clock_gettime, clock, ret_time);

	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
		ret_time->tv_sec -= atomic_load(&set_back_sec);
	return result;
}

/*
 * When such a file is removed, the memory from before the daemon's start stays, for processes that
 * may have it mapped; memory allocated since is freed. A file that had holes was not passed to the
 * kernel, so no process has it mapped.
 */
static void test_grown_since(bool had_holes)
{
	uint64_t bytes = 8 * MIB;
	_cleanup_free_ uint64_t *words = malloc(2 * bytes);
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	uint64_t *map;

	start(256 * MIB, 0);
	if (had_holes)
		CHECK(!try_create(1, bytes, &snapshot, &error));
	else
		snapshot = create_finished(bytes);
	gcr_inodes_begin();
	CHECK(words);
	for (uint64_t at = 0; at < 2 * bytes; at += sizeof(*words))
		words[at / sizeof(*words)] = pattern(at, 7);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(gcr_subtree_write(file, words, 2 * bytes, 0) == (ssize_t)(2 * bytes));
	gcr_subtree_close(file);
	{
		_cleanup_close_ int fd = gcr_snapshot_open_file(snapshot, 0, false);

		CHECK(!open_outside(snapshot, 0, O_RDONLY, &file) && gcr_subtree_pass(file));
		map = mmap(NULL, 2 * bytes, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(fd >= 0 && map != MAP_FAILED);
	}
	gcr_subtree_close(file);
	remove_file(snapshot, 0);
	CHECK(has_bytes(map, bytes) == !had_holes);
	CHECK(!has_bytes(map, bytes + PAGE) && !has_bytes(map, 2 * bytes));
	CHECK(!munmap(map, 2 * bytes));
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* The same if this daemon has never passed the file, or if the file has not become longer. */
static void test_allocated_since(int mode, bool passes)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot;
	_cleanup_close_ int fd = -1;
	struct stat stat;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	map = map_outside(snapshot, NULL);
	fd = gcr_snapshot_open_file(snapshot, 0, false);
	gcr_inodes_begin();
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_subtree_allocate(file, mode, bytes, 64 * MIB));
	gcr_subtree_close(file);
	if (passes) {
		CHECK(!open_outside(snapshot, 0, O_RDONLY, &file) && gcr_subtree_pass(file));
		gcr_subtree_close(file);
	}
	CHECK(memory_of(snapshot) == bytes + 64 * MIB);
	remove_file(snapshot, 0);
	CHECK(!fstat(fd, &stat) && (uint64_t)stat.st_blocks * 512 == bytes);
	CHECK(has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* A file that is empty now may have been longer, and be mapped at that length. */
static void test_emptied_since(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	gcr_inodes_begin();
	for (int again = 0; again < 2; again++) {
		CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
		CHECK(!gcr_subtree_truncate(file, 0));
		if (again)
			CHECK(!gcr_subtree_truncate(file, bytes));
		gcr_subtree_close(file);
	}
	CHECK(memory_of(snapshot) == bytes);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* The same if the earlier daemon's clock was ahead of this one's. */
static void test_clock_set_back(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	void *map;

	for (int is_set_back = 0; is_set_back < 2; is_set_back++) {
		start(256 * MIB, 0);
		gcr_snapshot_unref(create_finished(bytes));
		stop();
		atomic_store(&set_back_sec, is_set_back * 3600);
		start(256 * MIB, 0);
		CHECK(!gcr_snapshot_open(store, 1, 77, GENERATION, &snapshot, &error));
		map = map_outside(snapshot, NULL);
		gcr_snapshot_discard(snapshot);
		wait_used(0);
		CHECK(has_bytes(map, bytes));
		CHECK(!munmap(map, bytes));
		stop();
		atomic_store(&set_back_sec, 0);
	}
}

/*
 * Holes are not punched in a file that may be mapped. Without birth times the kernel has passed no
 * file, and holes are punched.
 */
static void test_punched_since(bool without_times)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	gcr_inodes_begin();
	atomic_store(&has_no_btime, without_times);
	punch(snapshot, bytes);
	CHECK(memory_of(snapshot) == (without_times ? 0 : bytes));
	atomic_store(&has_no_btime, false);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

static void test_all(void)
{
	for (int yes = 0; yes < 2; yes++) {
		test_grown_since(yes);
		test_punched_since(yes);
	}
	test_allocated_since(0, false);
	test_allocated_since(FALLOC_FL_KEEP_SIZE, false);
	test_allocated_since(FALLOC_FL_KEEP_SIZE, true);
	test_emptied_since();
	test_clock_set_back();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, NULL);
}

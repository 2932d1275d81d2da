/* SPDX-License-Identifier: MIT */
/*
 * The pool of the store: for which process its files are ready, when they are removed, and that the
 * sums are right.
 */
#include <dirent.h>

#include "test/unit/store/store.h"

static void wait_pool(uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (figures().pool_bytes != bytes) {
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

/*
 * Waits until all files of the pool have their pages, @bytes in all, so that a snapshot made of
 * them has them too.
 */
static void wait_filled(struct gcr_snapshot *any, uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;
	uint64_t found = 0;

	while (found < bytes) {
		int fd = openat(gcr_snapshot_directory(any), "../../../pool",
				O_RDONLY | O_DIRECTORY);
		_cleanup_closedir_ DIR *dir = fdopendir(fd);
		const struct dirent *entry;
		struct stat stat;

		CHECK(dir && gcr_clock_usec() < deadline);
		found = 0;
		while ((entry = readdir(dir)))
			if (entry->d_type == DT_REG && !fstatat(fd, entry->d_name, &stat, 0))
				found += (uint64_t)stat.st_blocks * 512;
		usleep(1000);
	}
}

static void test_pool(void)
{
	struct gcr_extent extents[COUNT];
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *other;
	struct gcr_subtree_file *reader;
	struct gcr_error error;
	struct stat stat;

	fill_extents(extents);
	start(256 * MIB, 128 * MIB);
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	wait_pool(FILES_COST);
	CHECK(figures().used_bytes == FILES_COST);
	/* The same request again changes nothing. */
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	CHECK(figures().pool_bytes == FILES_COST);
	/* The freeze of another process takes none of the files. */
	other = create(4711, GENERATION);
	CHECK(figures().used_bytes == FILES_COST + COST && resident(other) == 0);
	wait_filled(other, FILES_COST - PAGE + 12288);
	gcr_snapshot_discard(other);
	wait_used(FILES_COST);
	/* The freeze of the process itself takes all of them. */
	snapshot = create(getpid(), GENERATION);
	CHECK(figures().pool_bytes == 0 && figures().used_bytes == COST);
	CHECK(resident(snapshot) >= gcr_snapshot_bytes(snapshot));
	gcr_snapshot_populate(snapshot);
	wait_populated(snapshot);
	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)i);
	/*
	 * A file that is being read during the thaw does not return to the pool, nor does one that
	 * the program has had. The others do.
	 */
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &reader));
	gcr_snapshot_discard(snapshot);
	wait_pool(FILES_COST - PAGE - 8 * MIB);
	wait_used(FILES_COST - PAGE);
	/*
	 * The next freeze takes these files at once, unchanged or truncated; no file is extended.
	 */
	extents[0].bytes = 16 * MIB;
	extents[3].bytes = 2 * MIB;
	CHECK(!gcr_snapshot_create(store, getpid(), our_ticks, GENERATION2, extents, COUNT,
				   &snapshot, &error));
	CHECK(figures().pool_bytes == 0);
	wait_used(COST + 8 * MIB - 2 * MIB + 8 * MIB); /* with the file that is still read */
	for (size_t i = 0; i < COUNT; i++) {
		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		CHECK((uint64_t)stat.st_size == extents[i].bytes);
		CHECK(!stat.st_blocks || stat.st_blocks * 512 >= stat.st_size);
	}
	gcr_snapshot_populate(snapshot);
	wait_populated(snapshot);
	CHECK(has_pattern(reader, 8 * MIB, 0));
	gcr_subtree_close(reader);
	gcr_snapshot_discard(snapshot);

	/* The program's allocations have changed: files that no longer fit are removed. */
	gcr_store_pool(store, getpid(), our_ticks, extents, 2);
	wait_pool(16 * MIB + 2 * MIB);
	wait_used(18 * MIB);
	/*
	 * The process has more than -o pool= allows: the pool has files for the first allocations
	 * that fit.
	 */
	for (size_t i = 0; i < COUNT; i++)
		extents[i].bytes = 60 * MIB;
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	wait_pool(120 * MIB);
	/* The store is short of room: the pool is given up first, also that of other processes. */
	CHECK(!try_create(4711, 200 * MIB, &other, &error));
	CHECK(figures().pool_bytes <= 54 * MIB && figures().used_bytes <= 256 * MIB);
	CHECK(try_create(4712, 60 * MIB, &snapshot, &error) == -ENOSPC);
	CHECK(figures().pool_bytes == 0);
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	CHECK(figures().pool_bytes == 0); /* the store has no room */
	gcr_snapshot_discard(other);
	/* The pool is filled as soon as there is room. */
	wait_pool(120 * MIB);
	gcr_store_pool_drop(store, getpid(), our_ticks);
	wait_used(0);
	gcr_store_pool_drop(store, getpid(), our_ticks);
	/* The files of an ended process do not return to the pool. */
	snapshot = create(4711, GENERATION);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(figures().pool_bytes == 0);
	/* stop() removes the pool that is left. */
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	stop();
}

static void *freeze_and_thaw(void *data)
{
	const char *generation = data;

	for (int round = 0; round < 30; round++) {
		struct gcr_snapshot *snapshot;
		struct gcr_extent extent = {
			.address = PAGE,
			.bytes = (uint64_t)(round % 7 + 1) * 4 * MIB,
			.kind = GCR_MEMORY_DEVICE,
		};
		struct gcr_error error;

		if (gcr_snapshot_create(store, getpid(), our_ticks, generation, &extent, 1,
					&snapshot, &error) < 0)
			continue;
		gcr_snapshot_populate(snapshot);
		write_pattern(snapshot, 0, (unsigned char)round);
		check_pattern(snapshot, 0, (unsigned char)round);
		gcr_snapshot_discard(snapshot);
	}
	return NULL;
}

/*
 * A process can have become root's after its pool files were made for a user: the files are not
 * reused with that owner.
 */
static void test_pool_of_another_user(void)
{
	struct gcr_extent extents[COUNT];
	struct gcr_snapshot *snapshot, *other;
	const struct dirent *entry;
	struct stat stat;
	DIR *dir;

	if (geteuid())
		return;
	fill_extents(extents);
	start(256 * MIB, 128 * MIB);
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	wait_pool(FILES_COST);
	other = create(4711, GENERATION);
	wait_filled(other, FILES_COST - PAGE + 12288);
	gcr_snapshot_discard(other);
	dir = fdopendir(dup(store->pool_fd));
	CHECK(dir);
	while ((entry = readdir(dir)))
		if (entry->d_type == DT_REG)
			CHECK(!fchownat(dirfd(dir), entry->d_name, NOBODY, NOBODY, 0));
	closedir(dir);
	snapshot = create(getpid(), GENERATION);
	CHECK(!figures().pool_bytes);
	for (size_t i = 0; i < COUNT; i++)
		CHECK(!gcr_snapshot_stat(snapshot, i, &stat) && !stat.st_uid && !stat.st_gid);
	gcr_snapshot_discard(snapshot);
	gcr_store_pool_drop(store, getpid(), our_ticks);
	wait_used(0);
	stop();
}

/* Pools change while threads freeze and thaw; the sums are right at the end. */
static void test_pool_in_parallel(void)
{
	static char generations[3][40] = {GENERATION, GENERATION2, "2"};
	pthread_t threads[3];

	start(96 * MIB, 64 * MIB);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, freeze_and_thaw, generations[i]));
	for (int round = 0; round < 200; round++) {
		struct gcr_extent extents[4] = {0};

		for (size_t i = 0; i < 4; i++)
			extents[i].bytes = ((i + (size_t)round) % 5 + 1) * 4 * MIB;
		gcr_store_pool(store, getpid(), our_ticks, extents, (size_t)round % 5);
		if (round % 20 == 19)
			gcr_store_pool_drop(store, getpid(), our_ticks);
		CHECK(figures().used_bytes <= 96 * MIB);
		usleep(1000);
	}
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	gcr_store_pool_drop(store, getpid(), our_ticks);
	wait_used(0);
	stop();
}

static void test_all(void)
{
	test_pool();
	test_pool_of_another_user();
	test_pool_in_parallel();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, NULL);
}

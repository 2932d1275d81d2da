/* SPDX-License-Identifier: MIT */
/* The store: files of a snapshot, promised memory, and obstacles at the start. */
#include <sys/mount.h>
#include <sys/statfs.h>

#include "fs/store/store_private.h"
#include "test/unit/store/store.h"

static void test_files(void)
{
	struct gcr_snapshot *snapshot;
	struct stat stat;

	start(256 * MIB, 0);
	CHECK(figures().size_bytes == 256 * MIB && figures().used_bytes == 0);
	snapshot = create(getpid(), GENERATION);
	CHECK(figures().used_bytes == COST && figures().pool_bytes == 0);
	/* The table has been written. */
	CHECK(figures().pending_bytes <= COST && figures().pending_bytes >= FILES_COST);
	CHECK(gcr_snapshot_count(snapshot) == COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		char name[GCR_EXTENT_NAME_BYTES];

		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		CHECK((uint64_t)stat.st_size == sizes[i] && stat.st_blocks == 0);
		CHECK(stat.st_nlink == 1 && (stat.st_mode & 07777) == 0600);
		gcr_extent_name(gcr_snapshot_extent(snapshot, i), name);
		CHECK(!fstatat(gcr_snapshot_directory(snapshot), name, &stat, 0));
	}

	gcr_snapshot_populate(snapshot);
	gcr_snapshot_populate(snapshot);
	wait_populated(snapshot);
	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)i);
	for (size_t i = 0; i < COUNT; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	CHECK(figures().used_bytes == COST);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/*
 * A finished snapshot is complete, with or without holes: later callers need not examine its files
 * again.
 */
static void test_finished(void)
{
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 0);
	snapshot = create(getpid(), GENERATION);
	write_pattern(snapshot, 0, 1);
	CHECK(figures().pending_bytes >= FILES_COST - sizes[0] && !snapshot->has_pages);
	gcr_snapshot_finish(snapshot);
	CHECK(!figures().pending_bytes && snapshot->has_pages);
	CHECK(figures().used_bytes < COST);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* Populating never changes bytes that another thread writes at the same time. */
static void test_populate_and_write(void)
{
	for (int round = 0; round < 3; round++) {
		struct gcr_snapshot *snapshot;

		start(256 * MIB, 0);
		snapshot = create(getpid(), GENERATION);
		gcr_snapshot_populate(snapshot);
		for (size_t i = 0; i < COUNT; i++)
			write_pattern(snapshot, COUNT - 1 - i, (unsigned char)(i + 3));
		wait_populated(snapshot);
		for (size_t i = 0; i < COUNT; i++)
			check_pattern(snapshot, COUNT - 1 - i, (unsigned char)(i + 3));
		gcr_snapshot_discard(snapshot);
		stop();
	}
}

static void test_populate_then_stop(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;

	start(2048 * MIB, 0);
	for (int round = 0; round < 5; round++) {
		CHECK(!try_create(1, 1024 * MIB, &snapshot, &error));
		gcr_snapshot_populate(snapshot);
		gcr_snapshot_discard(snapshot);
		wait_used(0);
	}
	/*
	 * Stopping works too while threads populate, and with a snapshot that stays in the store.
	 */
	CHECK(!try_create(1, 1024 * MIB, &snapshot, &error));
	gcr_snapshot_populate(snapshot);
	gcr_snapshot_unref(snapshot);
	stop();
	start(2048 * MIB, 0);
	CHECK(figures().used_bytes >= PAGE && figures().used_bytes <= 1024 * MIB + PAGE);
	gcr_store_sweep(store);
	wait_used(0);
	stop();
}

/* Starts a store without the reserve for packing, so that every caller can use all of it. */
static void start_without_reserve(uint64_t size)
{
	start(size, 0);
	store->reserve_bytes = 0;
}

/*
 * A change waits for memory that is being removed, but with a time limit, and not once its own tree
 * is closed.
 */
static void test_room(void)
{
	const struct gcr_tree_sum nothing = {0};
	struct gcr_room *room;

	start_without_reserve(64 * MIB);
	CHECK(!gcr_room_create(store, 0, &nothing, 0, &room));
	CHECK(!gcr_room_take(room, 0, 60 * MIB));
	CHECK(gcr_room_take(room, 0, 8 * MIB) == -ENOSPC);
	pthread_mutex_lock(&store->lock);
	store->removing = true; /* a removal that takes long */
	pthread_mutex_unlock(&store->lock);
	CHECK(gcr_room_take(room, 0, 8 * MIB) == -ENOSPC);
	CHECK(!gcr_room_take(room, 0, 2 * MIB));
	gcr_room_close(room);
	CHECK(gcr_room_take(room, 0, 8 * MIB) == -ESTALE);
	pthread_mutex_lock(&store->lock);
	store->removing = false;
	pthread_mutex_unlock(&store->lock);
	gcr_room_recount(room, 62 * MIB, 0, 0);
	gcr_room_destroy(room);
	stop();
}

/* Directory entries are charged as memory too, and their number is limited. */
static void test_entries(void)
{
	struct gcr_tree_sum sum = {.bytes = 8 * MIB, .entries = 1024};
	struct gcr_room *room;
	uint64_t count = 0;

	start_without_reserve(64 * MIB);
	CHECK(!gcr_room_create(store, 0, &sum, 0, &room));
	CHECK(figures().used_bytes == 8 * MIB);
	while (!gcr_room_add_entry(room, 0))
		count++;
	CHECK(count == 56 * MIB / 4096 && figures().used_bytes == 64 * MIB);
	CHECK(gcr_room_take(room, 0, 4096) == -ENOSPC);
	for (uint64_t i = 0; i < count + 1024; i++)
		gcr_room_remove_entry(room);
	CHECK(gcr_room_resident_bytes(room) == 8 * MIB);
	gcr_room_trim(room);
	CHECK(figures().used_bytes == 8 * MIB);
	gcr_room_destroy(room);
	stop();

	start(8192 * MIB, 0);
	sum.entries = GCR_ROOM_ENTRIES_MAX;
	CHECK(!gcr_room_create(store, 0, &sum, 0, &room));
	CHECK(!gcr_room_add_entry(room, 0));
	for (count = 1; count < 5000 && !gcr_room_add_entry(room, 0); count++)
		;
	CHECK(count < 5000);
	gcr_room_destroy(room);
	stop();
}

static void check_inodes(void)
{
	struct statfs statfs;

	CHECK(!fstatfs(store->fd, &statfs) && !statfs.f_files);
}

/*
 * The number of inodes is limited by memory alone, also in a store that an earlier daemon mounted.
 */
static void test_inodes(void)
{
	char path[128];

	start(64 * MIB, 0);
	if (!store->mountpoint) { /* a directory in a mount of another owner */
		stop();
		return;
	}
	check_inodes();
	stop();
	snprintf(path, sizeof(path), "%s/store", runtime);
	CHECK(!mkdir(path, 0700));
	CHECK(!mount("test", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		     "mode=0700,size=64M,nr_inodes=1000"));
	start(64 * MIB, 0);
	check_inodes();
	stop();
}

static void test_full(void)
{
	struct gcr_snapshot *first;
	struct gcr_snapshot *second;
	struct gcr_subtree_file *reader;
	struct gcr_error error;

	start_without_reserve(64 * MIB);
	CHECK(try_create(1, 64 * MIB, &first, &error) == -ENOSPC && error.number == ENOSPC);
	CHECK(strstr(error.words, "70 MiB more are needed, 64 of its 64 MiB are free"));
	CHECK(figures().used_bytes == 0);
	CHECK(!try_create(1, 40 * MIB, &first, &error));
	CHECK(try_create(2, 22 * MIB, &second, &error) == -ENOSPC);
	CHECK(strstr(error.words, "28 MiB more are needed, 18 of its 64 MiB are free"));
	CHECK(figures().used_bytes == 46 * MIB);
	/* The failed attempts have left nothing behind: a smaller snapshot still fits. */
	CHECK(!try_create(2, 12 * MIB, &second, &error));
	CHECK(figures().used_bytes == 64 * MIB);
	gcr_snapshot_discard(second);
	/* Creation waits for memory that is being freed. */
	CHECK(!try_create(2, 12 * MIB, &second, &error));
	gcr_snapshot_discard(second);
	wait_used(46 * MIB);

	/* A removed file that a reader still has open is charged until it is closed. */
	write_pattern(first, 0, 9);
	CHECK(!open_outside(first, 0, O_RDONLY, &reader));
	gcr_snapshot_ref(first);
	gcr_snapshot_discard(first);
	wait_used(40 * MIB);
	CHECK(try_create(2, 30 * MIB, &second, &error) == -ENOSPC);
	CHECK(has_pattern(reader, 40 * MIB, 9));
	gcr_subtree_close(reader);
	CHECK(figures().used_bytes == 0);
	CHECK(open_outside(first, 0, O_RDONLY, &reader) == -ESTALE);
	gcr_snapshot_unref(first);
	CHECK(!try_create(2, 30 * MIB, &second, &error));
	gcr_snapshot_discard(second);
	stop();
}

/* A snapshot larger than the machine's memory, in a store whose size would allow it. */
static void test_host_memory(void)
{
	uint64_t room;
	_cleanup_free_ char *what = NULL;
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *second;
	struct gcr_error error;
	int result;

	CHECK(!gcr_proc_memory_room(getpid(), &room, &what));
	room = room / PAGE * PAGE;
	start(2 * room, 0);
	result = try_create(1, room, &snapshot, &error);
	/*
	 * Without a tmpfs of its own, the store is limited by the size of the mount below it,
	 * perhaps half of the memory.
	 */
	CHECK(result == -ENOMEM || result == -ENOSPC);
	CHECK(result != -ENOMEM || strstr(error.words, what));
	CHECK(figures().used_bytes == 0);
	if (result == -ENOMEM) {
		/* Two snapshots that fit one at a time; the first has not taken its memory yet. */
		CHECK(!try_create(1, room / PAGE * 2 / 3 * PAGE, &snapshot, &error));
		CHECK(figures().pending_bytes >= room / 2);
		result = try_create(2, room / PAGE * 2 / 3 * PAGE, &second, &error);
		CHECK(result == -ENOMEM || (geteuid() && result == -ENOSPC));
		gcr_snapshot_discard(snapshot);
	}
	stop();
}

struct creator {
	pthread_t thread;
	pid_t pid;
	int succeeded;
};

static void *create_many(void *data)
{
	struct creator *creator = data;

	for (int round = 0; round < 50; round++) {
		struct gcr_snapshot *snapshot;
		struct gcr_error error;
		int result = try_create(creator->pid, 20 * MIB, &snapshot, &error);

		CHECK(!result || result == -ENOSPC);
		CHECK(figures().used_bytes <= 64 * MIB);
		if (result)
			continue;
		creator->succeeded++;
		if (round % 2)
			gcr_snapshot_populate(snapshot);
		gcr_snapshot_discard(snapshot);
	}
	return NULL;
}

/* Four threads create snapshots; the store has room for two at a time. */
static void test_parallel(void)
{
	struct creator creators[4];
	int succeeded = 0;

	start_without_reserve(64 * MIB);
	for (int i = 0; i < 4; i++) {
		creators[i] = (struct creator){.pid = i + 1};
		CHECK(!pthread_create(&creators[i].thread, NULL, create_many, &creators[i]));
	}
	for (int i = 0; i < 4; i++) {
		CHECK(!pthread_join(creators[i].thread, NULL));
		succeeded += creators[i].succeeded;
	}
	CHECK(succeeded >= 4);
	wait_used(0);
	stop();
}

static void test_nothing(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;

	start(256 * MIB, 64 * MIB);
	CHECK(!gcr_snapshot_create(store, getpid(), our_ticks, GENERATION, NULL, 0, &snapshot,
				   &error));
	CHECK(gcr_snapshot_count(snapshot) == 0 && gcr_snapshot_bytes(snapshot) == 0);
	gcr_snapshot_populate(snapshot);
	gcr_snapshot_unref(snapshot);
	CHECK(!gcr_snapshot_open(store, getpid(), our_ticks, GENERATION, &snapshot, &error));
	/* The same snapshot cannot be created twice. */
	CHECK(gcr_snapshot_create(store, getpid(), our_ticks, GENERATION, NULL, 0,
				  &(struct gcr_snapshot *){NULL}, &error) == -EEXIST);
	CHECK(figures().used_bytes == 3 * PAGE);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* The daemon refuses to start if the store's path is a link or another file system. */
static void test_refusals(void)
{
	struct gcr_error error = {0};
	char path[128];

	check_gone();
	if (geteuid())
		return;
	snprintf(path, sizeof(path), "%s/store", runtime);
	CHECK(!symlink("/tmp", path));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -ENOTDIR && strstr(error.words, path));
	CHECK(!unlink(path) && !mkdir(path, 0700));
	CHECK(!mount("x", path, "tmpfs", 0, "mode=0755"));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -EPERM);
	CHECK(!umount(path) && !mount("x", path, "tmpfs", 0, "mode=0700,uid=65534"));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -EPERM);
	CHECK(!umount(path) && !mount("proc", path, "proc", 0, NULL));
	CHECK(gcr_store_create(&daemon_, &store, &error) < 0);
	CHECK(!umount(path));
	/* An empty directory left by an earlier daemon is accepted. */
	start_without_reserve(16 * MIB);
	stop();
	check_gone();
}

static void test_all(void)
{
	test_refusals();
	test_files();
	test_finished();
	test_populate_and_write();
	test_populate_then_stop();
	test_room();
	test_entries();
	test_inodes();
	test_full();
	test_host_memory();
	test_parallel();
	test_nothing();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, NULL);
}

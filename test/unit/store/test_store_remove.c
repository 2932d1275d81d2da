/* SPDX-License-Identifier: MIT */
/*
 * The store: files that are removed while they are mapped, open, or have another name; removals
 * that fail.
 */
#include <dirent.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "fs/base/digest_buffer.h"
#include "fs/store/store_private.h"
#include "test/unit/store/mapped.h"

/* ---- calls that fail ---- */

static atomic_bool has_no_memory;     /* removing a directory fails */
static atomic_bool has_no_descriptor; /* finding out whether a name is the last one fails */

int openat(int parent_fd, const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	if (atomic_load(&has_no_descriptor) && flags & O_PATH) {
		errno = EMFILE;
		return -1;
	}
	return (int)syscall(SYS_openat, parent_fd, path, flags, mode);
}

int unlinkat(int parent_fd, const char *path, int flags)
{
	if (atomic_load(&has_no_memory) && flags & AT_REMOVEDIR) {
		errno = ENOMEM;
		return -1;
	}
	return (int)syscall(SYS_unlinkat, parent_fd, path, flags);
}

static atomic_uint_least64_t most_used; /* highest figure while a file's memory is freed */

int truncate(const char *path, off_t bytes)
{
	uint64_t used = figures().used_bytes;

	if (used > atomic_load(&most_used))
		atomic_store(&most_used, used);
	return (int)syscall(SYS_truncate, path, bytes);
}

/* ---- removals that fail ---- */

/* A tree that cannot be removed stays counted, and the removal is retried. */
static void test_removed_in_the_end(void)
{
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 0);
	snapshot = create(getpid(), GENERATION);
	atomic_store(&has_no_memory, true);
	gcr_snapshot_discard(snapshot);
	wait_left_removal();
	CHECK(figures().used_bytes);
	atomic_store(&has_no_memory, false);
	wait_used(0);
	stop();
	/* At the end there is no retry: the next daemon removes the tree. */
	start(256 * MIB, 0);
	atomic_store(&has_no_memory, true);
	gcr_snapshot_discard(create(getpid(), GENERATION));
	stop();
	atomic_store(&has_no_memory, false);
	start(256 * MIB, 0);
	CHECK(!figures().used_bytes);
	stop();
}

/* ---- mapped files ---- */

enum going {
	WITH_SNAPSHOT,	       /* as a thaw does */
	WITH_TOUCHED_SNAPSHOT, /* after a user has made a directory in it */
	REMOVED,
	REMOVED_WHILE_OPEN,
	OPEN_WITH_SNAPSHOT,
	GOINGS_COUNT,
};

/* A user makes a directory in the snapshot. */
static void touch(struct gcr_snapshot *snapshot)
{
	struct gcr_subtree_entry made;

	CHECK(!gcr_subtree_mkdir(gcr_snapshot_subtree(snapshot), GCR_SUBTREE_ROOT, "made", 0700,
				 geteuid(), getegid(), &made));
	CHECK(snapshot->is_touched);
}

/* A file that the store cannot examine is not removed, and stays counted, until it can be. */
static void test_mapped_without_descriptors(bool is_touched)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *snapshot;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	map = map_outside(snapshot, NULL);
	if (is_touched)
		touch(snapshot);
	atomic_store(&has_no_descriptor, true);
	gcr_snapshot_discard(snapshot);
	wait_left_removal();
	CHECK(figures().used_bytes >= bytes && has_bytes(map, bytes));
	atomic_store(&has_no_descriptor, false);
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	stop();
}

/*
 * A mapping alone keeps no memory of a removed file. An open descriptor does, and the memory stays
 * counted.
 */
static void test_mapped(enum going going)
{
	bool is_open = going == REMOVED_WHILE_OPEN || going == OPEN_WITH_SNAPSHOT;
	uint64_t bytes = 8 * MIB;
	uint64_t before;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	map = map_outside(snapshot, is_open ? &file : NULL);
	if (going == WITH_TOUCHED_SNAPSHOT)
		touch(snapshot);
	CHECK(has_bytes(map, bytes));
	before = figures().used_bytes;
	atomic_store(&most_used, 0);
	if (going == REMOVED || going == REMOVED_WHILE_OPEN) {
		remove_file(snapshot, 0);
		CHECK(has_bytes(map, bytes) == is_open);
	}
	if (going == REMOVED_WHILE_OPEN) {
		gcr_subtree_close(file);
		CHECK(!has_bytes(map, bytes));
	}
	gcr_snapshot_discard(snapshot);
	if (going == OPEN_WITH_SNAPSHOT) {
		wait_used(bytes);
		CHECK(has_bytes(map, bytes));
		gcr_subtree_close(file);
	}
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	/* The memory counts until it is free, and only once. */
	CHECK(atomic_load(&most_used) >= bytes && atomic_load(&most_used) <= before);
	stop();
}

/* ---- files with two names ---- */

/*
 * Creates another snapshot of the same file, as a restore does with the files of a place; the file
 * costs this snapshot nothing.
 */
static struct gcr_snapshot *adopt_as(const char *generation, struct gcr_snapshot *snapshot)
{
	struct gcr_snapshot *other;
	struct gcr_error error;

	CHECK(!gcr_snapshot_adopt(store, getpid(), our_ticks, generation,
				  gcr_snapshot_extent(snapshot, 0), 1, snapshot->files_fd, &other,
				  &error));
	return other;
}

static struct gcr_snapshot *adopt(struct gcr_snapshot *snapshot)
{
	return adopt_as(GENERATION, snapshot);
}

/* The last snapshot is discarded: the store is empty then. */
static void discard_last(struct gcr_snapshot *snapshot)
{
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* The results are the snapshot of one file in a new store, and another one that adopts the file. */
static void start_with_two(uint64_t bytes, struct gcr_snapshot **ret_snapshot,
			   struct gcr_snapshot **ret_other)
{
	start(256 * MIB, 0);
	*ret_snapshot = create_finished(bytes);
	*ret_other = adopt(*ret_snapshot);
}

/* The same file has a name in a place and in the snapshot restored from it. */
static void test_mapped_by_two_names(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	map = map_outside(snapshot, NULL);
	other = adopt(snapshot);
	/* Opened through another subtree, which has its own lock for changes. */
	CHECK(!open_outside(other, 0, O_RDONLY, &file) && !gcr_subtree_pass(file));
	gcr_snapshot_discard(snapshot);
	/* The remaining name costs nothing itself; the bytes stay counted. */
	wait_used(other->cost_bytes + bytes);
	CHECK(has_bytes(map, bytes));
	gcr_snapshot_discard(other);
	wait_used(bytes);
	CHECK(has_bytes(map, bytes));
	gcr_subtree_close(file);
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	stop();
}

/*
 * A user who opened a file by a name that costs nothing keeps it after the name that is charged is
 * removed, too.
 */
static void test_held_by_other_name(bool is_touched)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	uint64_t cost;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	map = map_outside(snapshot, NULL);
	other = adopt(snapshot);
	CHECK(!open_outside(other, 0, O_RDONLY, &file));
	gcr_snapshot_discard(other);
	if (is_touched)
		touch(snapshot);
	cost = snapshot->cost_bytes;
	wait_used(cost);
	gcr_snapshot_discard(snapshot);
	wait_used(bytes);
	CHECK(has_bytes(map, bytes));
	gcr_subtree_close(file);
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	stop();
}

/* The file is open through both names; one descriptor is closed while its tree is being removed. */
static void test_closed_while_going(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL, *other_file = NULL;
	struct gcr_snapshot *snapshot, *other;

	start_with_two(bytes, &snapshot, &other);
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
	CHECK(!open_outside(other, 0, O_RDONLY, &other_file));
	gcr_snapshot_discard(other);
	touch(snapshot);
	wait_used(snapshot->cost_bytes);
	atomic_store(&has_no_memory, true);
	gcr_snapshot_discard(snapshot);
	wait_left_removal();
	gcr_subtree_close(file);
	atomic_store(&has_no_memory, false);
	wait_used(bytes);
	gcr_subtree_close(other_file);
	wait_used(0);
	stop();
}

/* A file that two subtrees count by its present size cannot grow. */
static void test_grown_by_one_name(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;

	start_with_two(bytes, &snapshot, &other);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(gcr_subtree_write(file, "x", 1, bytes + 4 * MIB) == -EBUSY);
	CHECK(gcr_subtree_write(file, "x", 1, 5) == 1);
	remove_file(snapshot, 0);
	CHECK(gcr_subtree_write(file, "x", 1, bytes + 4 * MIB) == -EBUSY);
	gcr_snapshot_discard(other);
	while (gcr_store_wait_going(store, false))
		;
	CHECK(gcr_subtree_write(file, "x", 1, bytes + 4 * MIB) == 1);
	gcr_subtree_close(file);
	discard_last(snapshot);
}

/* The same if a user removes the name that is charged, and the subtree stays. */
static void test_removed_by_other_name(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	uint64_t cost;

	start_with_two(bytes, &snapshot, &other);
	CHECK(!open_outside(other, 0, O_RDONLY, &file));
	gcr_snapshot_discard(other);
	cost = snapshot->cost_bytes;
	wait_used(cost);
	remove_file(snapshot, 0);
	/* The bytes that the snapshot may use stay promised to it. */
	CHECK(figures().used_bytes == cost + bytes);
	gcr_subtree_close(file);
	CHECK(figures().used_bytes == cost);
	discard_last(snapshot);
}

/*
 * A hole punched through one name frees no memory: reading it through a mapping of the other name
 * would allocate it again. The file cannot be truncated either.
 */
static void test_punched_by_other_name(bool punches_adopted)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *file = NULL, *changed = NULL;
	struct gcr_snapshot *snapshot, *other, *changer;
	uint64_t used;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	if (punches_adopted) {
		CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
		CHECK(has_pattern(file, bytes, 7)); /* by a mapping, as it has only one name */
		other = adopt(snapshot);
	} else {
		other = adopt(snapshot);
		CHECK(!open_outside(other, 0, O_RDONLY, &file));
		CHECK(has_pattern(file, bytes, 7));
	}
	changer = punches_adopted ? other : snapshot;
	touch(snapshot);
	touch(other);
	used = figures().used_bytes;
	punch(changer, bytes);
	CHECK(memory_of(snapshot) == bytes && figures().used_bytes == used);
	CHECK(read_size(file, 0, 4096) == 4096 && !has_pattern(file, bytes, 7));
	CHECK(!open_outside(changer, 0, O_RDWR, &changed));
	CHECK(gcr_subtree_truncate(changed, 0) == -EBUSY && !gcr_subtree_truncate(changed, bytes));
	gcr_subtree_close(changed);
	CHECK(open_outside(changer, 0, O_RDWR | O_TRUNC, &changed) == -EBUSY);
	CHECK(memory_of(snapshot) == bytes && read_size(file, bytes - 5, 4096) == 5);
	gcr_subtree_close(file);
	gcr_snapshot_discard(other);
	discard_last(snapshot);
}

/* Holes stay holes: filling them would take more memory than the store has. */
static void test_punched_with_holes(void)
{
	uint64_t bytes = 400 * MIB;
	struct gcr_subtree_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	struct gcr_extent extent;
	struct gcr_error error;

	start(128 * MIB, 0);
	snapshot = create_finished(8 * MIB);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_subtree_truncate(file, 0) && !gcr_subtree_truncate(file, bytes));
	CHECK(gcr_subtree_write(file, "x", 1, 301 * MIB) == 1);
	gcr_subtree_close(file);
	extent = *gcr_snapshot_extent(snapshot, 0);
	extent.bytes = bytes;
	CHECK(!gcr_snapshot_adopt(store, getpid(), our_ticks, GENERATION, &extent, 1,
				  snapshot->files_fd, &other, &error));
	punch(snapshot, bytes);
	CHECK(memory_of(snapshot) <= PAGE && figures().used_bytes <= 128 * MIB);
	CHECK(!open_outside(other, 0, O_RDONLY, &file));
	CHECK(read_size(file, 301 * MIB, 1) == 1 && gcr_subtree_seek(file, 0, SEEK_HOLE) == 0);
	gcr_subtree_close(file);
	gcr_snapshot_discard(other);
	discard_last(snapshot);
}

/* A file without names cannot grow as long as two subtrees have it open. */
static void test_grown_without_names(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_subtree_file *files[3];
	struct gcr_snapshot *snapshots[3];

	start(256 * MIB, 0);
	snapshots[0] = create_finished(bytes);
	snapshots[1] = adopt(snapshots[0]);
	snapshots[2] = adopt_as(GENERATION2, snapshots[0]);
	for (size_t i = 0; i < 3; i++)
		CHECK(!open_outside(snapshots[i], 0, O_RDWR, &files[i]));
	for (size_t i = 0; i < 3; i++)
		remove_file(snapshots[i], 0);
	gcr_subtree_close(files[0]);
	CHECK(gcr_subtree_allocate(files[1], 0, bytes, 64 * MIB) == -EBUSY);
	gcr_subtree_close(files[1]);
	CHECK(!gcr_subtree_allocate(files[2], 0, bytes, 64 * MIB));
	CHECK(figures().used_bytes >= bytes + 64 * MIB);
	gcr_subtree_close(files[2]);
	for (size_t i = 0; i < 3; i++)
		gcr_snapshot_discard(snapshots[i]);
	wait_used(0);
	stop();
}

/* A name that costs nothing is removed, by a user or by a failed adoption: no bytes count twice. */
static void test_names_that_cost_nothing(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *snapshot, *other, *failed;
	struct gcr_extent extents[2];
	struct gcr_error error;
	uint64_t cost;

	start(256 * MIB, 0);
	snapshot = create_finished(bytes);
	cost = snapshot->cost_bytes;
	other = adopt(snapshot);
	remove_file(other, 0);
	gcr_snapshot_discard(other);
	wait_used(cost);

	extents[0] = *gcr_snapshot_extent(snapshot, 0);
	extents[1] = extents[0];
	extents[1].address += extents[0].bytes;
	CHECK(gcr_snapshot_adopt(store, getpid(), our_ticks, GENERATION, extents, 2,
				 snapshot->files_fd, &other, &error) == -EIO);
	other = adopt(snapshot);
	gcr_snapshot_discard(other);
	wait_used(cost);

	/* A failed adoption does not affect the name of another snapshot. */
	other = adopt(snapshot);
	cost = other->cost_bytes;
	extents[0].bytes += PAGE;
	CHECK(gcr_snapshot_adopt(store, getpid(), our_ticks, GENERATION2, extents, 1,
				 snapshot->files_fd, &failed, &error) == -EIO);
	gcr_snapshot_discard(snapshot);
	wait_used(cost + bytes);
	gcr_snapshot_discard(other);
	wait_used(0);
	stop();
}

/* A new file under a name that cost nothing is charged: it is another file. */
static void test_another_file_of_that_name(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *first, *other, *second;
	struct gcr_subtree_file *file = NULL;
	struct gcr_subtree_entry vram, made;
	struct gcr_subtree *subtree;
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t cost;

	start(256 * MIB, 0);
	first = create_finished(bytes);
	other = adopt(first);
	/* Replace the adopted file in `other` by a new file of its own. */
	subtree = gcr_snapshot_subtree(other);
	gcr_extent_name(gcr_snapshot_extent(first, 0), name);
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "vram", &vram));
	CHECK(!gcr_subtree_create_file(subtree, vram.item, "made", O_RDWR, 0600, geteuid(),
				       getegid(), &made, &file));
	CHECK(!gcr_subtree_truncate(file, bytes) && !gcr_subtree_allocate(file, 0, 0, bytes));
	gcr_subtree_close(file);
	CHECK(!gcr_subtree_rename(subtree, vram.item, "made", vram.item, name, 0));
	gcr_subtree_forget(subtree, vram.item, 1);
	/*
	 * `second` adopts the new file, under a name that costs nothing, which stays after the name
	 * in `other` is removed.
	 */
	second = adopt_as(GENERATION2, other);
	gcr_snapshot_discard(first);
	while (gcr_store_wait_going(store, false))
		;
	remove_file(other, 0);
	cost = second->cost_bytes;
	gcr_snapshot_discard(other);
	wait_used(cost + bytes);
	gcr_snapshot_discard(second);
	wait_used(0);
	stop();
}

/* ---- aborted places ---- */

static unsigned int count_names(void)
{
	struct gcr_tree_sum sum;

	/* A directory can disappear before it is opened: retry. */
	while (gcr_store_sum_tree(store->fd, &sum) < 0)
		usleep(1000);
	return (unsigned int)sum.entries;
}

/* An aborted place that cannot be removed at once blocks neither the caller nor its name. */
static void test_aborted_place(void)
{
	unsigned int before;
	int64_t begun_usec;
	uint32_t number;
	int fd;

	start(256 * MIB, 0);
	before = count_names();
	fd = gcr_store_begin_place(store, "one", &number);
	CHECK(fd >= 0 && !mkdirat(fd, "snapshot/made", 0700) && !close(fd));
	atomic_store(&has_no_memory, true);
	begun_usec = gcr_clock_usec();
	gcr_store_abort_place(store, "one", number);
	CHECK(gcr_clock_usec() - begun_usec < GCR_USEC_PER_SEC);
	fd = gcr_store_begin_place(store, "one", &number);
	CHECK(fd >= 0 && !close(fd));
	wait_left_removal();
	CHECK(count_names() > before);
	atomic_store(&has_no_memory, false);
	gcr_store_abort_place(store, "one", number);
	while (count_names() > before)
		usleep(1000);
	stop();
}

#define GOING_COUNT 100 /* more than are removed while they are queued */

static unsigned int count_going(void)
{
	char path[sizeof(runtime) + 16];
	_cleanup_closedir_ DIR *found = NULL;
	const struct dirent *entry;
	unsigned int count = 0;

	snprintf(path, sizeof(path), "%s/store", runtime);
	found = opendir(path);
	CHECK(found);
	while ((entry = readdir(found)))
		count += !strncmp(entry->d_name, ".gone-", 6);
	return count;
}

/*
 * At its end the daemon carries out the removals that take no long, whether it has a pool or not.
 * The store stays here, as a frozen process needs it.
 */
static void test_queued_at_the_end(uint64_t pool_bytes)
{
	struct gcr_snapshot *going[GOING_COUNT], *frozen;
	struct gcr_error error;

	if (geteuid())
		return;
	start(1024 * MIB, pool_bytes);
	CHECK(!try_create(1000, PAGE, &frozen, &error));
	for (int i = 0; i < GOING_COUNT; i++)
		CHECK(!try_create(2000 + i, PAGE, &going[i], &error));
	gcr_snapshot_unref(frozen);
	for (size_t i = 0; i < GOING_COUNT; i++)
		gcr_snapshot_discard(going[i]);
	stop();
	CHECK(count_going() == 0);
	start(1024 * MIB, 0);
	gcr_store_sweep(store);
	stop();
}

/* A write for which only a kept snapshot could make room does not wait for removals in vain. */
static void test_room_beside_a_removal(void)
{
	const struct gcr_tree_sum nothing = {0};
	struct gcr_digest_buffer *digests = NULL;
	struct gcr_snapshot *kept;
	struct gcr_error error;
	struct gcr_room *room;

	daemon_.options.keep_bytes = 64 * MIB;
	start(96 * MIB, 0);
	CHECK(!try_create(2, 40 * MIB, &kept, &error));
	CHECK(!gcr_digest_buffer_create(gcr_snapshot_first_chunk(kept, 1), &digests));
	CHECK(!gcr_store_keep(kept, &digests));
	CHECK(!gcr_room_create(store, 0, &nothing, 0, &room));
	/* As during the removal of very many names. */
	pthread_mutex_lock(&store->lock);
	store->removing = true;
	pthread_mutex_unlock(&store->lock);
	CHECK(!gcr_room_take(room, 0, 60 * MIB));
	gcr_room_recount(room, 60 * MIB, 0, 0);
	gcr_room_destroy(room);
	stop();
	daemon_.options.keep_bytes = 0;
}

static void test_all(void)
{
	test_removed_in_the_end();
	for (int going = 0; going < GOINGS_COUNT; going++)
		test_mapped((enum going)going);
	for (int yes = 0; yes < 2; yes++) {
		test_mapped_without_descriptors(yes);
		test_held_by_other_name(yes);
		test_punched_by_other_name(yes);
	}
	test_mapped_by_two_names();
	test_removed_by_other_name();
	test_closed_while_going();
	test_grown_by_one_name();
	test_punched_with_holes();
	test_grown_without_names();
	test_names_that_cost_nothing();
	test_another_file_of_that_name();
	test_aborted_place();
	test_queued_at_the_end(0);
	test_queued_at_the_end(PAGE);
	test_room_beside_a_removal();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * The store: files that are removed while they are mapped, open, or have another name; removals
 * that fail.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "fs/base/quota.h"
#include "fs/store/store_private.h"
#include "test/unit/mapped.h"

/* ---- what the kernel refuses ---- */

static atomic_bool has_no_memory;     /* to remove a directory */
static atomic_bool has_no_descriptor; /* to find out whether a name is the last one */

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

/* ---- a name that takes long ---- */

static atomic_bool is_slow;	/* half of the time before it is there, half after that */
static atomic_uint links_stage; /* 1: before, 2: after */

#define SLOW_LINK_USEC 300000

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
	int result;

	if (!atomic_load(&is_slow))
		return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
	atomic_store(&links_stage, 1);
	usleep(SLOW_LINK_USEC);
	result = (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
	atomic_store(&links_stage, 2);
	usleep(SLOW_LINK_USEC);
	return result;
}

static atomic_uint_least64_t most_used; /* while the memory of a file is being freed */

int truncate(const char *path, off_t bytes)
{
	uint64_t used = figures().used_bytes;

	if (used > atomic_load(&most_used))
		atomic_store(&most_used, used);
	return (int)syscall(SYS_truncate, path, bytes);
}

/* ---- removals that fail ---- */

/* What cannot be removed counts, and is tried again. */
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
	/* Not at the end: the next daemon does it. */
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
	WITH_SNAPSHOT,	       /* as a thaw does it */
	WITH_TOUCHED_SNAPSHOT, /* in which somebody has made something */
	REMOVED,
	REMOVED_WHILE_OPEN,
	OPEN_WITH_SNAPSHOT,
	GOINGS_COUNT,
};

/* Somebody makes something in it. */
static void touch(struct gcr_snapshot *snapshot)
{
	struct gcr_folder_entry made;

	CHECK(!gcr_folder_mkdir(gcr_snapshot_folder(snapshot), GCR_FOLDER_ROOT, "made", 0700,
				geteuid(), getegid(), &made));
	CHECK(snapshot->is_touched);
}

/* A file that cannot be looked at stays, and counts, until it can. */
static void test_mapped_without_descriptors(bool is_touched)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *snapshot;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
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

/* A mapping alone keeps no memory; one whose file somebody has open does, which counts. */
static void test_mapped(enum going going)
{
	bool is_open = going == REMOVED_WHILE_OPEN || going == OPEN_WITH_SNAPSHOT;
	uint64_t bytes = 8 * MIB;
	uint64_t before;
	struct gcr_folder_file *file = NULL;
	struct gcr_snapshot *snapshot;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
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
		gcr_folder_close(file);
		CHECK(!has_bytes(map, bytes));
	}
	gcr_snapshot_discard(snapshot);
	if (going == OPEN_WITH_SNAPSHOT) {
		wait_used(bytes);
		CHECK(has_bytes(map, bytes));
		gcr_folder_close(file);
	}
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	/* It counts until it is free, and not twice. */
	CHECK(atomic_load(&most_used) >= bytes && atomic_load(&most_used) <= before);
	stop();
}

/* ---- files with two names ---- */

/* Another snapshot of the same file, as a restore makes it of a place's: that costs nothing. */
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

/* The same file as part of a place, and of what is restored from it. */
static void test_mapped_by_two_names(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
	map = map_outside(snapshot, NULL);
	other = adopt(snapshot);
	/* Another folder has another lock for changes. */
	CHECK(!open_outside(other, 0, O_RDONLY, &file) && !gcr_folder_pass(file));
	gcr_snapshot_discard(snapshot);
	/* What is left costs nothing itself. */
	wait_used(other->cost_bytes + bytes);
	CHECK(has_bytes(map, bytes));
	gcr_snapshot_discard(other);
	wait_used(bytes);
	CHECK(has_bytes(map, bytes));
	gcr_folder_close(file);
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	stop();
}

/* Who opened it by a name that cost nothing goes on when the name that did is gone, too. */
static void test_held_by_other_name(bool is_touched)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	uint64_t cost;
	void *map;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
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
	gcr_folder_close(file);
	wait_used(0);
	CHECK(!has_bytes(map, bytes));
	CHECK(!munmap(map, bytes));
	stop();
}

/* Both have it open, and one is closed while its tree is being removed. */
static void test_closed_while_going(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *file = NULL, *other_file = NULL;
	struct gcr_snapshot *snapshot, *other;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
	other = adopt(snapshot);
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
	CHECK(!open_outside(other, 0, O_RDONLY, &other_file));
	gcr_snapshot_discard(other);
	touch(snapshot);
	wait_used(snapshot->cost_bytes);
	atomic_store(&has_no_memory, true);
	gcr_snapshot_discard(snapshot);
	wait_left_removal();
	gcr_folder_close(file);
	atomic_store(&has_no_memory, false);
	wait_used(bytes);
	gcr_folder_close(other_file);
	wait_used(0);
	stop();
}

/* What each of two folders counts as it was does not grow. */
static void test_grown_by_one_name(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
	other = adopt(snapshot);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(gcr_folder_write(file, "x", 1, bytes + 4 * MIB) == -EBUSY);
	CHECK(gcr_folder_write(file, "x", 1, 5) == 1);
	remove_file(snapshot, 0);
	CHECK(gcr_folder_write(file, "x", 1, bytes + 4 * MIB) == -EBUSY);
	gcr_snapshot_discard(other);
	while (gcr_store_wait_going(store, false))
		;
	CHECK(gcr_folder_write(file, "x", 1, bytes + 4 * MIB) == 1);
	gcr_folder_close(file);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* The same where a user removes that name, and the folder goes on. */
static void test_removed_by_other_name(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	uint64_t cost;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
	other = adopt(snapshot);
	CHECK(!open_outside(other, 0, O_RDONLY, &file));
	gcr_snapshot_discard(other);
	cost = snapshot->cost_bytes;
	wait_used(cost);
	remove_file(snapshot, 0);
	/* What the snapshot may take stays promised to it. */
	CHECK(figures().used_bytes == cost + bytes);
	gcr_folder_close(file);
	CHECK(figures().used_bytes == cost);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/*
 * Who makes a hole by one name gives back nothing: reading it by a mapping of the other would take
 * it again. And nobody cuts the file off.
 */
static void test_punched_by_other_name(bool punches_adopted)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *file = NULL, *changed = NULL;
	struct gcr_snapshot *snapshot, *other, *changer;
	uint64_t used;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
	if (punches_adopted) {
		CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
		CHECK(has_pattern(file, bytes, 7)); /* by a mapping, as it has one name yet */
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
	CHECK(gcr_folder_truncate(changed, 0) == -EBUSY && !gcr_folder_truncate(changed, bytes));
	gcr_folder_close(changed);
	CHECK(open_outside(changer, 0, O_RDWR | O_TRUNC, &changed) == -EBUSY);
	CHECK(memory_of(snapshot) == bytes && read_size(file, bytes - 5, 4096) == 5);
	gcr_folder_close(file);
	gcr_snapshot_discard(other);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* Holes stay holes: more than the store has would be taken. */
static void test_punched_with_holes(void)
{
	uint64_t bytes = 400 * MIB;
	struct gcr_folder_file *file = NULL;
	struct gcr_snapshot *snapshot, *other;
	struct gcr_extent extent;
	struct gcr_error error;

	start(128 * MIB, 0);
	snapshot = create_settled(8 * MIB);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_folder_truncate(file, 0) && !gcr_folder_truncate(file, bytes));
	CHECK(gcr_folder_write(file, "x", 1, 301 * MIB) == 1);
	gcr_folder_close(file);
	extent = *gcr_snapshot_extent(snapshot, 0);
	extent.bytes = bytes;
	CHECK(!gcr_snapshot_adopt(store, getpid(), our_ticks, GENERATION, &extent, 1,
				  snapshot->files_fd, &other, &error));
	punch(snapshot, bytes);
	CHECK(memory_of(snapshot) <= PAGE && figures().used_bytes <= 128 * MIB);
	CHECK(!open_outside(other, 0, O_RDONLY, &file));
	CHECK(read_size(file, 301 * MIB, 1) == 1 && gcr_folder_seek(file, 0, SEEK_HOLE) == 0);
	gcr_folder_close(file);
	gcr_snapshot_discard(other);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* Nobody has a name any more: as long as two have it open, it does not grow. */
static void test_grown_without_names(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_folder_file *files[3];
	struct gcr_snapshot *snapshots[3];

	start(256 * MIB, 0);
	snapshots[0] = create_settled(bytes);
	snapshots[1] = adopt(snapshots[0]);
	snapshots[2] = adopt_as(GENERATION2, snapshots[0]);
	for (size_t i = 0; i < 3; i++)
		CHECK(!open_outside(snapshots[i], 0, O_RDWR, &files[i]));
	for (size_t i = 0; i < 3; i++)
		remove_file(snapshots[i], 0);
	gcr_folder_close(files[0]);
	CHECK(gcr_folder_allocate(files[1], 0, bytes, 64 * MIB) == -EBUSY);
	gcr_folder_close(files[1]);
	CHECK(!gcr_folder_allocate(files[2], 0, bytes, 64 * MIB));
	CHECK(figures().used_bytes >= bytes + 64 * MIB);
	gcr_folder_close(files[2]);
	for (size_t i = 0; i < 3; i++)
		gcr_snapshot_discard(snapshots[i]);
	wait_used(0);
	stop();
}

/* ---- a place that is being made of files that another one counts ---- */

#define USER_MOST (100 * MIB)

/* Of the store, whoever counts it. The user who is the daemon's own has no limit. */
static bool user_has(uid_t uid, uint64_t bytes)
{
	struct gcr_error error;

	if (uid == geteuid())
		return true;
	return !gcr_store_check_user(store, uid, USER_MOST - bytes, &error) &&
	       gcr_store_check_user(store, uid, USER_MOST - bytes + 1, &error) == -EDQUOT;
}

static void wait_user_has(uid_t uid, uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (!user_has(uid, bytes)) {
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

struct test_place {
	struct gcr_folder *folder;
	uint64_t cost; /* of the store */
};

static void open_place(const char *name, struct test_place *ret_place)
{
	uint64_t before = figures().used_bytes;
	struct stat stat;
	int fd;

	CHECK(!gcr_store_open_place(store, name, &stat, &fd, &ret_place->folder) && !close(fd));
	ret_place->cost = figures().used_bytes - before;
}

/* One that was begun, with all that is in it. */
static void publish_place(const char *name, uid_t uid, uint32_t number,
			  struct test_place *ret_place)
{
	CHECK(!gcr_store_publish_place(store, name, uid, uid));
	open_place(name, ret_place);
	gcr_store_count_place(store, number);
}

static void drop_place(const char *name, struct test_place *place)
{
	CHECK(!gcr_store_drop_place(store, name, 0, place->folder));
	gcr_folder_unref(place->folder);
	while (gcr_store_wait_going(store, false))
		;
}

static int begin_place(const char *name, uint32_t *ret_number)
{
	_cleanup_close_ int place_fd = gcr_store_begin_place(store, name, ret_number);
	int fd;

	CHECK(place_fd >= 0);
	fd = openat(place_fd, "snapshot", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static void start_with_limit(void)
{
	const struct gcr_quota_limits limits = {.most = {[GCR_QUOTA_STORE] = USER_MOST}};

	CHECK(!gcr_quota_create(&limits, "/nowhere/subuid", 0, &daemon_.quota));
	start(256 * MIB, 0);
}

static void stop_with_limit(void)
{
	stop();
	gcr_quota_destroy(TAKE_PTR(daemon_.quota));
}

/* The user's place `first`, of one file; what is restored from it, and no longer has it. */
static struct gcr_snapshot *restore_place(uid_t uid, uint64_t bytes, struct test_place *ret_place)
{
	struct gcr_extent extent = {.address = PAGE, .bytes = bytes, .kind = GCR_MEMORY_DEVICE};
	uint32_t number;
	_cleanup_close_ int fd = begin_place("first", &number);
	_cleanup_close_ int file_fd = -1;
	struct gcr_snapshot *snapshot;
	char name[GCR_EXTENT_NAME_BYTES];
	struct gcr_error error;

	gcr_extent_name(&extent, name);
	file_fd = openat(fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(file_fd >= 0 && !posix_fallocate(file_fd, 0, (off_t)bytes));
	publish_place("first", uid, number, ret_place);
	CHECK(user_has(uid, ret_place->cost) && ret_place->cost >= bytes);
	CHECK(!gcr_snapshot_adopt(store, getpid(), our_ticks, GENERATION, &extent, 1, fd, &snapshot,
				  &error));
	return snapshot;
}

enum end {
	ABORTED,
	PUBLISHED,
	PUBLISHED_FIRST, /* before the other place goes */
	NOT_OPENED,
	ENDS_COUNT,
};

/*
 * The place that counts a file goes while another one is being made of it. The file's bytes are
 * then the first owner's until the other place counts them, or has gone.
 */
static void test_unfinished_place(enum end end)
{
	uid_t uid = geteuid() ? geteuid() : NOBODY;
	uid_t second_uid = geteuid() ? uid : NOBODY - 1;
	uint64_t bytes = 8 * MIB;
	struct test_place first, second = {0};
	struct gcr_snapshot *snapshot;
	uint64_t cost;
	uint32_t number;
	int fd;

	start_with_limit();
	snapshot = restore_place(uid, bytes, &first);
	cost = snapshot->cost_bytes;
	CHECK(user_has(uid, first.cost));
	fd = begin_place("second", &number);
	CHECK(!gcr_snapshot_link(snapshot, 0, fd, number) && !close(fd));
	if (end == PUBLISHED_FIRST) {
		publish_place("second", second_uid, number, &second);
		CHECK(user_has(uid, first.cost));
	}
	drop_place("first", &first);
	switch (end) {
	case ABORTED:
		wait_user_has(uid, bytes);
		CHECK(figures().used_bytes == cost + bytes);
		gcr_store_abort_place(store, "second", number);
		CHECK(user_has(uid, bytes) && figures().used_bytes == cost + bytes);
		break;
	case NOT_OPENED:
		wait_user_has(uid, bytes);
		CHECK(!gcr_store_publish_place(store, "second", second_uid, second_uid));
		CHECK(!gcr_store_drop_place(store, "second", number, NULL));
		while (gcr_store_wait_going(store, false))
			;
		CHECK(user_has(uid, bytes) && figures().used_bytes == cost + bytes);
		break;
	case PUBLISHED:
		wait_user_has(uid, bytes);
		publish_place("second", second_uid, number, &second);
		/* fall through */
	default:
		CHECK(second.cost >= bytes);
		wait_user_has(second_uid, second.cost);
		CHECK(second_uid == uid || user_has(uid, 0));
		CHECK(figures().used_bytes == cost + second.cost);
		drop_place("second", &second);
		/* What has been restored still has the file. */
		wait_user_has(second_uid, bytes);
	}
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(user_has(uid, 0) && user_has(second_uid, 0));
	stop_with_limit();
}

struct linking {
	struct gcr_snapshot *snapshot;
	int fd;
	uint32_t number;
};

static void *link_slowly(void *data)
{
	const struct linking *linking = data;

	CHECK(!gcr_snapshot_link(linking->snapshot, 0, linking->fd, linking->number));
	return NULL;
}

/* The place that counts goes while the file gets its name in another one. */
static void test_link_meanwhile(unsigned int stage)
{
	uid_t uid = geteuid() ? geteuid() : NOBODY;
	uint64_t bytes = 8 * MIB;
	struct linking linking;
	struct test_place first;
	pthread_t thread;
	uint64_t cost;

	start_with_limit();
	linking.snapshot = restore_place(uid, bytes, &first);
	cost = linking.snapshot->cost_bytes;
	linking.fd = begin_place("second", &linking.number);
	atomic_store(&links_stage, 0);
	atomic_store(&is_slow, true);
	CHECK(!pthread_create(&thread, NULL, link_slowly, &linking));
	while (atomic_load(&links_stage) < stage)
		usleep(1000);
	drop_place("first", &first);
	CHECK(!pthread_join(thread, NULL) && !close(linking.fd));
	atomic_store(&is_slow, false);
	wait_user_has(uid, bytes);
	CHECK(figures().used_bytes == cost + bytes);
	gcr_store_abort_place(store, "second", linking.number);
	CHECK(user_has(uid, bytes) && figures().used_bytes == cost + bytes);
	gcr_snapshot_discard(linking.snapshot);
	wait_used(0);
	CHECK(user_has(uid, 0));
	stop_with_limit();
}

/* A name that costs nothing goes, by a user or with an adoption that fails: no bytes count twice.
 */
static void test_names_that_cost_nothing(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *snapshot, *other, *failed;
	struct gcr_extent extents[2];
	struct gcr_error error;
	uint64_t cost;

	start(256 * MIB, 0);
	snapshot = create_settled(bytes);
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

	/* One that fails does not take another one's. */
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

/* A file under the name of one that cost nothing is not that one. */
static void test_another_file_of_that_name(void)
{
	uint64_t bytes = 8 * MIB;
	struct gcr_snapshot *first, *other, *second;
	struct gcr_folder_file *file = NULL;
	struct gcr_folder_entry vram, made;
	struct gcr_folder *folder;
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t cost;

	start(256 * MIB, 0);
	first = create_settled(bytes);
	other = adopt(first);
	/* A file of its own in the place of the one that is the other's, too. */
	folder = gcr_snapshot_folder(other);
	gcr_extent_name(gcr_snapshot_extent(first, 0), name);
	CHECK(!gcr_folder_lookup(folder, GCR_FOLDER_ROOT, "vram", &vram));
	CHECK(!gcr_folder_create_file(folder, vram.item, "made", O_RDWR, 0600, geteuid(), getegid(),
				      &made, &file));
	CHECK(!gcr_folder_truncate(file, bytes) && !gcr_folder_allocate(file, 0, 0, bytes));
	gcr_folder_close(file);
	CHECK(!gcr_folder_rename(folder, vram.item, "made", vram.item, name, 0));
	gcr_folder_forget(folder, vram.item, 1);
	/* That file has a name that costs nothing, too, which stays when its own has gone. */
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

/* ---- places that are given up ---- */

static unsigned int count_names(void)
{
	struct gcr_tree_sum sum;

	/* A directory may go before it is opened. */
	while (gcr_store_sum_tree(store->fd, &sum) < 0)
		usleep(1000);
	return (unsigned int)sum.entries;
}

/* One that cannot be removed at once keeps nobody waiting, and no name. */
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
	for (int end = 0; end < ENDS_COUNT; end++)
		test_unfinished_place((enum end)end);
	for (unsigned int stage = 0; stage <= 2; stage++)
		test_link_meanwhile(stage);
	test_names_that_cost_nothing();
	test_another_file_of_that_name();
	test_aborted_place();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, NULL);
}

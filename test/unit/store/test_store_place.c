/* SPDX-License-Identifier: MIT */
/*
 * The store: places made of files that another subtree counts.
 */
#include <stdatomic.h>
#include <sys/syscall.h>

#include "fs/base/quota.h"
#include "fs/store/store_private.h"
#include "test/unit/store/mapped.h"

/* ---- links at certain moments ---- */

/* A link that unlinkat() makes to a file just before its other name is removed. */
struct linking {
	struct gcr_snapshot *snapshot;
	int fd;
	uint32_t number;
};

static _Atomic(struct linking *) last_moment;

int unlinkat(int parent_fd, const char *path, int flags)
{
	const struct linking *linking = flags & AT_REMOVEDIR ? NULL
							     : atomic_exchange(&last_moment, NULL);

	if (linking)
		CHECK(!gcr_snapshot_link(linking->snapshot, 0, linking->fd, linking->number));
	return (int)syscall(SYS_unlinkat, parent_fd, path, flags);
}

static atomic_bool is_slow;	/* linkat() sleeps before it makes the link, and after */
static atomic_uint links_stage; /* 1: before the link, 2: after it */

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

/* ---- places made of files that another place counts ---- */

#define USER_MOST (100 * MIB)

/*
 * Returns whether @bytes of the store count for the user, in whichever subtree. The daemon's own
 * user has no limit, so the result is always true for it.
 */
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
	struct gcr_subtree *subtree;
	uint64_t cost; /* bytes of the store */
};

static void open_place(const char *name, struct test_place *ret_place)
{
	uint64_t before = figures().used_bytes;
	struct stat stat;
	int fd;

	CHECK(!gcr_store_open_place(store, name, NULL, &stat, &fd, &ret_place->subtree) &&
	      !close(fd));
	ret_place->cost = figures().used_bytes - before;
}

/* Publishes the place that was begun, and opens it and counts its files. */
static void publish_place(const char *name, uid_t uid, uint32_t number,
			  struct test_place *ret_place)
{
	CHECK(!gcr_store_publish_place(store, name, uid, uid));
	open_place(name, ret_place);
	gcr_store_count_place(store, number);
}

static void drop_place(const char *name, struct test_place *place)
{
	CHECK(!gcr_store_drop_place(store, name, 0, place->subtree));
	gcr_subtree_unref(place->subtree);
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

/* Makes the user's place `first`, of one file, and returns a snapshot restored from it. */
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
	PUBLISHED_FIRST, /* before the other place is removed */
	NOT_OPENED,
	ENDS_COUNT,
};

/*
 * The place that counts a file is removed while another place is being made of that file. The
 * file's bytes then count for the first owner until the other place counts them, or is removed.
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
		/* The restored snapshot still has the file. */
		wait_user_has(second_uid, bytes);
	}
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(user_has(uid, 0) && user_has(second_uid, 0));
	stop_with_limit();
}

static void *link_slowly(void *data)
{
	const struct linking *linking = data;

	CHECK(!gcr_snapshot_link(linking->snapshot, 0, linking->fd, linking->number));
	return NULL;
}

/* The place that counts a file is removed while the file is being linked into another place. */
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

/*
 * A file gets a name in a place just before its snapshot's name is removed; no other subtree had
 * the file before.
 */
static void test_link_at_the_last_moment(void)
{
	struct linking linking;
	uint64_t bytes;

	start(256 * MIB, 0);
	linking.snapshot = create_finished(8 * MIB);
	bytes = linking.snapshot->files[0].cost_bytes;
	linking.fd = begin_place("first", &linking.number);
	atomic_store(&last_moment, &linking);
	gcr_snapshot_discard(linking.snapshot);
	wait_used(bytes);
	CHECK(!atomic_load(&last_moment));
	gcr_store_abort_place(store, "first", linking.number);
	wait_used(0);
	CHECK(!close(linking.fd));
	stop();
}

static void test_all(void)
{
	for (int end = 0; end < ENDS_COUNT; end++)
		test_unfinished_place((enum end)end);
	for (unsigned int stage = 0; stage <= 2; stage++)
		test_link_meanwhile(stage);
	test_link_at_the_last_moment();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, NULL);
}

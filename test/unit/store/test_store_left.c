/* SPDX-License-Identifier: MIT */
/*
 * Snapshots that a daemon leaves in the store: the next daemon finds them, and detects manipulated
 * ones.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "fs/store/subtree_private.h"
#include "fs/store/record.h"
#include "fs/store/store_private.h"
#include "test/unit/store/store.h"

/*
 * Environment variable that tells the daemon that is killed, another process, not to write the
 * files.
 */
#define WITHOUT_BYTES "GPUCR_TEST_WITHOUT_BYTES"

static void leave_one(void)
{
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 64 * MIB);
	snapshot = create(4711, GENERATION);
	for (size_t i = 0; i < COUNT && !getenv(WITHOUT_BYTES); i++)
		write_pattern(snapshot, i, (unsigned char)(i + 40));
	create(4712, GENERATION);
	gcr_store_pool(store, 4711, 77, gcr_snapshot_extent(snapshot, 0), 3);
}

static void test_reopen(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *again;
	struct gcr_error error = {0};
	uint64_t own;

	in_killed_daemon();
	start(256 * MIB, 0);
	/*
	 * Files that were never written take no memory; the second snapshot costs only its table.
	 */
	CHECK(figures().used_bytes == LEFT_COST + PAGE && figures().pool_bytes == 0);
	CHECK(gcr_snapshot_open(store, 4711, 78, GENERATION, &snapshot, &error) == -ENOENT);
	CHECK(gcr_snapshot_open(store, 4711, 77, GENERATION2, &snapshot, &error) == -ENOENT);
	CHECK(gcr_snapshot_open(store, 4711, 77, "../x", &snapshot, &error) == -EINVAL);
	CHECK(gcr_snapshot_open(store, 4711, 77, "", &snapshot, &error) == -EINVAL);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &again, &error) && again == snapshot);
	gcr_snapshot_unref(again);
	for (size_t i = 0; i < COUNT; i++) {
		struct gcr_extent expected[COUNT];

		fill_extents(expected);
		CHECK(!memcmp(gcr_snapshot_extent(snapshot, i), &expected[i], sizeof(*expected)));
		check_pattern(snapshot, i, (unsigned char)(i + 40));
	}
	/* The files of an opened snapshot are charged by the pages they have. */
	own = figures().used_bytes - PAGE;
	CHECK(own <= COST && own >= COST - PAGE);
	/* Without a reference, the snapshot is still there and charged. */
	gcr_snapshot_unref(snapshot);
	CHECK(figures().used_bytes == own + PAGE);
	gcr_store_sweep(store);
	wait_used(own);
	CHECK(gcr_snapshot_open(store, 4712, 77, GENERATION, &snapshot, &error) == -ENOENT);
	stop();

	/* A clean stop leaves the snapshot too. The next store may have another size. */
	start(128 * MIB, 0);
	CHECK(figures().size_bytes == 128 * MIB && figures().used_bytes == LEFT_COST);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	check_pattern(snapshot, 2, 42);
	CHECK(figures().used_bytes == own);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

static void *drop_reference(void *snapshot)
{
	gcr_snapshot_unref(snapshot);
	return NULL;
}

static void *open_again(void *ret_snapshot)
{
	struct gcr_error error = {0};

	if (gcr_snapshot_open(store, 4711, 77, GENERATION, ret_snapshot, &error) < 0) {
		fprintf(stderr, "opened as it is dropped: %s\n", error.words);
		exit(1);
	}
	return NULL;
}

/* Dropping the last reference takes as long as a user's change; the snapshot is found after it. */
static void test_opened_as_it_is_dropped(void)
{
	struct gcr_snapshot *snapshot, *again = NULL;
	struct gcr_error error = {0};
	pthread_t dropping, opening;
	struct gcr_subtree *subtree;

	in_killed_daemon();
	start(256 * MIB, 0);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	subtree = gcr_subtree_ref(snapshot->subtree);
	CHECK(!gcr_subtree_begin_change(subtree, subtree->epoch));
	CHECK(!pthread_create(&dropping, NULL, drop_reference, snapshot));
	while (atomic_load(&snapshot->references))
		usleep(1000);
	CHECK(!pthread_create(&opening, NULL, open_again, &again));
	usleep(50000 * TEST_SLOW);
	gcr_subtree_end_change(subtree);
	CHECK(!pthread_join(dropping, NULL) && !pthread_join(opening, NULL));
	gcr_subtree_unref(subtree);
	check_pattern(again, 2, 42);
	gcr_snapshot_discard(again);
	gcr_store_sweep(store);
	wait_used(0);
	stop();
}

/* A snapshot stays if its process has a record, whether or not that is readable. */
static void test_sweep(void)
{
	struct gcr_record record = {
		.pid = 4711,
		.start_ticks = 77,
		.state = GCR_RECORD_FROZEN,
		.generation = GENERATION,
		.engine = "vmm",
	};
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	int fd;

	in_killed_daemon();
	CHECK(!gcr_record_write(daemon_.runtime_fd, &record));
	start(256 * MIB, 0);
	CHECK(figures().used_bytes == LEFT_COST + PAGE);
	gcr_store_sweep(store);
	wait_used(LEFT_COST);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	gcr_snapshot_unref(snapshot);
	stop();

	fd = openat(daemon_.runtime_fd, "processes/4711-77", O_WRONLY | O_TRUNC | O_CLOEXEC);
	CHECK(fd >= 0);
	close(fd);
	start(256 * MIB, 0);
	gcr_store_sweep(store);
	CHECK(figures().used_bytes == LEFT_COST);
	stop();

	/* A record of another freeze of the process does not keep this snapshot. */
	snprintf(record.generation, sizeof(record.generation), GENERATION2);
	CHECK(!gcr_record_write(daemon_.runtime_fd, &record));
	start(256 * MIB, 0);
	gcr_store_sweep(store);
	wait_used(0);
	CHECK(!gcr_record_remove(daemon_.runtime_fd, 4711, 77));
	CHECK(!unlinkat(daemon_.runtime_fd, "processes", AT_REMOVEDIR));
	stop();
}

static char place[256]; /* absolute path of the directory of snapshot 4711 */

static void find_place(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	char link[64];
	ssize_t length;

	start(256 * MIB, 0);
	if (gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", gcr_snapshot_directory(snapshot));
	length = readlink(link, place, sizeof(place) - 1);
	CHECK(length > 14);
	place[length - 14] = '\0'; /* cuts off "/snapshot/vram" */
	gcr_snapshot_unref(snapshot);
	stop();
}

static const char *at(const char *name)
{
	static char path[2][400];
	static int turn;

	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", place, name);
	return path[turn];
}

static void lie_no_table(void)
{
	CHECK(!unlink(at("table")));
}

static void lie_short_table(void)
{
	CHECK(!truncate(at("table"), 200));
}

static void lie_empty_table(void)
{
	CHECK(!truncate(at("table"), 0));
}

static void lie_long_table(void)
{
	CHECK(!truncate(at("table"), 10000));
}

static void lie_table_is_link(void)
{
	CHECK(!rename(at("table"), at("../elsewhere")) && !symlink("../elsewhere", at("table")));
}

static void lie_table_is_directory(void)
{
	CHECK(!unlink(at("table")) && !mkdir(at("table"), 0700));
}

static void lie_no_files(void)
{
	CHECK(!rename(at("snapshot"), at("shot")));
}

static void lie_files_are_link(void)
{
	CHECK(!rename(at("snapshot"), at("../elsewhere")) &&
	      !symlink("../elsewhere", at("snapshot")));
}

static void lie_no_vram(void)
{
	CHECK(!rename(at("snapshot/vram"), at("snapshot/ram")));
}

static void lie_vram_is_link(void)
{
	CHECK(!rename(at("snapshot/vram"), at("../elsewhere")) &&
	      !symlink("../../elsewhere", at("snapshot/vram")));
}

static void lie_deep_tree(void)
{
	char path[300] = "snapshot/vram";

	for (int i = 0; i < 20; i++) {
		strcat(path, "/more");
		CHECK(!mkdir(at(path), 0700));
	}
}

static void lie_missing_file(void)
{
	CHECK(!unlink(at("snapshot/vram/gpu0-unmapped-2")));
}

static void lie_other_file(void)
{
	CHECK(!rename(at("snapshot/vram/gpu0-unmapped-2"), at("snapshot/vram/gpu0-unmapped-3")));
}

static void lie_further_file(void)
{
	CHECK(!mkdir(at("snapshot/vram/gpu0-unmapped-3"), 0700));
}

static void lie_file_size(void)
{
	CHECK(!truncate(at("snapshot/vram/gpu0-unmapped-2"), 1234));
}

static void lie_file_huge(void)
{
	CHECK(!truncate(at("snapshot/vram/gpu0-unmapped-2"), INT64_C(1) << 62));
}

static void lie_file_mode(void)
{
	CHECK(!chmod(at("snapshot/vram/gpu0-unmapped-2"), 0644));
}

static void lie_file_is_link(void)
{
	CHECK(!rename(at("snapshot/vram/gpu0-unmapped-2"), at("../elsewhere")));
	CHECK(!symlink("../../../elsewhere", at("snapshot/vram/gpu0-unmapped-2")));
}

static void lie_file_has_two_names(void)
{
	CHECK(!link(at("snapshot/vram/gpu0-unmapped-2"), at("../elsewhere")));
}

static void lie_directory_mode(void)
{
	CHECK(!chmod(place, 0755));
}

static void lie_directory_is_link(void)
{
	CHECK(!rename(place, at("../elsewhere")) && !symlink("elsewhere", place));
}

/* Changes the byte at @offset of the table. */
static void change(off_t offset)
{
	_cleanup_close_ int fd = open(at("table"), O_RDWR);
	unsigned char byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, offset) == 1);
	byte ^= 0x41;
	CHECK(pwrite(fd, &byte, 1, offset) == 1);
}

static void (*const lies[])(void) = {
	lie_no_table,	    lie_short_table,	    lie_empty_table, lie_long_table,
	lie_table_is_link,  lie_table_is_directory, lie_no_files,    lie_files_are_link,
	lie_directory_mode, lie_directory_is_link,
};

/*
 * Changes that the owner of the files may make: opening the snapshot succeeds, and the user of a
 * file detects them.
 */
static void (*const changes_of_owner[])(void) = {
	lie_no_vram,	lie_vram_is_link, lie_deep_tree,	  lie_missing_file,
	lie_other_file, lie_further_file, lie_file_size,	  lie_file_huge,
	lie_file_mode,	lie_file_is_link, lie_file_has_two_names,
};

/* Offsets in the table to change: in its header, then in the first extent. */
#define HEADER_BYTES 80
static const off_t changes[] = {
	3,  /* magic */
	16, /* size of an extent */
	20, /* pid */
	24, /* start time */
	32, /* count */
	38, /* count, made a large one */
	41, /* generation */
	HEADER_BYTES + offsetof(struct gcr_extent, kind),
	HEADER_BYTES + offsetof(struct gcr_extent, gpu_index) + 2,
};

/* A snapshot with an invalid table or tree is refused with -EPROTO. */
static void test_one_lie(size_t number)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	int result;

	in_killed_daemon();
	find_place();
	if (number < GCR_ARRAY_SIZE(lies))
		lies[number]();
	else
		change(changes[number - GCR_ARRAY_SIZE(lies)]);
	start(256 * MIB, 0);
	result = gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error);
	if (result != -EPROTO || !*error.words)
		fprintf(stderr, "lie %zu: %d %s\n", number, result, error.words);
	CHECK(result == -EPROTO && *error.words && error.number == EPROTO);
	/* The invalid snapshot is no obstacle to a new one, and the sweep removes it. */
	gcr_store_sweep(store);
	wait_used(0);
	snapshot = create(4711, GENERATION);
	gcr_snapshot_discard(snapshot);
	stop();
	start(256 * MIB, 0);
	CHECK(figures().used_bytes == 0);
	stop();
}

static void test_change_of_owner(void (*change_something)(void))
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};

	in_killed_daemon();
	find_place();
	change_something();
	start(256 * MIB, 0);
	CHECK(figures().used_bytes <= 2 * COST);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	CHECK(figures().used_bytes >= 2 * PAGE && figures().used_bytes <= 2 * COST);
	gcr_snapshot_discard(snapshot);
	gcr_store_sweep(store);
	wait_used(0);
	stop();
	start(256 * MIB, 0);
	CHECK(figures().used_bytes == 0);
	stop();
}

/* Makes two nested directories of @mode, which permits no full access, with a file in them. */
static void make_closed(const char *path, mode_t mode)
{
	_cleanup_close_ int fd = -1;
	char below[500];

	CHECK(!mkdir(path, 0700));
	snprintf(below, sizeof(below), "%s/below", path);
	CHECK(!mkdir(below, 0700));
	snprintf(below, sizeof(below), "%s/below/file", path);
	fd = open(below, O_WRONLY | O_CREAT | O_CLOEXEC, 0400);
	CHECK(fd >= 0 && write(fd, "bytes", 5) == 5);
	snprintf(below, sizeof(below), "%s/below", path);
	CHECK(!chmod(below, mode) && !chmod(path, mode));
}

/* Trees whose removal an earlier daemon began, and one that cannot be removed as it is too deep. */
static void test_unfinished(void)
{
	char path[1000];
	char command[1100];
	struct stat stat;

	in_killed_daemon();
	find_place();
	*strrchr(place, '/') = '\0'; /* the store itself */
	CHECK(!mkdir(at(".gone-7"), 0700));
	make_closed(at(".gone-7/0"), 0);
	make_closed(at(".gone-7/555"), 0555);
	make_closed(at(".gone-7/666"), 0666);
	snprintf(path, sizeof(path), "%s", at(".gone-8"));
	for (int i = 0; i < GCR_STORE_DEPTH_MAX + 8; i++) {
		CHECK(!mkdir(path, 0700));
		strcat(path, "/x");
	}
	start(256 * MIB, 0);
	CHECK(lstat(at(".gone-7"), &stat) < 0 && errno == ENOENT);
	CHECK(!lstat(at(".gone-8"), &stat));
	gcr_store_sweep(store);
	wait_used(0);
	stop();
	CHECK(!lstat(at(".gone-8"), &stat));
	snprintf(command, sizeof(command), "rm -r %s", at(".gone-8"));
	CHECK(!system(command));
	start(256 * MIB, 0);
	stop();
}

/* Directories without permissions are counted, keep their modes, and are removed. */
static void test_closed_directories(void)
{
	static const mode_t modes[] = {0, 0111, 0222, 0444, 0555};
	struct gcr_subtree *subtree;
	int place_fd;
	char path[500];
	char link[64];
	struct stat stat;
	ssize_t length;

	start(256 * MIB, 0);
	CHECK(!gcr_store_make_place(store, "closed", geteuid(), getegid()));
	CHECK(!gcr_store_open_place(store, "closed", NULL, &stat, &place_fd, &subtree));
	CHECK(!gcr_subtree_resident_bytes(subtree));
	snprintf(link, sizeof(link), "/proc/self/fd/%d", subtree->root_fd);
	length = readlink(link, place, sizeof(place) - 1);
	CHECK(length > 0);
	place[length] = '\0';
	for (size_t i = 0; i < GCR_ARRAY_SIZE(modes); i++) {
		snprintf(path, sizeof(path), "%s/%o", place, (unsigned int)modes[i]);
		make_closed(path, modes[i]);
	}
	CHECK(!chmod(place, 0));
	close(place_fd);
	gcr_store_close_place(subtree);
	gcr_subtree_unref(subtree);
	stop();

	start(256 * MIB, 0);
	CHECK(!gcr_store_open_place(store, "closed", NULL, &stat, &place_fd, &subtree));
	CHECK(gcr_subtree_resident_bytes(subtree) >= GCR_ARRAY_SIZE(modes) * 4096);
	CHECK(!fstat(subtree->root_fd, &stat) && !(stat.st_mode & 0777));
	CHECK(!chmod(place, 0700));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(modes); i++) {
		snprintf(path, sizeof(path), "%s/%o", place, (unsigned int)modes[i]);
		CHECK(!lstat(path, &stat) && (stat.st_mode & 0777) == modes[i]);
	}
	CHECK(!chmod(place, 0));
	CHECK(!gcr_store_drop_place(store, "closed", 0, subtree));
	gcr_subtree_unref(subtree);
	wait_used(0);
	stop();
	CHECK(lstat(place, &stat) < 0);
}

static void test_all(void)
{
	unsetenv(WITHOUT_BYTES);
	test_reopen();
	test_sweep();
	test_opened_as_it_is_dropped();
	setenv(WITHOUT_BYTES, "1", 1);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(lies) + GCR_ARRAY_SIZE(changes); i++)
		test_one_lie(i);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(changes_of_owner); i++)
		test_change_of_owner(changes_of_owner[i]);
	test_unfinished();
	test_closed_directories();
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_tests(argv, test_all, leave_one);
}

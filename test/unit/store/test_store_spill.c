/* SPDX-License-Identifier: MIT */
/*
 * The store with packed snapshots that were moved to a disk: how they are counted, that they read
 * as before and come back, what a later daemon finds, and that nothing of them is left on the disk.
 */
#include "fs/store/subtree_private.h"

#include <ftw.h>
#include <limits.h>

#include "fs/pack/pack_table.h"
#include "test/unit/store/pack.h"

/* Files 0 to 3 of create(), which a worker fills, are packed. */
#define PACKED 4

static char disk[112];

/* Uses a directory beside the runtime directory as the disk. */
static void set_disk(void)
{
	snprintf(disk, sizeof(disk), "%s-disk", runtime);
	CHECK(!mkdir(disk, 0700) || errno == EEXIST);
	daemon_.options.spill = disk;
}

static uint64_t counted;

/* Counts the data of a file: st_blocks also counts what the filesystem needs to find the data. */
static int count_file(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
	_cleanup_close_ int fd = -1;
	off_t data, hole = 0;

	if (type != FTW_F)
		return 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	while ((data = lseek(fd, hole, SEEK_DATA)) >= 0) {
		hole = lseek(fd, data, SEEK_HOLE);
		CHECK(hole > data);
		counted += (uint64_t)(hole - data);
	}
	CHECK(errno == ENXIO);
	return 0;
}

static uint64_t disk_used(void)
{
	counted = 0;
	CHECK(!nftw(disk, count_file, 8, FTW_PHYS));
	return counted;
}

static struct gcr_packs_figures packs_figures(void)
{
	struct gcr_packs_figures found;

	gcr_store_packs_figures(store, &found);
	return found;
}

/* Creates a snapshot whose files 0 to 3 are packed. */
static struct gcr_snapshot *create_packed(pid_t pid, const char *generation, unsigned char seed)
{
	struct gcr_snapshot *snapshot = create(pid, generation);
	struct gcr_packs *packs;

	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)(seed + i));
	gcr_snapshot_finish(snapshot);
	packs = begin_packing(snapshot);
	for (size_t i = 0; i < PACKED; i++) {
		struct gcr_subtree_file *file = open_to_pack(snapshot, i);

		CHECK(pack_all(packs, file) == sizes[i] / PAGE);
		gcr_subtree_close(file);
	}
	return snapshot;
}

static void check_files(struct gcr_snapshot *snapshot, unsigned char seed)
{
	for (size_t i = 0; i < COUNT; i++)
		check_pattern(snapshot, i, (unsigned char)(seed + i));
	check_account(snapshot);
}

static uint64_t spill(struct gcr_snapshot *snapshot, uint64_t wanted_bytes)
{
	struct gcr_error error = {0};
	uint64_t bytes = 0;

	if (gcr_snapshot_spill(snapshot, wanted_bytes, &bytes, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return bytes;
}

/* Waits until the disk has no chunks that are no longer needed. */
static void wait_disk(struct gcr_snapshot *snapshot)
{
	gcr_packs_wait_disk(gcr_subtree_packs(gcr_snapshot_subtree(snapshot)));
}

static uint64_t spilled_of(struct gcr_snapshot *snapshot)
{
	uint64_t bytes;

	CHECK(!gcr_snapshot_spilled_bytes(snapshot, &bytes));
	return bytes;
}

static uint64_t packed_to(struct gcr_snapshot *snapshot)
{
	struct gcr_pack_figures found;

	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &found);
	return found.packed_to_bytes;
}

static void check_no_disk(void)
{
	CHECK(!rmdir(disk) && !mkdir(disk, 0700));
}

static void unpack_all(struct gcr_snapshot *snapshot)
{
	for (size_t i = 0; i < PACKED; i++) {
		struct gcr_subtree_file *file = open_to_pack(snapshot, i);

		for (uint64_t piece = 0; piece < gcr_subtree_pieces(file); piece++)
			CHECK(!gcr_subtree_unpack_piece(file, piece));
		gcr_subtree_close(file);
	}
}

/* ---- there and back ---- */

static void test_spill(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_packs_figures before;
	uint64_t used;

	start(256 * MIB, 0);
	CHECK(gcr_store_can_spill(store));
	snapshot = create_packed(getpid(), GENERATION, 0);
	before = packs_figures();
	used = figures().used_bytes;
	CHECK(before.memory_bytes && !before.spilled_bytes && !spilled_of(snapshot));
	CHECK(!spill(snapshot, 0));
	CHECK(spill(snapshot, 1) == before.memory_bytes);
	CHECK(!packs_figures().memory_bytes);
	CHECK(packs_figures().spilled_bytes == before.memory_bytes);
	CHECK(figures().used_bytes <= used - before.memory_bytes);
	CHECK(disk_used() == before.memory_bytes);
	CHECK(spilled_of(snapshot) == packed_to(snapshot));
	check_files(snapshot, 0);
	CHECK(!spill(snapshot, UINT64_MAX));
	unpack_all(snapshot);
	wait_disk(snapshot);
	CHECK(!disk_used() && !packs_figures().spilled_bytes && !spilled_of(snapshot));
	check_files(snapshot, 0);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
	check_no_disk();
}

/*
 * Chunks packed after a spill go into a segment of their own; both segments are removed with their
 * snapshots.
 */
static void test_two(void)
{
	struct gcr_snapshot *first;
	struct gcr_snapshot *second;
	struct gcr_snapshot *same;
	uint64_t bytes;

	start(256 * MIB, 0);
	first = create_packed(getpid(), GENERATION, 0);
	bytes = spill(first, UINT64_MAX);
	CHECK(bytes);
	second = create_packed(LEFT_PID, GENERATION2, 100);
	CHECK(packs_figures().memory_bytes && !spilled_of(second));
	/* A snapshot of the same bytes: its chunks are on the disk already, and none is its own. */
	same = create_packed(2, GENERATION2, 0);
	CHECK(!packed_to(same) && !spilled_of(same));
	CHECK(!spill(same, UINT64_MAX));
	gcr_snapshot_discard(first);
	CHECK(spill(second, UINT64_MAX) && !packs_figures().memory_bytes);
	check_files(second, 100);
	check_files(same, 0);
	gcr_snapshot_discard(same);
	while (packs_figures().spilled_segments > 1)
		usleep(1000);
	wait_disk(second);
	CHECK(disk_used() == packs_figures().spilled_bytes);
	gcr_snapshot_discard(second);
	wait_used(0);
	while (packs_figures().spilled_segments)
		usleep(1000);
	stop();
	check_no_disk();
}

static void test_refused(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	uint64_t bytes = 1;
	uint64_t used;

	daemon_.options.spill = NULL;
	start(256 * MIB, 0);
	CHECK(!gcr_store_can_spill(store));
	snapshot = create_packed(getpid(), GENERATION, 0);
	CHECK(gcr_snapshot_spill(snapshot, MIB, &bytes, &error) == -EOPNOTSUPP && !bytes);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
	/* The limit of the disk is too low. */
	set_disk();
	daemon_.options.spill_bytes = 2 * MIB;
	start(256 * MIB, 0);
	snapshot = create_packed(getpid(), GENERATION, 0);
	used = figures().used_bytes;
	CHECK(gcr_snapshot_spill(snapshot, MIB, &bytes, &error) == -ENOSPC && !bytes);
	CHECK(*error.words && !disk_used() && figures().used_bytes == used);
	check_files(snapshot, 0);
	/* Nothing is packed, so nothing is moved. */
	unpack_all(snapshot);
	CHECK(!gcr_snapshot_spill(snapshot, MIB, &bytes, &error) && !bytes);
	gcr_snapshot_discard(snapshot);
	snapshot = create(2, GENERATION);
	CHECK(!gcr_snapshot_spill(snapshot, MIB, &bytes, &error) && !bytes &&
	      !spilled_of(snapshot));
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
	daemon_.options.spill_bytes = 0;
	check_no_disk();
}

/* Without the directory the daemon does not start, and leaves nothing behind. */
static void test_no_directory(void)
{
	static char nowhere[] = "/nowhere/at/all";
	struct gcr_error error = {0};

	daemon_.options.spill = nowhere;
	daemon_.options.store_bytes = 256 * MIB;
	CHECK(gcr_store_create(&daemon_, &store, &error) == -ENOENT);
	CHECK(strstr(error.words, nowhere) && !store);
	check_gone();
	set_disk();
	CHECK(!chmod(disk, 0707));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -EPERM && strstr(error.words, disk));
	check_gone();
	check_no_disk();
}

/* ---- a later daemon ---- */

static void be_killed(void)
{
	struct gcr_snapshot *snapshot;

	set_disk();
	start(256 * MIB, 0);
	snapshot = create_packed(LEFT_PID, GENERATION, 0);
	CHECK(spill(snapshot, UINT64_MAX));
}

/* The next daemon finds the snapshot as it was made, and nothing is left when it is discarded. */
static void check_left(void)
{
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 0);
	snapshot = open_left();
	check_files(snapshot, 0);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
	check_no_disk();
}

/* A later daemon finds the snapshot on the disk, with and without the option -o spill=. */
static void test_killed(bool is_on)
{
	struct gcr_snapshot *snapshot;

	in_killed_daemon();
	if (!is_on)
		daemon_.options.spill = NULL;
	start(256 * MIB, 0);
	snapshot = open_left();
	CHECK(spilled_of(snapshot) == packed_to(snapshot) && packed_to(snapshot));
	CHECK(packs_figures().spilled_bytes == disk_used() && !packs_figures().memory_bytes);
	check_files(snapshot, 0);
	gcr_snapshot_unref(snapshot);
	stop();
	set_disk();
	check_left();
}

/* A snapshot that was never opened is swept, and its chunks on the disk with it. */
static void test_swept(void)
{
	in_killed_daemon();
	start(256 * MIB, 0);
	CHECK(disk_used());
	gcr_store_sweep(store);
	wait_used(0);
	stop();
	check_no_disk();
}

/*
 * Tables are not changed while the disk is missing: the snapshot is complete when the disk is back.
 */
static void test_absent(void)
{
	struct gcr_subtree_bytes bytes;
	struct gcr_subtree_file *file;
	struct gcr_snapshot *snapshot;
	char away[128];

	in_killed_daemon();
	snprintf(away, sizeof(away), "%s-away", disk);
	CHECK(!rename(disk, away));
	start(256 * MIB, 0);
	snapshot = open_left();
	CHECK(spilled_of(snapshot) == packed_to(snapshot) && packed_to(snapshot));
	CHECK(!open_outside(snapshot, 2, O_RDONLY, &file));
	CHECK(gcr_subtree_read(file, 0, 1, &bytes) == -EIO);
	gcr_subtree_close(file);
	check_pattern(snapshot, PACKED, PACKED);
	gcr_snapshot_unref(snapshot);
	stop();
	CHECK(access(disk, F_OK) < 0 && !rename(away, disk));
	check_left();
}

static void tests(void)
{
	set_disk();
	test_spill();
	test_two();
	test_refused();
	test_no_directory();
	test_killed(true);
	test_killed(false);
	test_swept();
	test_absent();
	CHECK(!rmdir(disk));
}

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	return run_tests(argv, tests, be_killed);
}

/* SPDX-License-Identifier: MIT */
/* The files of managed memory during a thaw: what is copied back when the thaw is undone. */
#include "fs/engine/transit.h"

#include "test/unit/store/store.h"

#define BYTES	    (512 * MIB)
#define PIECE_BYTES (32 * MIB) /* the copying threads take such pieces of a file */

static struct gcr_snapshot *make_snapshot(void)
{
	struct gcr_extent extent = {.address = PAGE, .bytes = BYTES, .kind = GCR_MEMORY_MANAGED};
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	int fd;

	CHECK(!gcr_snapshot_create(store, getpid(), our_ticks, GENERATION, &extent, 1, &snapshot,
				   &error));
	/* The freeze has found only zeros, so the file is one hole. */
	fd = gcr_snapshot_open_file(snapshot, 0, true);
	CHECK(fd >= 0);
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES));
	close(fd);
	return snapshot;
}

static void write_everywhere(int fd)
{
	CHECK(fd >= 0);
	for (uint64_t at = 0; at < BYTES; at += PIECE_BYTES)
		CHECK(pwrite(fd, "x", 1, (off_t)(at + PIECE_BYTES / 2)) == 1);
	close(fd);
}

static void check_everywhere(int fd)
{
	char byte;

	CHECK(fd >= 0);
	for (uint64_t at = 0; at < BYTES; at += PIECE_BYTES)
		CHECK(pread(fd, &byte, 1, (off_t)(at + PIECE_BYTES / 2)) == 1 && byte == 'x');
	close(fd);
}

/* Many threads copy one file: it is still the file of one subtree, whose holes may be filled. */
static void test_copied_back_by_threads(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_transit *transit;
	struct gcr_error error;

	if (geteuid())
		return;
	start(2048 * MIB, 0);
	store->threads_max = 8;
	snapshot = make_snapshot();
	CHECK(!gcr_transit_create(snapshot, 0, NULL, 0, GCR_TRANSIT_IN, &transit, &error));
	CHECK(!gcr_transit_begin(transit, GCR_TRANSIT_IN));
	CHECK(!gcr_transit_end(transit, NULL, NULL, &error));
	write_everywhere(gcr_transit_open(transit, 0));
	CHECK(!gcr_transit_begin(transit, GCR_TRANSIT_BACK));
	CHECK(!gcr_transit_end(transit, NULL, NULL, &error));
	gcr_transit_destroy(transit, false);
	check_everywhere(gcr_snapshot_open_file(snapshot, 0, false));
	gcr_snapshot_discard(snapshot);
	stop();
}

int main(int argc, char **argv)
{
	return run_tests(argv, test_copied_back_by_threads, NULL);
}

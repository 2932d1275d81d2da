/* SPDX-License-Identifier: MIT */
/*
 * The figures of a store in which a freeze of many allocations is under way: its files are looked
 * at seldom, and not at all for statfs(2), which every user may call without end.
 */
#include <stdarg.h>
#include <sys/syscall.h>

#include "test/unit/store/store.h"

#define FILES 400u
#define CALLS 200u

static unsigned int looks; /* files that were looked at */

/* In place of the C library's. */
int fstatat(int directory_fd, const char *name, struct stat *ret_stat, int flags)
{
	looks++;
	return (int)syscall(SYS_newfstatat, directory_fd, name, ret_stat, flags);
}

static struct gcr_snapshot *make(unsigned int count)
{
	_cleanup_free_ struct gcr_extent *extents = calloc(count, sizeof(*extents));
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};

	CHECK(extents);
	for (unsigned int i = 0; i < count; i++)
		extents[i] =
			(struct gcr_extent){.id = i + 1, .bytes = PAGE, .kind = GCR_MEMORY_DEVICE};
	if (gcr_snapshot_create(store, 4711, 77, GENERATION, extents, count, &snapshot, &error) <
	    0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return snapshot;
}

static unsigned int looks_of(void (*call)(struct gcr_store *, struct gcr_store_figures *),
			     uint64_t pending)
{
	struct gcr_store_figures found;

	looks = 0;
	for (unsigned int i = 0; i < CALLS; i++) {
		call(store, &found);
		CHECK(found.pending_bytes == pending);
	}
	return looks;
}

static void run_figures(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_store_figures found;
	uint64_t pending;
	int64_t until_usec;
	int fd;

	start((FILES + 100) * PAGE, 0);
	snapshot = make(FILES);
	CHECK(!looks_of(gcr_store_counted_figures, 0));
	gcr_store_figures(store, &found);
	pending = found.pending_bytes;
	CHECK(pending >= FILES * PAGE);
	/* A twentieth of the time is far less than a look for each call. */
	CHECK(looks_of(gcr_store_figures, pending) <= CALLS / 4 * FILES);
	/* What is written is seen after a while. */
	fd = gcr_snapshot_open_file(snapshot, 0, true);
	CHECK(fd >= 0 && pwrite(fd, "x", 1, 0) == 1);
	close(fd);
	until_usec = gcr_clock_usec() + PATIENCE_USEC;
	do {
		gcr_store_figures(store, &found);
		CHECK(gcr_clock_usec() < until_usec);
	} while (found.pending_bytes == pending);
	CHECK(found.pending_bytes < pending);
	gcr_snapshot_discard(snapshot);
	/* Few files are looked at each time. */
	wait_used(0);
	snapshot = make(5);
	gcr_store_figures(store, &found);
	CHECK(looks_of(gcr_store_figures, found.pending_bytes) == CALLS * 5);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* No daemon is killed in this test. */
static void killed(void)
{
}

int main(int argc, char **argv)
{
	return run_tests(argv, run_figures, killed);
}

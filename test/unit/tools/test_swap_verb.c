/* SPDX-License-Identifier: MIT */
/* How gpucr-swap finds the result of a verb that it has not received: in a mount of plain files. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/test.h"
#include "tools/swap/swap.h"

#define PID	 123
#define NOW_USEC (INT64_C(1700000000) * GCR_USEC_PER_SEC)

static char mount[] = "/tmp/gpucr-test-XXXXXX";

static void path_of(const char *name, char *path, size_t room)
{
	snprintf(path, room, "%s/%d%s%s", mount, PID, *name ? "/" : "", name);
}

static void put(const char *name, const char *mode, const char *text)
{
	char path[64];
	FILE *file;

	path_of(name, path, sizeof(path));
	file = fopen(path, mode);
	CHECK(file && fputs(text, file) >= 0 && !fclose(file));
}

static void put_end(int64_t usec, const char *verb, const char *result)
{
	char stamp[SWAP_STAMP_BYTES], line[200];

	swap_stamp(usec, stamp);
	snprintf(line, sizeof(line), "%s %d - verb %s %s\n", stamp, PID, verb, result);
	put("events", "a", line);
}

static int find_end(struct gcr_error *error)
{
	char stamp[SWAP_STAMP_BYTES];

	*error = (struct gcr_error){0};
	swap_stamp(NOW_USEC, stamp);
	return swap_find_end(mount, PID, "thaw", stamp, error);
}

static void test_stamp(void)
{
	char stamp[SWAP_STAMP_BYTES], later[SWAP_STAMP_BYTES];

	swap_stamp(NOW_USEC + 7, stamp);
	CHECK(!strcmp(stamp, "2023-11-14T22:13:20.000007Z"));
	swap_stamp(NOW_USEC + GCR_USEC_PER_SEC, later);
	CHECK(strcmp(stamp, later) < 0);
}

/*
 * Results of verbs before this one, and of another verb after it, in `error` and the events are
 * ignored.
 */
static void test_earlier_verb(void)
{
	struct gcr_error error;

	put("events", "w", "");
	put("error", "w", "EIO: that was before\n");
	put_end(NOW_USEC - 1, "thaw", "EIO that was before");
	put_end(NOW_USEC + 9, "freeze", "EINVAL it is frozen");
	CHECK(find_end(&error) == -ENOENT && !*error.words);
	put_end(NOW_USEC + 10, "thaw", "ENOMEM too little is free");
	put_end(NOW_USEC + 11, "freeze", "EINVAL it is frozen");
	CHECK(find_end(&error) == -ENOMEM);
	CHECK(!strcmp(error.words, "ENOMEM: too little is free"));
	put_end(NOW_USEC + 12, "thaw", "ok");
	CHECK(find_end(&error) == 0);
}

/*
 * The message of a refused write comes from `error` if that has the same errno; otherwise `error`
 * is of an earlier verb.
 */
static void test_refused_write(void)
{
	struct gcr_error error = {0};
	char path[64];

	put("error", "w", "EIO: that was before\n");
	path_of("ctl", path, sizeof(path));
	CHECK(!symlink("/dev/full", path));
	CHECK(swap_write_verb(mount, PID, "thaw", false, &error) == -ENOSPC);
	CHECK(!strcmp(error.words, strerror(ENOSPC)) && error.number == ENOSPC);
	put("error", "w", "ENOSPC: the disk is full\n");
	CHECK(swap_write_verb(mount, PID, "thaw", false, &error) == -ENOSPC);
	CHECK(!strcmp(error.words, "ENOSPC: the disk is full"));
}

static void clear(void)
{
	static const char *const names[] = {"events", "error", "ctl", ""};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++) {
		char path[64];

		path_of(names[i], path, sizeof(path));
		CHECK(!remove(path));
	}
	CHECK(!rmdir(mount));
}

int main(void)
{
	struct gcr_error error;
	char path[64];

	CHECK(mkdtemp(mount));
	path_of("", path, sizeof(path));
	CHECK(!mkdir(path, 0700));
	test_stamp();
	test_earlier_verb();
	test_refused_write();
	clear();
	CHECK(find_end(&error) == -ESRCH);
	return 0;
}

/* SPDX-License-Identifier: MIT */
/* Sizes of event logs: of one log, and of all logs of a user together. */
#include "fs/base/event.h"

#include "test/unit/test.h"

#define ALICE 4001
#define BOB   4002
#define LOGS  40

static size_t size_of(struct gcr_event_log *log)
{
	int64_t mtime_usec;
	uint64_t bytes;

	gcr_event_log_stat(log, &bytes, &mtime_usec);
	return bytes;
}

/* Puts more into the log than it can have; the last line has to be in it. */
static void fill(struct gcr_event_log *log)
{
	static char text[GCR_EVENT_LOG_BYTES_MAX + 1];
	struct gcr_event_reader *reader;
	size_t size;

	for (int i = 0; i < GCR_EVENT_LOG_BYTES_MAX / 800; i++)
		gcr_event_log_put(log, "%0900d", i);
	gcr_event_log_put(log, "the last one");
	CHECK(!gcr_event_reader_create(log, ALICE, &reader));
	size = gcr_event_reader_read(reader, 0, text, sizeof(text) - 1);
	CHECK(size == size_of(log) && size <= GCR_EVENT_LOG_BYTES_MAX);
	CHECK(size > 13 && !memcmp(text + size - 13, "the last one\n", 13));
	gcr_event_reader_destroy(reader);
}

static struct gcr_event_log *filled(uid_t owner)
{
	struct gcr_event_log *log;

	CHECK(!gcr_event_log_create_of(owner, &log));
	fill(log);
	return log;
}

/* A user has many processes, and fills the events of all of them. */
static void test_owner(void)
{
	struct gcr_event_log *logs[LOGS], *other, *roots[LOGS];
	size_t bytes = 0;

	for (int i = 0; i < LOGS; i++) {
		logs[i] = filled(ALICE);
		bytes += size_of(logs[i]);
	}
	CHECK(bytes <= GCR_EVENT_OWNER_BYTES_MAX + LOGS * GCR_EVENT_LOG_BYTES_ALWAYS);
	CHECK(bytes > GCR_EVENT_OWNER_BYTES_MAX / 4);
	/* Others have what is theirs, and root any number. */
	other = filled(BOB);
	CHECK(size_of(other) >= GCR_EVENT_LOG_BYTES_MAX / 2);
	for (int i = 0; i < LOGS; i++) {
		roots[i] = filled(0);
		CHECK(size_of(roots[i]) >= GCR_EVENT_LOG_BYTES_MAX / 2);
	}
	for (int i = 0; i < LOGS; i++) {
		gcr_event_log_unref(logs[i]);
		gcr_event_log_unref(roots[i]);
	}
	gcr_event_log_unref(other);
	/* What has ended does not count. */
	other = filled(ALICE);
	CHECK(size_of(other) >= GCR_EVENT_LOG_BYTES_MAX / 2);
	gcr_event_log_unref(other);
}

int main(void)
{
	test_owner();
	return 0;
}

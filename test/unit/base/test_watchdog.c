/* SPDX-License-Identifier: MIT */
/* The watchdog: a stuck request stops the calls of well() until it ends; quick requests do not. */
#include <stdatomic.h>
#include <unistd.h>

#include "fs/base/watchdog.h"
#include "test/unit/test.h"

#define PERIOD_USEC (5 * GCR_USEC_PER_MSEC)
#define NEVER_USEC  (3600 * GCR_USEC_PER_SEC)

static atomic_int words;

static void well(void)
{
	atomic_fetch_add(&words, 1);
}

static struct gcr_watchdog *start(int64_t legal_usec)
{
	const struct gcr_watchdog_config config = {
		.legal_usec = legal_usec,
		.period_usec = PERIOD_USEC,
		.well = well,
	};
	struct gcr_watchdog *watchdog = NULL;

	CHECK(gcr_watchdog_create(&config, &watchdog) == 0);
	return watchdog;
}

static void await_words(int more)
{
	int goal = atomic_load(&words) + more;

	for (int i = 0; i < 10000 && atomic_load(&words) < goal; i++)
		usleep(1000);
	CHECK(atomic_load(&words) >= goal);
}

/* Returns whether well() was not called for twenty periods. */
static bool is_silent(void)
{
	int before = atomic_load(&words);

	usleep(20 * PERIOD_USEC);
	return atomic_load(&words) == before;
}

static void await_silence(void)
{
	bool is = false;

	for (int i = 0; i < 100 && !is; i++)
		is = is_silent();
	CHECK(is);
}

static void test_idle_and_quick(void)
{
	struct gcr_watchdog *watchdog = start(NEVER_USEC);
	struct gcr_watched watched;

	await_words(3);
	gcr_watchdog_begin(&watched, "read", 1, "ctl", 0);
	await_words(3); /* long, but legal */
	gcr_watchdog_end(&watched);
	gcr_watchdog_destroy(watchdog);
	CHECK(is_silent());
}

static void test_held_up(void)
{
	struct gcr_watchdog *watchdog = start(PERIOD_USEC);
	struct gcr_watched first, stuck, last;

	await_words(1);
	gcr_watchdog_begin(&first, "read", 1, "status", 0);
	gcr_watchdog_begin(&stuck, "lookup", 2, "ctl", 1);
	gcr_watchdog_begin(&last, "write", 3, "ctl", 2);
	await_silence();
	/* One stuck request is enough, wherever it is in the list. */
	gcr_watchdog_end(&first);
	gcr_watchdog_end(&last);
	CHECK(is_silent());
	gcr_watchdog_end(&stuck);
	await_words(3);
	gcr_watchdog_destroy(watchdog);
}

/* Many requests begin and end in any order; each is quick. */
static void test_many(void)
{
	struct gcr_watchdog *watchdog = start(NEVER_USEC);
	struct gcr_watched watched[64];

	for (int round = 0; round < 1000; round++) {
		for (int i = 0; i < 64; i++)
			gcr_watchdog_begin(&watched[i], "read", (uint64_t)i, "status", 0);
		for (int i = 0; i < 64; i++)
			gcr_watchdog_end(&watched[(i * 7 + round) % 64]);
	}
	await_words(2);
	gcr_watchdog_destroy(watchdog);
	gcr_watchdog_destroy(NULL);
}

int main(void)
{
	test_idle_and_quick();
	test_held_up();
	test_many();
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * Limits of look-ups: each owner has a share of the time, independent of other owners, and root is
 * not limited.
 */
#include "fs/base/turns.h"

#include "lib/clock.h"
#include "test/unit/test.h"

#define ALICE 4001
#define BOB   4002
#define CAROL 4003
#define DAVE  4004
#define FIRST 5000 /* first uid of many */

static struct gcr_quota *quota;

/* Makes a look-up that takes @took_usec; false: it was refused. */
static bool look_up(uid_t uid, int64_t took_usec)
{
	struct gcr_turn turn;

	if (!gcr_turn_begin_lookup(quota, uid, &turn))
		return false;
	turn.began_usec -= took_usec;
	gcr_turn_end(&turn);
	return true;
}

static void test_share(void)
{
	CHECK(look_up(ALICE, GCR_TURNS_AHEAD_USEC / 2));
	CHECK(look_up(ALICE, GCR_USEC_PER_SEC * 100));
	CHECK(!look_up(ALICE, 0));
	CHECK(look_up(BOB, 0));
}

/*
 * Waits that do not keep a directory locked are neither charged nor refused; root's look-ups are
 * not limited.
 */
static void test_others(void)
{
	struct gcr_turn turn;

	CHECK(gcr_turn_begin(quota, ALICE, &turn) && !turn.began_usec);
	gcr_turn_end(&turn);
	for (int i = 0; i < 3; i++)
		CHECK(look_up(0, GCR_USEC_PER_SEC * 100));
}

/* Quick look-ups cost nothing; slow ones count, together with those that are counted anyway. */
static void test_quick(void)
{
	for (int i = 0; i < 1000; i++)
		gcr_turn_looked_up(quota, CAROL, gcr_clock_usec() - GCR_TURNS_QUICK_USEC / 2);
	CHECK(gcr_turn_may_look_up(quota, CAROL) && look_up(CAROL, 0));
	gcr_turn_looked_up(quota, CAROL, gcr_clock_usec() - 2 * GCR_TURNS_AHEAD_USEC);
	CHECK(!gcr_turn_may_look_up(quota, CAROL) && !look_up(CAROL, 0));
	gcr_turn_looked_up(quota, 0, gcr_clock_usec() - 100 * GCR_USEC_PER_SEC);
	CHECK(gcr_turn_may_look_up(quota, 0) && gcr_turn_may_look_up(quota, BOB));
}

/* Connections have a debt of their own, for the time that was waited. */
static void test_connections(void)
{
	gcr_turn_connected(quota, DAVE, 0);
	CHECK(gcr_turn_may_connect(quota, DAVE));
	gcr_turn_connected(quota, DAVE, GCR_TURNS_AHEAD_USEC / 2);
	CHECK(gcr_turn_may_connect(quota, DAVE));
	gcr_turn_connected(quota, DAVE, GCR_TURNS_AHEAD_USEC);
	CHECK(!gcr_turn_may_connect(quota, DAVE) && gcr_turn_may_look_up(quota, DAVE));
	CHECK(gcr_turn_may_connect(quota, CAROL));
	gcr_turn_connected(quota, 0, 100 * GCR_USEC_PER_SEC);
	CHECK(gcr_turn_may_connect(quota, 0));
}

/* More owners than the table remembers: those with the largest debt stay. */
static void test_many(void)
{
	for (uid_t uid = FIRST; uid < FIRST + 1000; uid++)
		CHECK(look_up(uid, GCR_USEC_PER_SEC));
	CHECK(!look_up(ALICE, 0));
}

int main(void)
{
	static const struct gcr_quota_limits limits = {.most = {[GCR_QUOTA_PLACES] = 1}};

	CHECK(!gcr_quota_create(&limits, "/nonexistent", 0, &quota));
	test_share();
	test_others();
	test_quick();
	test_connections();
	test_many();
	gcr_quota_destroy(quota);
	return 0;
}

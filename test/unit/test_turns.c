/* SPDX-License-Identifier: MIT */
/* Look-ups of one owner have a share of time, others' are none of his, and root has no share. */
#include "fs/base/turns.h"

#include "lib/clock.h"
#include "test.h"

#define ALICE 4001
#define BOB   4002
#define FIRST 5000 /* of a crowd */

static struct gcr_quota *quota;

/* A look-up that has taken so long; false: it was refused. */
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

/* What does not keep a directory locked is not charged, nor refused. */
static void test_others(void)
{
	struct gcr_turn turn;

	CHECK(gcr_turn_begin(quota, ALICE, &turn) && !turn.began_usec);
	gcr_turn_end(&turn);
	for (int i = 0; i < 3; i++)
		CHECK(look_up(0, GCR_USEC_PER_SEC * 100));
}

/* More than are remembered: those who owe the most stay. */
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
	test_many();
	gcr_quota_destroy(quota);
	return 0;
}

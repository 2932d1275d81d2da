/* SPDX-License-Identifier: MIT */
/*
 * fs/engine/admission.c: one verb at a time on a GPU, and the VRAM noted for verbs that have given
 * their admission up because their process does not answer.
 */
#include "fs/engine/admission.h"

#include "test/unit/test.h"

static void test_turns(struct gcr_admission *admission)
{
	CHECK(gcr_admission_take(admission, 0x5, 10));
	CHECK(!gcr_admission_take(admission, 0x4, 11));
	/* A mask of GPUs is taken completely or not at all. */
	CHECK(!gcr_admission_take(admission, 0x6, 11));
	CHECK(gcr_admission_take(admission, 0x2, 11));
	gcr_admission_leave(admission, 0x5);
	CHECK(gcr_admission_take(admission, 0x80000001u, 12));
	gcr_admission_leave(admission, 0x80000003u);
	CHECK(gcr_admission_take(admission, UINT32_MAX, 13));
	gcr_admission_leave(admission, UINT32_MAX);
	CHECK(gcr_admission_take(admission, 0, 14));
}

/* One client's waiters, however many, do not come before another client's a second time. */
static void test_clients(struct gcr_admission *admission)
{
	struct gcr_fair_waiter many[3], other = {.client = 2, .mask = 0x3};

	for (size_t i = 0; i < 3; i++) {
		many[i] = (struct gcr_fair_waiter){.client = 1, .mask = 0x1};
		gcr_admission_join(admission, &many[i]);
	}
	gcr_admission_join(admission, &other);
	CHECK(!gcr_admission_take_turn(admission, &other, 20));
	CHECK(gcr_admission_take_turn(admission, &many[0], 10));
	CHECK(!gcr_admission_take_turn(admission, &other, 20));
	gcr_admission_leave(admission, 0x1);
	CHECK(!gcr_admission_take_turn(admission, &many[1], 11));
	CHECK(gcr_admission_take_turn(admission, &other, 20));
	gcr_admission_leave(admission, 0x3);
	/* By arrival, but for one that waits no more. */
	CHECK(!gcr_admission_take_turn(admission, &many[2], 12));
	gcr_admission_quit(admission, &many[1]);
	gcr_admission_quit(admission, &many[1]);
	CHECK(gcr_admission_take_turn(admission, &many[2], 12));
	gcr_admission_quit(admission, &many[2]);
	gcr_admission_leave(admission, 0x1);
}

static void test_needs(struct gcr_admission *admission)
{
	struct gcr_need first = {.owner = &first, .pid = 10, .bytes = {[1] = 100, [3] = 7}};
	struct gcr_need second = {.owner = &second, .pid = 11, .bytes = {[1] = UINT64_MAX - 1}};
	struct gcr_admission_holder holders[4];

	CHECK(gcr_admission_take(admission, 0x2, 10));
	gcr_admission_give_up(admission, 0x2, &first);
	CHECK(first.is_noted && gcr_admission_take(admission, 0x2, 12));
	CHECK(gcr_admission_needed(admission, 1, NULL) == 100);
	CHECK(gcr_admission_needed(admission, 3, &second) == 7);
	CHECK(gcr_admission_needed(admission, 0, NULL) == 0);
	/* A need does not count against its own owner, only against others. */
	CHECK(gcr_admission_needed(admission, 1, &first) == 0);
	/* Giving up a second time keeps the same need. */
	gcr_admission_give_up(admission, 0, &first);
	CHECK(gcr_admission_needed(admission, 1, NULL) == 100);
	gcr_admission_give_up(admission, 0, &second);
	CHECK(gcr_admission_needed(admission, 1, NULL) == UINT64_MAX);
	CHECK(gcr_admission_holders(admission, 1, holders, 4) == 3);
	CHECK(holders[0].pid == 12 && !holders[0].is_need);
	CHECK(holders[1].is_need && holders[2].is_need);
	CHECK(holders[1].pid + holders[2].pid == 21);
	CHECK(gcr_admission_holders(admission, 1, holders, 1) == 1);
	CHECK(gcr_admission_holders(admission, 3, holders, 4) == 1);
	CHECK(holders[0].pid == 10 && holders[0].need_bytes == 7);
	gcr_admission_end_need(admission, &first);
	gcr_admission_end_need(admission, &first);
	CHECK(!first.is_noted);
	CHECK(gcr_admission_needed(admission, 1, NULL) == UINT64_MAX - 1);
	gcr_admission_end_need(admission, &second);
	CHECK(gcr_admission_needed(admission, 1, NULL) == 0);
	gcr_admission_leave(admission, 0x2);
}

int main(void)
{
	struct gcr_admission *admission = gcr_admission_create();

	CHECK(admission);
	test_turns(admission);
	test_clients(admission);
	test_needs(admission);
	gcr_admission_destroy(admission);
	gcr_admission_destroy(NULL);
	return 0;
}

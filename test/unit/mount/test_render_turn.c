/* SPDX-License-Identifier: MIT */
/*
 * The order in which users' texts are written, how many are written at a time, and how waiting
 * requests end.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "fs/mount/render_turn.h"
#include "test/unit/test.h"

#define ROOT  0
#define ALICE 4001
#define BOB   4002
#define CAROL 4003
#define DAVE  4004
#define MANY  1000

static atomic_int order, running, most_running;
static atomic_int running_of[DAVE + 1];
static atomic_bool gate_is_shut; /* slow texts last until this is false */

struct open {
	struct gcr_render_turn turn; /* must be the first member */
	bool is_slow;
	atomic_bool has_begun;
	atomic_int place; /* position in the order of the answers; 0: not answered */
	int result;
};

static void run(struct gcr_render_turn *turn, int result)
{
	struct open *open = (struct open *)turn;
	int now;

	CHECK(!open->place);
	open->result = result;
	if (!result) {
		now = atomic_fetch_add(&running, 1) + 1;
		if (now > most_running)
			most_running = now;
		now = atomic_fetch_add(&running_of[turn->owner], 1) + 1;
		CHECK(turn->owner == ROOT || now <= GCR_RENDER_OWNER_MAX);
		open->has_begun = true;
		while (open->is_slow && gate_is_shut)
			usleep(1000);
		atomic_fetch_sub(&running_of[turn->owner], 1);
		atomic_fetch_sub(&running, 1);
	}
	open->place = atomic_fetch_add(&order, 1) + 1;
}

static struct open make(uid_t owner, bool is_slow)
{
	return (struct open){.turn = {.owner = owner, .run = run}, .is_slow = is_slow};
}

static void await_answer(const struct open *open)
{
	for (int i = 0; i < 20000 && !open->place; i++)
		usleep(1000);
	CHECK(open->place);
}

static void await_begin(const struct open *open)
{
	for (int i = 0; i < 20000 && !open->has_begun; i++)
		usleep(1000);
	CHECK(open->has_begun);
}

static struct gcr_render_turns *start(struct gcr_quota **ret_quota)
{
	const struct gcr_quota_limits limits = {0};
	struct gcr_render_turns *turns;

	order = most_running = 0;
	CHECK(!gcr_quota_create(&limits, "/nonexistent", 0, ret_quota));
	CHECK(!gcr_render_turns_create(*ret_quota, &turns));
	return turns;
}

static void end(struct gcr_render_turns *turns, struct gcr_quota *quota)
{
	gcr_render_turns_stop(turns);
	CHECK(!running);
	gcr_render_turns_destroy(turns);
	gcr_quota_destroy(quota);
}

static void test_another_does_not_wait(void)
{
	static struct open alices[MANY], bobs[3];
	struct gcr_quota *quota;
	struct gcr_render_turns *turns = start(&quota);
	int last;

	gate_is_shut = true;
	for (int i = 0; i < MANY; i++) {
		alices[i] = make(ALICE, true);
		gcr_render_turns_add(turns, &alices[i].turn);
	}
	await_begin(&alices[0]);
	for (int i = 0; i < 3; i++) {
		bobs[i] = make(BOB, false);
		gcr_render_turns_add(turns, &bobs[i].turn);
		await_answer(&bobs[i]);
	}
	CHECK(!alices[1].has_begun);
	gate_is_shut = false;
	await_answer(&alices[MANY - 1]);
	last = bobs[2].place;
	for (int i = 0; i < MANY; i++)
		CHECK(alices[i].place == last + 1 + i && !alices[i].result);
	end(turns, quota);
}

/*
 * Slow texts occupy all threads that users may have: root still has a thread, and users continue
 * afterwards.
 */
static void test_rotation(void)
{
	static struct open slow[3], alices[20], daves[20], roots;
	struct gcr_quota *quota;
	struct gcr_render_turns *turns = start(&quota);

	gate_is_shut = true;
	for (int i = 0; i < 3; i++) {
		slow[i] = make(ALICE + (uid_t)i, true);
		gcr_render_turns_add(turns, &slow[i].turn);
		await_begin(&slow[i]);
	}
	for (int i = 0; i < 20; i++) {
		alices[i] = make(ALICE, false);
		gcr_render_turns_add(turns, &alices[i].turn);
	}
	for (int i = 0; i < 20; i++) {
		daves[i] = make(DAVE, false);
		gcr_render_turns_add(turns, &daves[i].turn);
	}
	roots = make(ROOT, false);
	gcr_render_turns_add(turns, &roots.turn);
	await_answer(&roots);
	CHECK(!alices[0].has_begun && !daves[0].has_begun);
	CHECK(most_running == GCR_RENDER_LIMITED + 1);
	gate_is_shut = false;
	await_answer(&alices[19]);
	await_answer(&daves[19]);
	/* Neither user waits for all texts of the other. */
	CHECK(daves[0].place < alices[19].place);
	CHECK(most_running <= GCR_RENDER_THREADS);
	end(turns, quota);
}

static void test_interrupted(void)
{
	static struct open opens[4], early, alone;
	struct gcr_quota *quota;
	struct gcr_render_turns *turns = start(&quota);

	gate_is_shut = true;
	for (int i = 0; i < 4; i++) {
		opens[i] = make(ALICE, i == 0);
		gcr_render_turns_add(turns, &opens[i].turn);
	}
	await_begin(&opens[0]);
	gcr_render_turns_interrupt(turns, &opens[0].turn); /* has begun, so it is finished */
	gcr_render_turns_interrupt(turns, &opens[2].turn);
	gcr_render_turns_interrupt(turns, &opens[3].turn);
	await_answer(&opens[2]);
	await_answer(&opens[3]);
	CHECK(opens[2].result == -EINTR && opens[3].result == -EINTR);
	CHECK(!opens[1].place);
	/* Interrupted before it was added: it must not begin to wait. */
	early = make(ALICE, false);
	gcr_render_turns_interrupt(turns, &early.turn);
	gcr_render_turns_add(turns, &early.turn);
	CHECK(early.place && early.result == -EINTR);
	alone = make(BOB, false);
	gcr_render_turns_interrupt(turns, &alone.turn);
	gcr_render_turns_add(turns, &alone.turn);
	await_answer(&alone);
	CHECK(!alone.result);
	CHECK(!opens[0].place);
	gate_is_shut = false;
	await_answer(&opens[1]);
	CHECK(!opens[0].result && !opens[1].result);
	end(turns, quota);
}

static void *open_the_gate(void *data)
{
	usleep(100 * 1000);
	gate_is_shut = false;
	return NULL;
}

/* The text that is being written is finished; all other requests are answered. */
static void test_stop(void)
{
	static struct open opens[MANY], late;
	struct gcr_quota *quota;
	struct gcr_render_turns *turns = start(&quota);
	pthread_t opener;

	gate_is_shut = true;
	for (int i = 0; i < MANY; i++) {
		opens[i] = make(ALICE + (uid_t)i % 2, true);
		gcr_render_turns_add(turns, &opens[i].turn);
	}
	await_begin(&opens[0]);
	await_begin(&opens[1]);
	gcr_render_turns_interrupt(turns, &opens[2].turn);
	CHECK(!pthread_create(&opener, NULL, open_the_gate, NULL));
	gcr_render_turns_stop(turns);
	pthread_join(opener, NULL);
	CHECK(!opens[0].result && !opens[1].result);
	for (int i = 0; i < MANY; i++)
		CHECK(opens[i].place && (!opens[i].result || opens[i].result == -ECONNABORTED ||
					 opens[i].result == -EINTR));
	CHECK(opens[MANY - 1].result == -ECONNABORTED);
	late = make(BOB, false);
	gcr_render_turns_add(turns, &late.turn);
	CHECK(late.place && late.result == -ECONNABORTED);
	end(turns, quota);
}

int main(void)
{
	test_another_does_not_wait();
	test_rotation();
	test_interrupted();
	test_stop();
	return 0;
}

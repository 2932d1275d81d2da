/* SPDX-License-Identifier: MIT */
/* The policy of gpucr-swap in single situations, each of which it once got wrong. */
#include <errno.h>

#include "test/unit/test.h"
#include "tools/swap/policy.h"

#define MSEC INT64_C(1000)
#define SEC  (1000 * MSEC)
#define GIB  (UINT64_C(1) << 30)

struct scene {
	struct swap_policy *policy;
	struct swap_config config;
	struct swap_process processes[6];
	struct swap_situation situation;
	struct swap_decision decision;
	struct swap_action actions[6];
	struct swap_note notes[6];
};

static void make_scene(struct scene *scene, size_t count, uint64_t free_bytes)
{
	*scene = (struct scene){
		.config = {.idle_usec = 3600 * SEC, .slice_usec = SEC, .gpus = SWAP_ALL_GPUS},
		.situation = {.gpus = 1, .count = count},
	};
	scene->policy = swap_policy_create(&scene->config);
	CHECK(scene->policy);
	scene->situation.free_bytes[0] = free_bytes;
	for (size_t i = 0; i < count; i++)
		scene->processes[i] = (struct swap_process){
			.pid = 100 + (int)i,
			.start_ticks = 1,
			.state_since = 1,
			.can_tell = true,
			.gpus = 1,
		};
}

static void set_running(struct scene *scene, size_t i, uint64_t bytes)
{
	scene->processes[i].state = SWAP_RUNNING;
	scene->processes[i].wanted = 0;
	scene->processes[i].state_since++;
	scene->processes[i].vram_bytes[0] = bytes;
	scene->processes[i].need_bytes[0] = 0;
}

static void set_wanting(struct scene *scene, size_t i, uint64_t bytes, uint64_t since)
{
	scene->processes[i].state = SWAP_FROZEN;
	scene->processes[i].wanted = since;
	scene->processes[i].state_since++;
	scene->processes[i].vram_bytes[0] = 0;
	scene->processes[i].need_bytes[0] = bytes;
}

static size_t decide_at(struct scene *scene, int64_t now_usec)
{
	scene->situation.processes = scene->processes;
	scene->decision.actions = scene->actions;
	scene->decision.notes = scene->notes;
	CHECK(!swap_policy_decide(scene->policy, &scene->situation, now_usec, &scene->decision));
	return scene->decision.actions_count;
}

static void carry_out(struct scene *scene, size_t i, int number, int64_t now_usec)
{
	const struct swap_action action = scene->actions[i];

	swap_policy_begun(scene->policy, action.pid, &action, now_usec);
	swap_policy_ended(scene->policy, action.pid, number, now_usec);
}

/*
 * A stopped program cannot be frozen: the freeze is retried later, and the waiting program gets its
 * turn.
 */
static void test_stopped(void)
{
	struct scene scene;
	int64_t now_usec = 10 * SEC;

	make_scene(&scene, 2, 1 * GIB);
	set_running(&scene, 0, 20 * GIB);
	set_wanting(&scene, 1, 20 * GIB, 5);
	CHECK(decide_at(&scene, now_usec) == 1 && scene.actions[0].verb == SWAP_FREEZE);
	carry_out(&scene, 0, EOPNOTSUPP, now_usec);
	now_usec += SEC / 2;
	CHECK(decide_at(&scene, now_usec) == 0 && scene.notes[1].why == SWAP_WHY_UNABLE);
	CHECK(scene.notes[1].other == 100 && scene.decision.next_usec <= now_usec + SEC);
	now_usec += 5 * SEC;
	CHECK(decide_at(&scene, now_usec) == 1 && scene.actions[0].pid == 100);
	carry_out(&scene, 0, 0, now_usec);
	set_wanting(&scene, 0, 20 * GIB, 9);
	scene.situation.free_bytes[0] = 21 * GIB;
	CHECK(decide_at(&scene, now_usec) == 1 && scene.actions[0].pid == 101);
	swap_policy_destroy(scene.policy);
}

/*
 * A foreign program has 95 of 150 GiB; two servers of 24 GiB run, and two wait. A thaw that fails
 * for a passing shortage does not keep its server waiting for ever.
 */
static void test_passing_shortage(void)
{
	int64_t now_usec = 10 * SEC, until_usec = now_usec + 60 * SEC;
	unsigned int turns = 0;
	struct scene scene;

	make_scene(&scene, 4, 6 * GIB);
	set_running(&scene, 0, 24 * GIB);
	set_running(&scene, 1, 24 * GIB);
	set_wanting(&scene, 2, 24 * GIB, 5);
	set_wanting(&scene, 3, 24 * GIB, 6);
	for (; now_usec < until_usec && !turns; now_usec += SEC / 10) {
		size_t count = decide_at(&scene, now_usec);

		for (size_t i = 0; i < count; i++) {
			struct swap_action action = scene.actions[i];
			size_t which = (size_t)action.pid - 100;
			/* For 20 seconds every thaw fails. */
			bool fails = action.verb == SWAP_THAW && now_usec < 30 * SEC;

			carry_out(&scene, i, fails ? ENOMEM : 0, now_usec);
			if (fails)
				continue;
			if (action.verb == SWAP_FREEZE) {
				set_wanting(&scene, which, 24 * GIB, (uint64_t)now_usec);
				scene.situation.free_bytes[0] += 24 * GIB;
			} else {
				set_running(&scene, which, 24 * GIB);
				scene.situation.free_bytes[0] -= 24 * GIB;
				turns += now_usec >= 30 * SEC;
			}
		}
	}
	CHECK(turns);
	swap_policy_destroy(scene.policy);
}

/*
 * The policy may not freeze one program, and freezing the others would not make enough room: no
 * program is frozen, and the note gives the reason.
 */
static void test_not_in_vain(void)
{
	struct scene scene;

	make_scene(&scene, 4, 1 * GIB);
	set_running(&scene, 0, 10 * GIB);
	set_running(&scene, 1, 10 * GIB);
	set_running(&scene, 2, 30 * GIB);
	scene.processes[2].can_tell = false;
	set_wanting(&scene, 3, 40 * GIB, 5);
	CHECK(decide_at(&scene, 10 * SEC) == 0 && decide_at(&scene, 11 * SEC) == 0);
	CHECK(scene.notes[3].why == SWAP_WHY_TOO_LARGE && scene.decision.next_usec < 20 * SEC);
	/* If some of them are enough, no more than needed are frozen. */
	set_wanting(&scene, 3, 11 * GIB, 6);
	CHECK(decide_at(&scene, 20 * SEC) == 0 && decide_at(&scene, 21 * SEC) == 1);
	CHECK(scene.actions[0].verb == SWAP_FREEZE && scene.actions[0].for_pid == 103);
	swap_policy_destroy(scene.policy);
}

/*
 * A program that has to wait because another cannot be frozen does not keep the GPU from a program
 * that fits.
 */
static void test_unable_keeps_nothing(void)
{
	struct scene scene;

	make_scene(&scene, 3, 10 * GIB);
	set_running(&scene, 0, 30 * GIB);
	set_wanting(&scene, 1, 35 * GIB, 5);
	set_wanting(&scene, 2, 8 * GIB, 6);
	CHECK(decide_at(&scene, 10 * SEC) == 1 && scene.actions[0].pid == 100);
	carry_out(&scene, 0, EOPNOTSUPP, 10 * SEC);
	CHECK(decide_at(&scene, 10 * SEC + SEC / 2) == 1);
	CHECK(scene.actions[0].verb == SWAP_THAW && scene.actions[0].pid == 102);
	CHECK(scene.notes[1].why == SWAP_WHY_UNABLE && scene.notes[1].other == 100);
	swap_policy_destroy(scene.policy);
}

/* A failed freeze of a program is not held against a new program with the same pid. */
static void test_pid_used_again(void)
{
	struct scene scene;

	make_scene(&scene, 2, 1 * GIB);
	set_running(&scene, 0, 20 * GIB);
	set_wanting(&scene, 1, 20 * GIB, 5);
	CHECK(decide_at(&scene, 10 * SEC) == 1 && scene.actions[0].pid == 100);
	carry_out(&scene, 0, EIO, 10 * SEC);
	CHECK(decide_at(&scene, 13 * SEC) == 0 && scene.notes[1].why == SWAP_WHY_UNABLE);
	scene.processes[0].start_ticks++;
	scene.processes[0].state_since++;
	/* The new program has its slice, and no more. */
	CHECK(decide_at(&scene, 13 * SEC) == 0 && scene.notes[1].why == SWAP_WHY_SLICE);
	CHECK(decide_at(&scene, 14 * SEC) == 1 && scene.actions[0].pid == 100);
	swap_policy_destroy(scene.policy);
}

/*
 * A program is too large, and no event reports VRAM freed by others: the policy looks again within
 * 5 seconds.
 */
static void test_looks_again(void)
{
	struct scene scene;

	make_scene(&scene, 2, 1 * GIB);
	set_running(&scene, 0, 10 * GIB);
	set_wanting(&scene, 1, 40 * GIB, 5);
	decide_at(&scene, 10 * SEC);
	CHECK(decide_at(&scene, 11 * SEC) == 0 && scene.notes[1].why == SWAP_WHY_TOO_LARGE);
	CHECK(scene.decision.next_usec <= 16 * SEC);
	scene.situation.free_bytes[0] = 41 * GIB;
	CHECK(decide_at(&scene, scene.decision.next_usec) == 1);
	CHECK(scene.actions[0].verb == SWAP_THAW && scene.actions[0].pid == 101);
	swap_policy_destroy(scene.policy);
}

/* A verb that hangs does not block the GPU for ever. */
static void test_hanging(void)
{
	struct scene scene;

	make_scene(&scene, 3, 1 * GIB);
	set_running(&scene, 0, 20 * GIB);
	set_running(&scene, 1, 20 * GIB);
	set_wanting(&scene, 2, 20 * GIB, 5);
	CHECK(decide_at(&scene, 10 * SEC) == 1);
	swap_policy_begun(scene.policy, scene.actions[0].pid, &scene.actions[0], 10 * SEC);
	CHECK(decide_at(&scene, 12 * SEC) == 0 && scene.notes[2].why == SWAP_WHY_MOVING);
	CHECK(scene.decision.next_usec <= 22 * SEC);
	CHECK(decide_at(&scene, 21 * SEC) == 1);
	swap_policy_destroy(scene.policy);
}

struct slow_verbs {
	struct swap_action actions[2];
	int64_t ends_usec[2];
	unsigned int told; /* failures that are to be reported to the user */
};

/*
 * Ends verbs: program 1 takes 5 GiB when it is thawed; each thaw of program 0 fails for lack of
 * VRAM.
 */
static void end_slow_verbs(struct scene *scene, struct slow_verbs *verbs, int64_t now_usec)
{
	for (size_t i = 0; i < 2; i++) {
		if (!verbs->ends_usec[i] || verbs->ends_usec[i] > now_usec)
			continue;
		verbs->ends_usec[i] = 0;
		verbs->told += swap_policy_ended(scene->policy, verbs->actions[i].pid,
						 i ? 0 : ENOMEM, now_usec);
		if (!i) {
			set_wanting(scene, 0, 15 * GIB, 5);
		} else if (verbs->actions[i].verb == SWAP_FREEZE) {
			set_wanting(scene, 1, 5 * GIB, (uint64_t)now_usec);
			scene->situation.free_bytes[0] += 5 * GIB;
		} else {
			set_running(scene, 1, 5 * GIB);
			scene->situation.free_bytes[0] -= 5 * GIB;
		}
	}
}

/*
 * A thaw needs more than can ever be free. The program that was frozen for it does not come back
 * while the thaw is tried: otherwise that program would be the reason of the next failure, again
 * and again.
 */
static void test_hidden_need(void)
{
	int64_t now_usec = 10 * SEC, until_usec = now_usec + 60 * SEC;
	struct slow_verbs verbs = {0};
	unsigned int freezes = 0;
	bool is_said = false;
	struct scene scene;

	make_scene(&scene, 2, 62 * GIB);
	set_wanting(&scene, 0, 15 * GIB, 5);
	set_running(&scene, 1, 5 * GIB);
	for (; now_usec < until_usec; now_usec += SEC / 10) {
		size_t count;

		end_slow_verbs(&scene, &verbs, now_usec);
		count = decide_at(&scene, now_usec);
		for (size_t i = 0; i < count; i++) {
			size_t which = (size_t)scene.actions[i].pid - 100;

			swap_policy_begun(scene.policy, scene.actions[i].pid, &scene.actions[i],
					  now_usec);
			verbs.actions[which] = scene.actions[i];
			verbs.ends_usec[which] = now_usec + (which ? 1 : 3) * SEC / 10;
			scene.processes[which].state = SWAP_MOVING;
			freezes += scene.actions[i].verb == SWAP_FREEZE;
		}
		if (scene.notes[0].why == SWAP_WHY_TOO_LARGE && !is_said) {
			is_said = true;
			CHECK(freezes > 0 && freezes <= 3);
		}
	}
	/*
	 * The policy has doubted the learned need and tried again; the same failure is reported
	 * only once.
	 */
	CHECK(is_said && freezes > 3 && freezes < 20 && verbs.told == 1);
	swap_policy_destroy(scene.policy);
}

/* Decides until the figures are believed. Returns whether a program was to be frozen. */
static bool freezes_any(struct scene *scene)
{
	for (int64_t now_usec = 10 * SEC; now_usec < 30 * SEC; now_usec += SEC / 5)
		for (size_t i = decide_at(scene, now_usec); i-- > 0;)
			if (scene->actions[i].verb == SWAP_FREEZE)
				return true;
	return false;
}

/*
 * A program that wants more than its GPU has can never get it: nobody is frozen for it, whatever
 * others say that they have.
 */
static void test_more_than_the_gpu_has(void)
{
	struct scene scene;

	make_scene(&scene, 3, 10 * GIB);
	scene.situation.total_bytes[0] = 80 * GIB;
	set_running(&scene, 0, 30 * GIB);
	set_running(&scene, 1, 1000 * GIB);
	set_wanting(&scene, 2, 81 * GIB, 5);
	CHECK(!freezes_any(&scene) && scene.notes[2].why == SWAP_WHY_TOO_LARGE);
	set_wanting(&scene, 2, UINT64_MAX, 5);
	CHECK(!freezes_any(&scene) && scene.notes[2].why == SWAP_WHY_TOO_LARGE);
	set_wanting(&scene, 2, 79 * GIB, 5);
	CHECK(freezes_any(&scene));
	swap_policy_destroy(scene.policy);
}

/* Numbers whose sum is more than 64 bits do not keep a program waiting that fits. */
static void test_sum_of_lies(void)
{
	struct scene scene;

	make_scene(&scene, 4, 10 * GIB);
	scene.situation.total_bytes[0] = 80 * GIB;
	set_running(&scene, 0, 30 * GIB);
	set_running(&scene, 1, UINT64_C(1) << 63);
	set_running(&scene, 2, UINT64_C(1) << 63);
	scene.processes[2].unplaced_bytes = UINT64_C(1) << 63;
	set_wanting(&scene, 3, 35 * GIB, 5);
	CHECK(freezes_any(&scene));
	swap_policy_destroy(scene.policy);
}

int main(void)
{
	test_stopped();
	test_passing_shortage();
	test_not_in_vain();
	test_unable_keeps_nothing();
	test_pid_used_again();
	test_looks_again();
	test_hanging();
	test_hidden_need();
	test_more_than_the_gpu_has();
	test_sum_of_lies();
	return 0;
}

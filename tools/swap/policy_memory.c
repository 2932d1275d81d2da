/* SPDX-License-Identifier: MIT */
/*
 * The policy's memory of each process: since when the process is in its state, which verb is under
 * way, and how its verbs ended.
 */
#include "tools/swap/policy.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/clock.h"
#include "tools/swap/policy_private.h"

#define FIGURES_USEC	 (150 * GCR_USEC_PER_MSEC) /* maximum age of figures */
#define CONFIRM_USEC	 (500 * GCR_USEC_PER_MSEC) /* after this delay the figures are reliable */
#define BUSY_USEC	 (1 * GCR_USEC_PER_SEC)
#define FAILED_USEC	 (5 * GCR_USEC_PER_SEC)
#define REFUSED_MAX_USEC (30 * GCR_USEC_PER_SEC)
#define FAILED_MAX_USEC	 (60 * GCR_USEC_PER_SEC)

struct swap_policy *swap_policy_create(const struct swap_config *config)
{
	struct swap_policy *policy = calloc(1, sizeof(*policy));

	if (!policy)
		return NULL;
	policy->config = *config;
	policy->is_first = true;
	return policy;
}

void swap_policy_destroy(struct swap_policy *policy)
{
	if (policy)
		free(policy->memories);
	free(policy);
}

void swap_policy_forget(struct swap_policy *policy)
{
	policy->count = 0;
	policy->is_first = true;
}

static struct memory *find(struct swap_policy *policy, int pid)
{
	for (size_t i = 0; i < policy->count; i++)
		if (policy->memories[i].pid == pid)
			return &policy->memories[i];
	return NULL;
}

static int add_memory(struct swap_policy *policy, const struct swap_process *process)
{
	if (policy->count == policy->room) {
		size_t room = policy->room ? 2 * policy->room : 16;
		struct memory *more = realloc(policy->memories, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		policy->memories = more;
		policy->room = room;
	}
	policy->memories[policy->count++] = (struct memory){
		.pid = process->pid,
		.start_ticks = process->start_ticks,
	};
	return 0;
}

static void wait_for_figures(struct swap_policy *policy, uint32_t gpus, int64_t now_usec)
{
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		if (gpus & 1u << gpu)
			policy->figures_usec[gpu] = now_usec + FIGURES_USEC;
}

static void remember(struct look *look, const struct swap_process *process, struct memory *memory)
{
	struct swap_policy *policy = look->policy;

	if (memory->start_ticks != process->start_ticks)
		*memory = (struct memory){
			.pid = process->pid,
			.start_ticks = process->start_ticks,
		};
	if (!memory->is_known || memory->state_since != process->state_since) {
		memory->since_usec = policy->is_first ? INT64_MIN / 2 : look->now_usec;
		if (memory->is_known)
			wait_for_figures(policy, process->gpus, look->now_usec);
	}
	memory->is_known = true;
	memory->is_seen = true;
	memory->state_since = process->state_since;
	/* Before CONFIRM_USEC has passed, the driver's figure may date from before the freeze. */
	if (process->state == SWAP_FROZEN && look->now_usec >= memory->since_usec + CONFIRM_USEC)
		memory->kept_bytes = policy->config.is_full ? 0 : process->kept_bytes;
	if (process->can_tell)
		memory->mute_usec = 0;
	else if (!memory->mute_usec)
		memory->mute_usec = look->now_usec;
}

int swap_policy_remember(struct look *look)
{
	struct swap_policy *policy = look->policy;
	size_t kept = 0;

	for (size_t i = 0; i < policy->count; i++)
		policy->memories[i].is_seen = false;
	for (size_t i = 0; i < look->situation->count; i++)
		if (!find(policy, look->situation->processes[i].pid) &&
		    add_memory(policy, &look->situation->processes[i]) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < look->situation->count; i++)
		remember(look, &look->situation->processes[i],
			 find(policy, look->situation->processes[i].pid));
	for (size_t i = 0; i < policy->count; i++)
		if (policy->memories[i].is_seen)
			policy->memories[kept++] = policy->memories[i];
	policy->count = kept;
	for (size_t i = 0; i < look->situation->count; i++)
		look->memories[i] = find(policy, look->situation->processes[i].pid);
	policy->is_first = false;
	return 0;
}

void swap_policy_begun(struct swap_policy *policy, int pid, const struct swap_action *action,
		       int64_t now_usec)
{
	struct memory *memory = find(policy, pid);

	if (!memory)
		return;
	memory->action = *action;
	memory->begun_usec = now_usec;
}

static int64_t backoff(int64_t first_usec, int64_t most_usec, unsigned int failures)
{
	while (--failures && first_usec < most_usec)
		first_usec *= 2;
	return first_usec < most_usec ? first_usec : most_usec;
}

static void put_off(struct memory *memory, int number, int64_t now_usec)
{
	memory->failures++;
	if (number == EBUSY)
		memory->retry_usec = now_usec + BUSY_USEC;
	else if (number == EOPNOTSUPP)
		memory->retry_usec =
			now_usec + backoff(BUSY_USEC, REFUSED_MAX_USEC, memory->failures);
	else
		memory->retry_usec =
			now_usec + backoff(FAILED_USEC, FAILED_MAX_USEC, memory->failures);
}

static void succeeded(struct memory *memory, enum swap_verb verb)
{
	memory->failures = 0;
	memory->retry_usec = 0;
	memory->told_number = 0;
	if (verb != SWAP_THAW)
		return;
	memory->is_blind_short = false;
	memory->is_optimistic = false;
	memory->was_short = false;
	memory->shortages = 0;
	memory->doubt_usec = 0;
	memory->most_bytes = 0;
	memory->large_usec = 0;
}

bool swap_policy_ended(struct swap_policy *policy, int pid, int number, int64_t now_usec)
{
	struct memory *memory = find(policy, pid), *other;
	struct swap_action action;
	bool is_new;

	if (!memory || !memory->action.verb)
		return false;
	action = memory->action;
	memory->action = (struct swap_action){0};
	wait_for_figures(policy, SWAP_ALL_GPUS, now_usec);
	if (!number) {
		succeeded(memory, action.verb);
		return false;
	}
	other = action.for_pid ? find(policy, action.for_pid) : NULL;
	if (other)
		other->has_room = false;
	if (action.verb == SWAP_THAW && number == ENOMEM) {
		memory->is_optimistic = false;
		memory->was_short = true;
		memory->is_blind_short = true;
		/*
		 * A first failure, or one where only a thaw can find out, may be due to chance or
		 * old figures: not reported.
		 */
		is_new = memory->shortages++ && !memory->is_blind;
	} else {
		put_off(memory, number, now_usec);
		is_new = number != EBUSY;
	}
	is_new = is_new && memory->told_number != number;
	if (is_new)
		memory->told_number = number;
	return is_new;
}

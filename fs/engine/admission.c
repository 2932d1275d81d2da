/* SPDX-License-Identifier: MIT */
/* The table of admissions (one holder for each GPU) and the list of needs: see admission.h. */
#include "fs/engine/admission.h"

#include <pthread.h>
#include <stdlib.h>

#include "lib/clock.h"
#include "lib/lock.h"

struct gcr_admission {
	pthread_mutex_t lock;
	struct {
		pid_t pid; /* 0: free */
		int64_t since_usec;
	} gpus[GCR_GPUS_MAX];
	struct gcr_need *needs;
	struct gcr_fair_queue queue;
	struct gcr_fair_history histories[GCR_GPUS_MAX]; /* of the queue, by index */
};

struct gcr_admission *gcr_admission_create(void)
{
	struct gcr_admission *admission = calloc(1, sizeof(*admission));

	if (!admission)
		return NULL;
	pthread_mutex_init(&admission->lock, NULL);
	admission->queue.histories = admission->histories;
	return admission;
}

void gcr_admission_destroy(struct gcr_admission *admission)
{
	if (!admission)
		return;
	pthread_mutex_destroy(&admission->lock);
	free(admission);
}

static bool is_free_locked(const struct gcr_admission *admission, uint32_t mask)
{
	for (unsigned int i = 0; i < GCR_GPUS_MAX; i++)
		if (mask & 1u << i && admission->gpus[i].pid)
			return false;
	return true;
}

static void take_locked(struct gcr_admission *admission, uint32_t mask, pid_t pid)
{
	int64_t now_usec = gcr_clock_usec();

	for (unsigned int i = 0; i < GCR_GPUS_MAX; i++)
		if (mask & 1u << i) {
			admission->gpus[i].pid = pid;
			admission->gpus[i].since_usec = now_usec;
		}
}

bool gcr_admission_take(struct gcr_admission *admission, uint32_t mask, pid_t pid)
{
	GCR_LOCK_SCOPE(&admission->lock);

	if (!is_free_locked(admission, mask))
		return false;
	take_locked(admission, mask, pid);
	return true;
}

void gcr_admission_join(struct gcr_admission *admission, struct gcr_fair_waiter *waiter)
{
	GCR_LOCK_SCOPE(&admission->lock);

	gcr_fair_queue_join(&admission->queue, waiter);
}

bool gcr_admission_take_turn(struct gcr_admission *admission, struct gcr_fair_waiter *waiter,
			     pid_t pid)
{
	GCR_LOCK_SCOPE(&admission->lock);

	if (!is_free_locked(admission, waiter->mask) ||
	    !gcr_fair_queue_is_first(&admission->queue, waiter))
		return false;
	gcr_fair_queue_quit(&admission->queue, waiter);
	gcr_fair_queue_note(&admission->queue, waiter->mask, waiter->client);
	take_locked(admission, waiter->mask, pid);
	return true;
}

void gcr_admission_quit(struct gcr_admission *admission, struct gcr_fair_waiter *waiter)
{
	GCR_LOCK_SCOPE(&admission->lock);

	gcr_fair_queue_quit(&admission->queue, waiter);
}

static void leave_locked(struct gcr_admission *admission, uint32_t mask)
{
	for (unsigned int i = 0; i < GCR_GPUS_MAX; i++)
		if (mask & 1u << i)
			admission->gpus[i].pid = 0;
}

void gcr_admission_leave(struct gcr_admission *admission, uint32_t mask)
{
	GCR_LOCK_SCOPE(&admission->lock);

	leave_locked(admission, mask);
}

void gcr_admission_give_up(struct gcr_admission *admission, uint32_t mask, struct gcr_need *need)
{
	GCR_LOCK_SCOPE(&admission->lock);

	if (!need->is_noted) {
		need->is_noted = true;
		need->since_usec = gcr_clock_usec();
		need->next = admission->needs;
		admission->needs = need;
	}
	leave_locked(admission, mask);
}

void gcr_admission_end_need(struct gcr_admission *admission, struct gcr_need *need)
{
	GCR_LOCK_SCOPE(&admission->lock);

	if (!need->is_noted)
		return;
	for (struct gcr_need **link = &admission->needs; *link; link = &(*link)->next)
		if (*link == need) {
			*link = need->next;
			break;
		}
	need->next = NULL;
	need->is_noted = false;
}

uint64_t gcr_admission_needed(struct gcr_admission *admission, unsigned int index,
			      const void *owner)
{
	uint64_t sum = 0;

	GCR_LOCK_SCOPE(&admission->lock);

	for (const struct gcr_need *need = admission->needs; need; need = need->next)
		if (need->owner != owner && __builtin_add_overflow(sum, need->bytes[index], &sum))
			return UINT64_MAX;
	return sum;
}

unsigned int gcr_admission_holders(struct gcr_admission *admission, unsigned int index,
				   struct gcr_admission_holder *ret_holders, unsigned int most)
{
	unsigned int count = 0;

	GCR_LOCK_SCOPE(&admission->lock);

	if (admission->gpus[index].pid && count < most)
		ret_holders[count++] = (struct gcr_admission_holder){
			.pid = admission->gpus[index].pid,
			.since_usec = admission->gpus[index].since_usec,
		};
	for (const struct gcr_need *need = admission->needs; need && count < most;
	     need = need->next)
		if (need->bytes[index])
			ret_holders[count++] = (struct gcr_admission_holder){
				.pid = need->pid,
				.since_usec = need->since_usec,
				.is_need = true,
				.need_bytes = need->bytes[index],
			};
	return count;
}

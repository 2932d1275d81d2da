/* SPDX-License-Identifier: MIT */
/*
 * Each task of a swap publishes its progress and waits for that of the other one. swap->lock is
 * taken last, except for the lock of the admissions.
 *
 * In the end one of the two processes is in VRAM, or `error` says why not: until the freeze has
 * committed, a failure of either task rolls back both; from then on, if the thaw fails, the other
 * process is thawed again. If a process ends, only the steps that depend on it are undone: the thaw
 * continues if the process to be frozen has ended, since the VRAM of that process is free.
 */
#include "fs/engine/swap_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/daemon.h"
#include "fs/engine/admission.h"
#include "fs/engine/driver_session.h"
#include "fs/engine/engine.h"
#include "fs/process/gpus.h"
#include "fs/store/record.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Interval between checks whether the swap is to stop. */
#define LOOK_USEC   (20 * GCR_USEC_PER_MSEC)
/* The kernel may return the VRAM of a frozen process a little later (see vmm_released.c). */
#define RETURN_USEC (2 * GCR_USEC_PER_SEC)

struct gcr_swap *gcr_swap_create(const struct gcr_command *command, struct gcr_admission *admission)
{
	struct gcr_swap *swap = calloc(1, sizeof(*swap));

	if (!swap)
		return NULL;
	swap->freeze = (struct gcr_command){
		.verb = GCR_VERB_FREEZE,
		.data = command->swap_data,
		.timeout_usec = command->timeout_usec,
		.writer = command->writer,
		.rights = command->rights,
	};
	swap->admission = admission;
	pthread_mutex_init(&swap->lock, NULL);
	pthread_cond_init(&swap->changed, NULL);
	return swap;
}

void gcr_swap_destroy(struct gcr_swap *swap)
{
	if (!swap)
		return;
	/* The two tasks end the need. One that was left would be in the list after it is freed. */
	if (swap->need.is_noted)
		gcr_admission_end_need(swap->admission, &swap->need);
	pthread_cond_destroy(&swap->changed);
	pthread_mutex_destroy(&swap->lock);
	free(swap);
}

const struct gcr_command *gcr_swap_freeze(const struct gcr_swap *swap)
{
	return &swap->freeze;
}

bool gcr_swap_freezes(const struct gcr_task *task)
{
	return task->swap && task->command == &task->swap->freeze;
}

bool gcr_swap_thaws(const struct gcr_task *task)
{
	return task->swap && task->command != &task->swap->freeze;
}

/* ---- progress ---- */

enum gcr_swap_progress *gcr_swap_progress_of(const struct gcr_task *task)
{
	return gcr_swap_freezes(task) ? &task->swap->frozen : &task->swap->thawed;
}

enum gcr_swap_progress gcr_swap_get(struct gcr_swap *swap, const enum gcr_swap_progress *progress)
{
	enum gcr_swap_progress value;

	pthread_mutex_lock(&swap->lock);
	value = *progress;
	pthread_mutex_unlock(&swap->lock);
	return value;
}

void gcr_swap_set(const struct gcr_task *task, enum gcr_swap_progress value)
{
	struct gcr_swap *swap = task->swap;
	enum gcr_swap_progress *progress = gcr_swap_progress_of(task);

	pthread_mutex_lock(&swap->lock);
	if (value == GCR_SWAP_DONE && progress == &swap->frozen)
		swap->out_usec = gcr_clock_usec();
	if (value > *progress)
		*progress = value;
	pthread_cond_broadcast(&swap->changed);
	pthread_mutex_unlock(&swap->lock);
}

void gcr_swap_wait_a_moment(struct gcr_swap *swap, const enum gcr_swap_progress *progress,
			    enum gcr_swap_progress wanted)
{
	int64_t until_usec = gcr_clock_usec() + LOOK_USEC;
	int result = 0;

	pthread_mutex_lock(&swap->lock);
	while (*progress < wanted && !result)
		result = gcr_cond_wait_until(&swap->changed, &swap->lock, until_usec);
	pthread_mutex_unlock(&swap->lock);
}

/* Waits until the other task's *@progress has reached @wanted. -ECANCELED: the two are to stop. */
static int wait_for(struct gcr_task *task, const enum gcr_swap_progress *progress,
		    enum gcr_swap_progress wanted)
{
	while (gcr_swap_get(task->swap, progress) < wanted) {
		if (gcr_task_stopped(task))
			return -ECANCELED;
		gcr_swap_wait_a_moment(task->swap, progress, wanted);
	}
	/* A task that fails stops the operation before it publishes its failure. */
	return gcr_task_stopped(task) ? -ECANCELED : 0;
}

static bool is_stuck(struct gcr_swap *swap)
{
	bool is;

	pthread_mutex_lock(&swap->lock);
	is = swap->is_stuck;
	pthread_mutex_unlock(&swap->lock);
	return is;
}

enum gcr_swap_progress gcr_swap_wait_for_thaw(struct gcr_task *task, int64_t usec)
{
	struct gcr_swap *swap = task->swap;
	enum gcr_swap_progress progress;

	while ((progress = gcr_swap_get(swap, &swap->thawed)) < GCR_SWAP_DONE) {
		int64_t now_usec = gcr_clock_usec();

		if (!swap->stopped_usec &&
		    (gcr_task_is_to_stop(task) || now_usec >= gcr_task_deadline_usec(task)))
			swap->stopped_usec = now_usec;
		if (progress < GCR_SWAP_DECIDED && swap->stopped_usec &&
		    now_usec >= swap->stopped_usec + usec)
			break;
		/* Nothing can be undone any more: the frozen process may stay frozen. */
		if (progress == GCR_SWAP_DECIDED && swap->stopped_usec && is_stuck(swap) &&
		    now_usec >= swap->stopped_usec + GCR_SWAP_GIVE_UP_USEC)
			break;
		gcr_swap_wait_a_moment(swap, &swap->thawed, GCR_SWAP_DONE);
	}
	return progress;
}

/* ---- the admission ---- */

uint32_t gcr_swap_gpus(const struct gcr_task *task)
{
	if (!gcr_swap_thaws(task))
		return 0;
	return gcr_gpus_process_mask(task->process->daemon->gpus, gcr_task_sibling(task, 1)->pid);
}

void gcr_swap_keep_admission(struct gcr_task *task, uint32_t mask)
{
	struct gcr_swap *swap = task->swap;
	bool is_over;

	pthread_mutex_lock(&swap->lock);
	is_over = swap->is_over;
	if (gcr_swap_thaws(task))
		swap->has_left = true;
	if (!is_over)
		swap->admitted |= mask;
	pthread_mutex_unlock(&swap->lock);
	if (is_over && mask)
		gcr_admission_leave(task->process->daemon->admission, mask);
}

uint32_t gcr_swap_take_admission(struct gcr_task *task)
{
	struct gcr_swap *swap = task->swap;
	uint32_t mask;

	if (!swap)
		return 0;
	pthread_mutex_lock(&swap->lock);
	mask = swap->admitted;
	swap->admitted = 0;
	pthread_mutex_unlock(&swap->lock);
	return mask;
}

void gcr_swap_end_admission(struct gcr_swap *swap, bool has_failed)
{
	uint32_t mask = 0;

	pthread_mutex_lock(&swap->lock);
	if (!has_failed || swap->frozen < GCR_SWAP_BEGUN) {
		swap->is_over = true;
		/* With the lock held all the time: no task can turn the mask into a need again. */
		mask = swap->admitted;
		swap->admitted = 0;
		gcr_admission_end_need(swap->admission, &swap->need);
	}
	pthread_mutex_unlock(&swap->lock);
	if (mask)
		gcr_admission_leave(swap->admission, mask);
}

void gcr_swap_give_up_locked(struct gcr_swap *swap, const struct gcr_need *need)
{
	if (swap->is_over || !swap->admitted)
		return;
	if (!swap->need.is_noted)
		swap->need = *need;
	gcr_admission_give_up(swap->admission, swap->admitted, &swap->need);
	swap->admitted = 0;
}

void gcr_swap_let_others(struct gcr_driver_session *driver, const struct gcr_snapshot *snapshot)
{
	struct gcr_process *frozen = gcr_task_sibling(driver->task, 1);
	struct gcr_swap *swap = driver->task->swap;
	struct gcr_snapshot *held = NULL;
	struct gcr_need need = {0};
	struct gcr_error error;
	bool is_to_fail;

	pthread_mutex_lock(&frozen->lock);
	if (!snapshot && frozen->snapshot)
		snapshot = held = gcr_snapshot_ref(frozen->snapshot);
	pthread_mutex_unlock(&frozen->lock);
	gcr_driver_add_need(driver, frozen, snapshot, &need);
	gcr_snapshot_unref(held);
	pthread_mutex_lock(&swap->lock);
	swap->is_stuck |= gcr_swap_thaws(driver->task);
	/* Until the swap is over, room is kept for the process that may come back. */
	gcr_swap_give_up_locked(swap, &need);
	is_to_fail = gcr_swap_freezes(driver->task) && !driver->task->is_undoing &&
		     swap->thawed < GCR_SWAP_DECIDED;
	pthread_mutex_unlock(&swap->lock);
	if (!is_to_fail)
		return;
	gcr_error_set(&error, ETIMEDOUT,
		      "process %d, which was to be frozen for it, does not answer, or its GPU work "
		      "does not end: is it stopped?",
		      (int)frozen->pid);
	gcr_task_fail(driver->task, &error);
}

/* ---- for engines ---- */

int gcr_swap_wait_turn(struct gcr_task *task)
{
	if (!gcr_swap_freezes(task))
		return 0;
	return wait_for(task, &task->swap->thawed, GCR_SWAP_READY);
}

int gcr_swap_begin_thaw(struct gcr_task *task)
{
	if (!gcr_swap_thaws(task))
		return 0;
	gcr_swap_set(task, GCR_SWAP_READY);
	return wait_for(task, &task->swap->frozen, GCR_SWAP_READY);
}

void gcr_swap_begin_freeze(struct gcr_task *task)
{
	if (gcr_swap_freezes(task))
		gcr_swap_set(task, GCR_SWAP_READY);
}

int gcr_swap_begin_letting_go(struct gcr_task *task)
{
	struct gcr_swap *swap = task->swap;
	bool is_over;

	if (!gcr_swap_freezes(task))
		return 0;
	pthread_mutex_lock(&swap->lock);
	is_over = swap->is_over;
	if (!is_over && swap->frozen < GCR_SWAP_BEGUN)
		swap->frozen = GCR_SWAP_BEGUN;
	pthread_mutex_unlock(&swap->lock);
	return is_over ? -ECANCELED : 0;
}

bool gcr_swap_needs_second(const struct gcr_task *task)
{
	return gcr_swap_thaws(task) &&
	       gcr_swap_get(task->swap, &task->swap->frozen) < GCR_SWAP_DONE;
}

bool gcr_swap_may_wait(const struct gcr_task *task)
{
	struct gcr_swap *swap = task->swap;
	bool may_wait;

	if (!gcr_swap_thaws(task))
		return false;
	pthread_mutex_lock(&swap->lock);
	may_wait = swap->frozen < GCR_SWAP_DONE;
	if (swap->frozen == GCR_SWAP_DONE && task->process->vendor->backend->may_keep_vram)
		may_wait = gcr_clock_usec() < swap->out_usec + RETURN_USEC;
	pthread_mutex_unlock(&swap->lock);
	return may_wait;
}

int gcr_swap_wait_room(struct gcr_task *task)
{
	struct gcr_swap *swap = task->swap;

	/* The freeze is done, but VRAM may still come back: check again after a short wait. */
	if (gcr_swap_get(swap, &swap->frozen) == GCR_SWAP_DONE)
		gcr_swap_wait_a_moment(swap, &swap->frozen, GCR_SWAP_FAILED);
	return wait_for(task, &swap->frozen, GCR_SWAP_DONE);
}

bool gcr_swap_gives_up(const struct gcr_task *task)
{
	return task->swap && task->is_undoing &&
	       (atomic_load(&task->process->daemon->stopping) ||
		gcr_clock_usec() >= task->swap->undone_usec);
}

void gcr_swap_fail(struct gcr_task *task, struct gcr_error *error)
{
	if (!gcr_swap_freezes(task) || error->number == ESRCH ||
	    gcr_process_is_going(task->process))
		return;
	gcr_task_fail(task, error);
	gcr_swap_set(task, GCR_SWAP_FAILED);
	gcr_swap_wait_for_thaw(task, GCR_SWAP_GIVE_UP_USEC);
}

int gcr_swap_commit(struct gcr_task *task)
{
	int result;

	if (!task->swap || task->is_undoing)
		return gcr_task_commit(task);
	if (gcr_task_stopped(task))
		return -ECANCELED;
	if (gcr_swap_freezes(task)) {
		result = gcr_swap_begin_letting_go(task);
		task->has_passed = !result;
		return result;
	}
	atomic_store(&task->phase, "vote");
	result = wait_for(task, &task->swap->frozen, GCR_SWAP_DONE);
	if (!result)
		result = gcr_task_decide(task);
	if (!result)
		gcr_swap_set(task, GCR_SWAP_DECIDED);
	return result;
}

/* SPDX-License-Identifier: MIT */
/*
 * Each task of an exchange publishes its progress and waits for that of the other one.
 * exchange->lock is taken last, except for the lock of the admissions.
 *
 * In the end one of the two processes is in VRAM, or `error` says why not: until the freeze has
 * committed, a failure of either task rolls back both; from then on, if the thaw fails, the other
 * process is thawed again. If a process ends, only the steps that depend on it are undone: the thaw
 * continues if the process to be frozen has ended, since the VRAM of that process is free.
 */
#include "fs/engine/exchange_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/daemon.h"
#include "fs/engine/admission.h"
#include "fs/engine/drive.h"
#include "fs/engine/engine.h"
#include "fs/process/gpus.h"
#include "fs/store/record.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Interval between checks whether the exchange is to stop. */
#define LOOK_USEC   (20 * GCR_USEC_PER_MSEC)
/* The kernel may return the VRAM of a frozen process a little later (see vmm_released.c). */
#define RETURN_USEC (2 * GCR_USEC_PER_SEC)

struct gcr_exchange *gcr_exchange_create(const struct gcr_command *command)
{
	struct gcr_exchange *exchange = calloc(1, sizeof(*exchange));

	if (!exchange)
		return NULL;
	exchange->freeze = (struct gcr_command){
		.verb = GCR_VERB_FREEZE,
		.data = command->swap_data,
		.timeout_usec = command->timeout_usec,
		.writer = command->writer,
		.rights = command->rights,
	};
	pthread_mutex_init(&exchange->lock, NULL);
	pthread_cond_init(&exchange->changed, NULL);
	return exchange;
}

void gcr_exchange_destroy(struct gcr_exchange *exchange)
{
	if (!exchange)
		return;
	pthread_cond_destroy(&exchange->changed);
	pthread_mutex_destroy(&exchange->lock);
	free(exchange);
}

const struct gcr_command *gcr_exchange_freeze(const struct gcr_exchange *exchange)
{
	return &exchange->freeze;
}

bool gcr_exchange_freezes(const struct gcr_task *task)
{
	return task->exchange && task->command == &task->exchange->freeze;
}

bool gcr_exchange_thaws(const struct gcr_task *task)
{
	return task->exchange && task->command != &task->exchange->freeze;
}

/* ---- progress ---- */

enum gcr_exchange_progress *gcr_exchange_progress_of(const struct gcr_task *task)
{
	return gcr_exchange_freezes(task) ? &task->exchange->frozen : &task->exchange->thawed;
}

enum gcr_exchange_progress gcr_exchange_get(struct gcr_exchange *exchange,
					    const enum gcr_exchange_progress *progress)
{
	enum gcr_exchange_progress value;

	pthread_mutex_lock(&exchange->lock);
	value = *progress;
	pthread_mutex_unlock(&exchange->lock);
	return value;
}

void gcr_exchange_set(const struct gcr_task *task, enum gcr_exchange_progress value)
{
	struct gcr_exchange *exchange = task->exchange;
	enum gcr_exchange_progress *progress = gcr_exchange_progress_of(task);

	pthread_mutex_lock(&exchange->lock);
	if (value == GCR_EXCHANGE_DONE && progress == &exchange->frozen)
		exchange->out_usec = gcr_clock_usec();
	if (value > *progress)
		*progress = value;
	pthread_cond_broadcast(&exchange->changed);
	pthread_mutex_unlock(&exchange->lock);
}

void gcr_exchange_wait_a_moment(struct gcr_exchange *exchange,
				const enum gcr_exchange_progress *progress,
				enum gcr_exchange_progress wanted)
{
	int64_t until_usec = gcr_clock_usec() + LOOK_USEC;
	int result = 0;

	pthread_mutex_lock(&exchange->lock);
	while (*progress < wanted && !result)
		result = gcr_cond_wait_until(&exchange->changed, &exchange->lock, until_usec);
	pthread_mutex_unlock(&exchange->lock);
}

/* Waits until the other task's *@progress has reached @wanted. -ECANCELED: the two are to stop. */
static int wait_for(struct gcr_task *task, const enum gcr_exchange_progress *progress,
		    enum gcr_exchange_progress wanted)
{
	while (gcr_exchange_get(task->exchange, progress) < wanted) {
		if (gcr_task_stopped(task))
			return -ECANCELED;
		gcr_exchange_wait_a_moment(task->exchange, progress, wanted);
	}
	/* A task that fails stops the operation before it publishes its failure. */
	return gcr_task_stopped(task) ? -ECANCELED : 0;
}

static bool is_stuck(struct gcr_exchange *exchange)
{
	bool is;

	pthread_mutex_lock(&exchange->lock);
	is = exchange->is_stuck;
	pthread_mutex_unlock(&exchange->lock);
	return is;
}

enum gcr_exchange_progress gcr_exchange_wait_for_thaw(struct gcr_task *task, int64_t usec)
{
	struct gcr_exchange *exchange = task->exchange;
	enum gcr_exchange_progress progress;

	while ((progress = gcr_exchange_get(exchange, &exchange->thawed)) < GCR_EXCHANGE_DONE) {
		int64_t now_usec = gcr_clock_usec();

		if (!exchange->stopped_usec &&
		    (gcr_task_is_to_stop(task) || now_usec >= gcr_task_deadline_usec(task)))
			exchange->stopped_usec = now_usec;
		if (progress < GCR_EXCHANGE_DECIDED && exchange->stopped_usec &&
		    now_usec >= exchange->stopped_usec + usec)
			break;
		/* Nothing can be undone any more: the frozen process may stay frozen. */
		if (progress == GCR_EXCHANGE_DECIDED && exchange->stopped_usec &&
		    is_stuck(exchange) &&
		    now_usec >= exchange->stopped_usec + GCR_EXCHANGE_GIVE_UP_USEC)
			break;
		gcr_exchange_wait_a_moment(exchange, &exchange->thawed, GCR_EXCHANGE_DONE);
	}
	return progress;
}

/* ---- the admission ---- */

uint32_t gcr_exchange_gpus(const struct gcr_task *task)
{
	if (!gcr_exchange_thaws(task))
		return 0;
	return gcr_gpus_process_mask(task->process->daemon->gpus, gcr_task_sibling(task, 1)->pid);
}

void gcr_exchange_keep_admission(struct gcr_task *task, uint32_t mask)
{
	struct gcr_exchange *exchange = task->exchange;
	bool is_over;

	pthread_mutex_lock(&exchange->lock);
	is_over = exchange->is_over;
	if (gcr_exchange_thaws(task))
		exchange->has_left = true;
	if (!is_over)
		exchange->admitted |= mask;
	pthread_mutex_unlock(&exchange->lock);
	if (is_over && mask)
		gcr_admission_leave(task->process->daemon->admission, mask);
}

uint32_t gcr_exchange_take_admission(struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;
	uint32_t mask;

	if (!exchange)
		return 0;
	pthread_mutex_lock(&exchange->lock);
	mask = exchange->admitted;
	exchange->admitted = 0;
	pthread_mutex_unlock(&exchange->lock);
	return mask;
}

void gcr_exchange_let_others(struct gcr_drive *drive, const struct gcr_snapshot *snapshot)
{
	struct gcr_process *frozen = gcr_task_sibling(drive->task, 1);
	struct gcr_exchange *exchange = drive->task->exchange;
	struct gcr_snapshot *held = NULL;
	struct gcr_need need = {0};
	struct gcr_error error;
	bool is_to_fail;

	pthread_mutex_lock(&frozen->lock);
	if (!snapshot && frozen->snapshot)
		snapshot = held = gcr_snapshot_ref(frozen->snapshot);
	pthread_mutex_unlock(&frozen->lock);
	gcr_drive_need(drive, frozen, snapshot, &need);
	gcr_snapshot_unref(held);
	pthread_mutex_lock(&exchange->lock);
	exchange->is_stuck |= gcr_exchange_thaws(drive->task);
	/* Until the exchange is over, room is kept for the process that may come back. */
	if (exchange->admitted && !exchange->need.is_noted)
		exchange->need = need;
	if (exchange->admitted)
		gcr_admission_give_up(drive->daemon->admission, exchange->admitted,
				      &exchange->need);
	exchange->admitted = 0;
	is_to_fail = gcr_exchange_freezes(drive->task) && !drive->task->is_undoing &&
		     exchange->thawed < GCR_EXCHANGE_DECIDED;
	pthread_mutex_unlock(&exchange->lock);
	if (!is_to_fail)
		return;
	gcr_error_set(&error, ETIMEDOUT,
		      "process %d, which was to be frozen for it, does not answer, or its GPU work "
		      "does not end: is it stopped?",
		      (int)frozen->pid);
	gcr_task_fail(drive->task, &error);
}

/* ---- for engines ---- */

int gcr_exchange_wait_turn(struct gcr_task *task)
{
	if (!gcr_exchange_freezes(task))
		return 0;
	return wait_for(task, &task->exchange->thawed, GCR_EXCHANGE_READY);
}

int gcr_exchange_begin_thaw(struct gcr_task *task)
{
	if (!gcr_exchange_thaws(task))
		return 0;
	gcr_exchange_set(task, GCR_EXCHANGE_READY);
	return wait_for(task, &task->exchange->frozen, GCR_EXCHANGE_READY);
}

void gcr_exchange_begin_freeze(struct gcr_task *task)
{
	if (gcr_exchange_freezes(task))
		gcr_exchange_set(task, GCR_EXCHANGE_READY);
}

int gcr_exchange_begin_letting_go(struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;
	bool is_over;

	if (!gcr_exchange_freezes(task))
		return 0;
	pthread_mutex_lock(&exchange->lock);
	is_over = exchange->is_over;
	if (!is_over && exchange->frozen < GCR_EXCHANGE_BEGUN)
		exchange->frozen = GCR_EXCHANGE_BEGUN;
	pthread_mutex_unlock(&exchange->lock);
	return is_over ? -ECANCELED : 0;
}

bool gcr_exchange_needs_second(const struct gcr_task *task)
{
	return gcr_exchange_thaws(task) &&
	       gcr_exchange_get(task->exchange, &task->exchange->frozen) < GCR_EXCHANGE_DONE;
}

bool gcr_exchange_may_wait(const struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;
	bool may_wait;

	if (!gcr_exchange_thaws(task))
		return false;
	pthread_mutex_lock(&exchange->lock);
	may_wait = exchange->frozen < GCR_EXCHANGE_DONE;
	if (exchange->frozen == GCR_EXCHANGE_DONE && task->process->vendor->backend->may_keep_vram)
		may_wait = gcr_clock_usec() < exchange->out_usec + RETURN_USEC;
	pthread_mutex_unlock(&exchange->lock);
	return may_wait;
}

int gcr_exchange_wait_room(struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;

	/* The freeze is done, but VRAM may still come back: check again after a short wait. */
	if (gcr_exchange_get(exchange, &exchange->frozen) == GCR_EXCHANGE_DONE)
		gcr_exchange_wait_a_moment(exchange, &exchange->frozen, GCR_EXCHANGE_FAILED);
	return wait_for(task, &exchange->frozen, GCR_EXCHANGE_DONE);
}

bool gcr_exchange_gives_up(const struct gcr_task *task)
{
	return task->exchange && task->is_undoing &&
	       (atomic_load(&task->process->daemon->stopping) ||
		gcr_clock_usec() >= task->exchange->undone_usec);
}

void gcr_exchange_fail(struct gcr_task *task, struct gcr_error *error)
{
	if (!gcr_exchange_freezes(task) || error->number == ESRCH ||
	    gcr_process_is_going(task->process))
		return;
	gcr_task_fail(task, error);
	gcr_exchange_set(task, GCR_EXCHANGE_FAILED);
	gcr_exchange_wait_for_thaw(task, GCR_EXCHANGE_GIVE_UP_USEC);
}

int gcr_exchange_commit(struct gcr_task *task)
{
	int result;

	if (!task->exchange || task->is_undoing)
		return gcr_task_commit(task);
	if (gcr_task_stopped(task))
		return -ECANCELED;
	if (gcr_exchange_freezes(task)) {
		result = gcr_exchange_begin_letting_go(task);
		task->has_passed = !result;
		return result;
	}
	atomic_store(&task->phase, "vote");
	result = wait_for(task, &task->exchange->frozen, GCR_EXCHANGE_DONE);
	if (!result)
		result = gcr_task_decide(task);
	if (!result)
		gcr_exchange_set(task, GCR_EXCHANGE_DECIDED);
	return result;
}

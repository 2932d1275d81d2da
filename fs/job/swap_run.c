/* SPDX-License-Identifier: MIT */
/* The two tasks of a swap from start to end: the work of each, and its undo. */
#include "fs/job/swap_run.h"

#include <errno.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/daemon.h"
#include "fs/engine/engine.h"
#include "fs/engine/swap_private.h"
#include "fs/job/operation.h"
#include "fs/process/gpus.h"
#include "fs/store/record.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/*
 * Replaces GCR_SWAP_GIVE_UP_USEC once the thaw has rolled back: how long the undo waits for
 * resources of other verbs, which end within this time.
 */
#define UNDO_USEC  (60 * GCR_USEC_PER_SEC)
/* How long a failed thaw waits for the freeze to react. */
#define REACT_USEC (2 * GCR_USEC_PER_SEC)

/* Has the thaw taken all its VRAM, or finally given up taking any? */
static bool has_left(struct gcr_swap *swap)
{
	bool has;

	pthread_mutex_lock(&swap->lock);
	has = swap->has_left;
	pthread_mutex_unlock(&swap->lock);
	return has;
}

int gcr_swap_check(struct gcr_process *thawed, struct gcr_process *frozen, struct gcr_error *error)
{
	struct gcr_process *const processes[] = {thawed, frozen};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(processes); i++) {
		const char *unused;
		const char *name = gcr_engine_choose(processes[i], &unused)->name;

		if (!gcr_engine_has_files(name))
			return gcr_error_set(error, EOPNOTSUPP,
					     "process %d is of the engine %s, which cannot work in "
					     "both directions at once: freeze, then thaw",
					     (int)processes[i]->pid, name);
	}
	return 0;
}

/* ---- the two tasks ---- */

/* Notes in the process, for its next record, that it is frozen for the thawed process. */
static void note(const struct gcr_task *task)
{
	const struct gcr_process *thawed = gcr_task_sibling(task, 0);
	struct gcr_process *process = task->process;

	pthread_mutex_lock(&process->lock);
	process->frozen_for_pid = thawed->pid;
	process->frozen_for_start_ticks = thawed->start_ticks;
	pthread_mutex_unlock(&process->lock);
}

/*
 * Removes the note of the swap from the process and its record: the process stays in its present
 * state, whatever happens to the other one.
 */
static void forget(const struct gcr_task *task)
{
	struct gcr_process *process = task->process;
	bool was_noted;
	int result;

	pthread_mutex_lock(&process->lock);
	was_noted = process->frozen_for_pid;
	process->frozen_for_pid = 0;
	pthread_mutex_unlock(&process->lock);
	if ((!was_noted && !task->swap) || gcr_process_has_ended(process))
		return;
	result = gcr_record_end_swap(process->daemon->runtime_fd, process->pid,
				     process->start_ticks);
	if (result < 0)
		gcr_log(LOG_WARNING, process->pid, "its record cannot be written: %s",
			strerror(-result));
}

/*
 * Thaw the process again, which was frozen for one that could not be thawed. Returns as thaw() of
 * struct gcr_engine.
 */
static int thaw_again(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_swap *swap = task->swap;
	int result;

	swap->undone_usec = gcr_swap_get(swap, &swap->thawed) == GCR_SWAP_FAILED
				    ? gcr_clock_usec() + UNDO_USEC
				    : swap->stopped_usec + GCR_SWAP_GIVE_UP_USEC;
	task->from = GCR_STATE_FROZEN;
	task->is_undoing = true;
	gcr_process_set_state(task->process, GCR_STATE_THAWING);
	*error = (struct gcr_error){0};
	result = gcr_engine_of(task->process)->thaw(task, ret_state, error);
	task->from = GCR_STATE_RUNNING;
	task->is_undoing = false;
	task->has_passed = false;
	return result;
}

static int freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	static const int64_t waits[] = {GCR_SWAP_PATIENCE_USEC, GCR_SWAP_GIVE_UP_USEC};
	enum gcr_swap_progress progress = GCR_SWAP_READY;
	int result;

	note(task);
	result = gcr_engine_freeze(task, ret_state, error);
	if (result < 0) {
		gcr_swap_fail(task, error);
		return result;
	}
	gcr_swap_set(task, GCR_SWAP_DONE);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(waits) && progress != GCR_SWAP_FAILED; i++) {
		atomic_store(&task->phase, "vote");
		progress = gcr_swap_wait_for_thaw(task, waits[i]);
		if (progress == GCR_SWAP_DONE)
			return 0;
		if (progress == GCR_SWAP_DECIDED) {
			gcr_log(LOG_WARNING, task->process->pid,
				"it stays frozen: process %d, which it was frozen for, does not "
				"answer",
				(int)gcr_task_sibling(task, 0)->pid);
			return 0;
		}
		/*
		 * The process that the driver is restoring would be lost if another one took its
		 * VRAM.
		 */
		if (progress != GCR_SWAP_FAILED && !has_left(task->swap))
			result = gcr_error_set(error, ETIMEDOUT,
					       "the driver does not let go of that one");
		else
			result = thaw_again(task, ret_state, error);
		if (result != -ENOMEM && result != -ETIMEDOUT)
			break;
	}
	/* The reason of the operation's stop is the message. */
	if (!result) {
		*error = (struct gcr_error){0};
		return -ECANCELED;
	}
	gcr_error_prefix(
		error, "it was frozen for a process that could not be thawed, and %s thawed again",
		*ret_state == GCR_STATE_FROZEN
			? "stays frozen, its bytes in the store: it could not be"
			: "could not be");
	gcr_log(LOG_ERR, task->process->pid, "roll-back: %s", error->words);
	return result;
}

int gcr_swap_carry_out(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	int result;

	if (gcr_swap_freezes(task))
		return freeze(task, ret_state, error);
	result = gcr_engine_of(task->process)->thaw(task, ret_state, error);
	if (gcr_process_has_ended(task->process))
		result = gcr_error_set(error, ESRCH, "process %d has ended",
				       (int)task->process->pid);
	gcr_swap_end(task, result, error);
	return result;
}

void gcr_swap_end(struct gcr_task *task, int result, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + REACT_USEC;
	enum gcr_swap_progress *progress;
	bool has_failed = false;
	bool had_ended;

	/* If only the daemon's stop prevented the undo, the note is kept for the next daemon. */
	if (!task->recovery && (!result || !atomic_load(&task->process->daemon->stopping)))
		forget(task);
	if (!task->swap)
		return;
	progress = gcr_swap_progress_of(task);
	had_ended = gcr_swap_get(task->swap, progress) >= GCR_SWAP_DONE;
	/* The VRAM of a process that has ended is free, however its task ended. */
	if (gcr_swap_freezes(task) && (result == -ESRCH || gcr_process_has_ended(task->process)))
		result = 0;
	if (result < 0 && !had_ended)
		gcr_task_fail(task, error);
	gcr_swap_set(task, result < 0 ? GCR_SWAP_FAILED : GCR_SWAP_DONE);
	if (gcr_swap_thaws(task) && result < 0) {
		/*
		 * A freeze that has to roll back finds the admission; one that does not react in
		 * time is not waited for.
		 */
		while (!had_ended &&
		       gcr_swap_get(task->swap, &task->swap->frozen) < GCR_SWAP_BEGUN &&
		       gcr_clock_usec() < until_usec)
			gcr_swap_wait_a_moment(task->swap, &task->swap->frozen, GCR_SWAP_BEGUN);
		has_failed = true;
	}
	gcr_swap_end_admission(task->swap, has_failed);
}

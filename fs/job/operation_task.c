/* SPDX-License-Identifier: MIT */
/* One task of an operation, on its own thread: its work, and the resulting state of its process. */
#include "fs/job/operation_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "fs/base/counters.h"
#include "fs/engine/engine.h"
#include "fs/helper/helper.h"
#include "fs/job/swap_run.h"
#include "fs/job/recover.h"
#include "fs/pack/pack_table.h"
#include "fs/process/gpus.h"
#include "fs/process/vendor.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "fs/verb/packing.h"
#include "fs/verb/reclaim.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

static bool is_packed(struct gcr_snapshot *snapshot)
{
	struct gcr_pack_figures figures;

	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &figures);
	return figures.pieces;
}

static int unpack(struct gcr_task *task, struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	const struct gcr_process *process = task->process;
	struct gcr_pack_figures figures;
	bool unused;
	int result;

	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &figures);
	if (!figures.pieces)
		return 0;
	task->unpacked_bytes = figures.packed_bytes;
	gcr_task_set_bytes(task, 0);
	atomic_store(&task->phase, "room");
	result = gcr_reclaim(task, figures.packed_bytes - figures.hole_bytes, &unused, error);
	if (!result)
		result = gcr_packing_undo(task, snapshot, error);
	gcr_store_end_claim(process->daemon->store, process->pid, process->start_ticks);
	return result;
}

/*
 * Hold the process's snapshot, if it has one, so that the verb takes precedence over users who
 * write to its files; for a dump, unpack the files first. Errors, with a message.
 */
static int hold_own_snapshot(struct gcr_task *task, struct gcr_error *error)
{
	bool is_unpacked = task->command->verb == GCR_VERB_DUMP && !task->recovery;
	struct gcr_process *process = task->process;
	struct gcr_snapshot *snapshot;
	int result = 0;

	pthread_mutex_lock(&process->lock);
	snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
	pthread_mutex_unlock(&process->lock);
	if (!snapshot)
		return 0;
	/* A place (the directory of a dumped process) contains the files unpacked. */
	if (is_unpacked)
		result = unpack(task, snapshot, error);
	if (!result)
		result = gcr_task_hold_snapshot(task, snapshot, error);
	/* The owner may have moved a file away, and back, during the unpacking. */
	if (!result && is_unpacked && is_packed(snapshot))
		result = gcr_error_set(error, EBUSY,
				       "somebody has changed the files of process %d as they were "
				       "unpacked",
				       (int)process->pid);
	gcr_snapshot_unref(snapshot);
	return result;
}

static void let_go_of_snapshot(struct gcr_task *task)
{
	struct gcr_snapshot *snapshot = TAKE_PTR(task->held);

	if (snapshot)
		gcr_snapshot_end_verb(snapshot);
	gcr_snapshot_unref(snapshot);
}

static int carry_out(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	int result;

	gcr_packing_end(task->process);
	result = hold_own_snapshot(task, error);
	if (task->recovery)
		return gcr_engine_of(task->process)->recover(task, ret_state, error);
	if (result < 0) {
		*ret_state = task->from;
		return result;
	}
	if (task->swap)
		return gcr_swap_carry_out(task, ret_state, error);
	if (task->command->work)
		return task->command->work(task, ret_state, error);
	if (task->command->verb != GCR_VERB_FREEZE)
		return gcr_engine_of(task->process)->thaw(task, ret_state, error);
	return gcr_engine_freeze(task, ret_state, error);
}

/* Set the message for a task that ended because the operation was to stop. */
static void explain_stop(const struct gcr_task *task, int reason, struct gcr_error *error)
{
	const char *verb = gcr_verb_name(task->command->verb);
	char tail[GCR_ERROR_WORDS_MAX] = "";

	if (gcr_process_has_ended(task->process)) {
		gcr_error_set(error, ESRCH, "process %d has ended", (int)task->process->pid);
		return;
	}
	/* The engine has set a message only if the roll-back had a failure of its own. */
	if (error->words[0])
		snprintf(tail, sizeof(tail), "; %.400s", error->words);
	switch (reason) {
	case EINTR:
		gcr_error_set(error, EINTR, "%s was interrupted by a signal to the writer%s", verb,
			      tail);
		break;
	case ETIMEDOUT:
		gcr_error_set(error, ETIMEDOUT,
			      "%s did not end in time (timeout=SEC allows more)%s", verb, tail);
		break;
	case ESHUTDOWN:
		gcr_error_set(error, ECANCELED, "%s was rolled back: the daemon is stopping%s",
			      verb, tail);
		break;
	case ECANCELED:
		gcr_error_set(error, ECANCELED, "%s was cancelled%s", verb, tail);
		break;
	default: /* another process of the same operation failed, or ended */
		gcr_error_set(
			error, reason,
			"%s was rolled back: it failed for another process of the same write%s",
			verb, tail);
		break;
	}
}

void gcr_task_finish(struct gcr_task *task, int result, enum gcr_state state,
		     struct gcr_error *error)
{
	struct gcr_operation *operation = task->operation;
	struct gcr_process *process = task->process;
	int64_t duration_usec = gcr_clock_usec() - task->started_usec;
	enum gcr_verb verb = task->command->verb;
	bool told;
	bool last;
	bool counts;

	gcr_swap_end(task, result, error);
	/* A dumped process was ended by the daemon itself. */
	if (state != GCR_STATE_DUMPED && gcr_process_has_ended(process)) {
		result = gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
		gcr_record_remove(operation->job.daemon->runtime_fd, process->pid,
				  process->start_ticks);
	}
	gcr_gpus_expire(operation->job.daemon->gpus);
	/* A thaw continues even if the process to be frozen for it has ended. */
	counts = error->number != ESRCH || !gcr_swap_freezes(task);
	/* A deadline that was reported to the writers before is not reported again. */
	told = error->number == ETIMEDOUT && atomic_load(&task->control_pending) &&
	       gcr_transition_find(verb, state);
	if (!task->recovery)
		gcr_counters_verb(operation->job.daemon->counters, verb, error->number,
				  duration_usec, task->timing.bytes);
	gcr_process_end_verb(process, verb, state, !result && !task->recovery ? duration_usec : 0,
			     &task->timing,
			     (!task->recovery || result < 0) && !told ? error : NULL);
	gcr_vendor_keep_spares(operation->job.daemon);
	if (task->recovery)
		gcr_recover_ended(operation->job.daemon);

	pthread_mutex_lock(&operation->job.lock);
	if (result < 0 && counts) {
		if (!operation->error.number)
			operation->error = *error;
		if (error->number != ESRCH && !gcr_transition_find(verb, state))
			operation->inconsistent = true;
		gcr_job_stop_locked(&operation->job, error->number);
	}
	last = ++operation->ended == operation->job.count;
	gcr_operation_end_barrier_locked(operation);
	pthread_mutex_unlock(&operation->job.lock);
	if (last)
		gcr_operation_complete(operation);
}

void *gcr_task_run(void *data)
{
	struct gcr_task *task = data;
	struct gcr_error error = {0};
	enum gcr_state state = GCR_STATE_FAILED;
	int stop_reason;
	int result;

	pthread_setname_np(pthread_self(), "gpucrfs-task");
	result = carry_out(task, &state, &error);
	let_go_of_snapshot(task);
	stop_reason = gcr_task_stopped(task);
	if (result == -ECANCELED && stop_reason)
		explain_stop(task, stop_reason, &error);
	else if (!result)
		error = (struct gcr_error){0};
	gcr_task_finish(task, result, state, &error);
	return NULL;
}

/* SPDX-License-Identifier: MIT */
/*
 * One task of an operation, on its own thread: what it carries out, how long it may take, how it
 * agrees with the others before what cannot be taken back, and what becomes of its process.
 */
#include "fs/verb/operation_data.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "fs/image/dump.h"
#include "fs/engine/engine.h"
#include "fs/engine/exchange.h"
#include "fs/store/folder.h"
#include "fs/process/gpus.h"
#include "fs/helper/helper.h"
#include "fs/mount/metrics.h"
#include "fs/pack/pack_table.h"
#include "fs/verb/packing.h"
#include "fs/verb/reclaim.h"
#include "fs/job/recover.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/*
 * The default deadline: what the control state may take, and the bytes at a fifth of the rate of
 * the driver's own copy out (2.7 GB/s measured on an H100).
 */
#define DEADLINE_BASE_USEC	(60 * GCR_USEC_PER_SEC)
#define DEADLINE_BYTES_PER_USEC 512
/* How far below the kernel's own limit on a FUSE request we answer. */
#define DEADLINE_MARGIN_USEC	(5 * GCR_USEC_PER_SEC)

/* ---- how long it may take ---- */

int64_t gcr_operation_limit(const struct gcr_daemon *daemon, int64_t duration_usec)
{
	int64_t most_usec = daemon->max_request_usec;

	if (!most_usec)
		return duration_usec;
	most_usec = most_usec > 2 * DEADLINE_MARGIN_USEC ? most_usec - DEADLINE_MARGIN_USEC
							 : most_usec / 2;
	return !duration_usec || most_usec < duration_usec ? most_usec : duration_usec;
}

int64_t gcr_operation_deadline(const struct gcr_operation *operation, uint64_t bytes)
{
	int64_t duration_usec = operation->command.timeout_usec;

	if (!duration_usec)
		duration_usec = DEADLINE_BASE_USEC + (int64_t)(bytes / DEADLINE_BYTES_PER_USEC);
	return operation->tasks[0].started_usec +
	       gcr_operation_limit(operation->daemon, duration_usec);
}

int gcr_task_stopped(const struct gcr_task *task)
{
	if (gcr_process_state(task->process) == GCR_STATE_GONE)
		return ESRCH;
	return task->is_undoing || task->has_passed ? 0 : gcr_task_is_to_stop(task);
}

int gcr_task_is_to_stop(const struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	int reason;

	pthread_mutex_lock(&operation->lock);
	if (!task->recovery && gcr_clock_usec() >= operation->deadline_usec)
		gcr_operation_stop_locked(operation, ETIMEDOUT);
	reason = operation->stop;
	pthread_mutex_unlock(&operation->lock);
	return reason;
}

int64_t gcr_task_deadline_usec(const struct gcr_task *task)
{
	int64_t deadline_usec;

	if (task->is_undoing)
		return gcr_clock_usec() + DEADLINE_BASE_USEC;
	pthread_mutex_lock(&task->operation->lock);
	deadline_usec = task->operation->deadline_usec;
	pthread_mutex_unlock(&task->operation->lock);
	return deadline_usec;
}

void gcr_task_set_bytes(struct gcr_task *task, uint64_t bytes)
{
	struct gcr_operation *operation = task->operation;
	int64_t deadline_usec = gcr_operation_deadline(operation, (bytes + task->unpacked_bytes) *
									  operation->count);

	task->bytes = bytes;
	pthread_mutex_lock(&operation->lock);
	if (deadline_usec > operation->deadline_usec)
		operation->deadline_usec = deadline_usec;
	pthread_mutex_unlock(&operation->lock);
}

void gcr_task_deadline_passed(struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	const char *verb = gcr_verb_name(task->command->verb);
	struct gcr_error error = {0};
	bool committed;
	bool first;
	int reason;

	if (task->recovery || atomic_exchange(&task->control_pending, true))
		return;
	pthread_mutex_lock(&operation->lock);
	gcr_operation_stop_locked(operation, ETIMEDOUT);
	reason = operation->stop ? operation->stop : ETIMEDOUT;
	committed = operation->committed;
	first = !operation->answered;
	operation->answered = true;
	pthread_mutex_unlock(&operation->lock);
	gcr_error_set(&error, ETIMEDOUT,
		      "%s did not end in time; the driver's call cannot be taken back, the process "
		      "%s when it returns",
		      verb, committed ? "goes on" : "is rolled back");
	gcr_process_report(task->process, verb, &error);
	if (first)
		gcr_operation_answer(operation, reason == ESHUTDOWN ? ECANCELED : reason);
}

/* ---- together with the others ---- */

bool gcr_task_is_first(const struct gcr_task *task)
{
	return task == task->operation->tasks;
}

struct gcr_process *gcr_task_sibling(const struct gcr_task *task, unsigned int index)
{
	return index < task->operation->count ? task->operation->tasks[index].process : NULL;
}

bool gcr_task_is_alone(const struct gcr_task *task)
{
	return task->operation->count == 1 || task->exchange;
}

int gcr_task_commit(struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	struct timespec until;
	int reason;

	/*
	 * A deadline that has passed, or a process that has ended, counts until the last moment.
	 * Whoever notices an end first stops the operation, so no lock may be held here.
	 */
	if (gcr_task_stopped(task))
		return -ECANCELED;
	if (task->is_undoing)
		return 0;
	if (task->exchange)
		return gcr_exchange_commit(task);
	for (unsigned int i = 0; i < operation->count; i++)
		if (gcr_process_has_ended(operation->tasks[i].process))
			gcr_operation_stop(operation, ESRCH);
	atomic_store(&task->phase, "vote");
	pthread_mutex_lock(&operation->lock);
	operation->votes++;
	if (operation->votes == operation->count && !operation->stop) {
		operation->committed = true;
		pthread_cond_broadcast(&operation->decided);
	}
	until = (struct timespec){operation->deadline_usec / GCR_USEC_PER_SEC,
				  operation->deadline_usec % GCR_USEC_PER_SEC * 1000};
	while (!operation->committed && !operation->stop)
		if (pthread_cond_clockwait(&operation->decided, &operation->lock, CLOCK_MONOTONIC,
					   &until) == ETIMEDOUT)
			gcr_operation_stop_locked(operation, ETIMEDOUT);
	reason = operation->committed ? 0 : operation->stop;
	pthread_mutex_unlock(&operation->lock);
	return reason ? -ECANCELED : 0;
}

/* Everybody who comes is there: who has ended does not. Caller holds operation->lock. */
static void end_meeting_locked(struct gcr_operation *operation)
{
	if (!operation->met || operation->met + operation->ended < operation->count)
		return;
	operation->meeting_failed = operation->stop || operation->ended;
	operation->met = 0;
	operation->meetings++;
	/* What comes now can be stopped, and ends with a vote of its own if it has one. */
	operation->committed = false;
	operation->votes = 0;
	pthread_cond_broadcast(&operation->decided);
}

int gcr_task_meet(struct gcr_task *task, int result, struct gcr_error *error)
{
	struct gcr_operation *operation = task->operation;
	unsigned int meeting;
	bool failed;

	atomic_store(&task->phase, "vote");
	pthread_mutex_lock(&operation->lock);
	if (result < 0) {
		/* Also after a vote: the others have to know. */
		operation->committed = false;
		gcr_operation_stop_locked(operation, error->number ? error->number : -result);
		if (!operation->error.number && result != -ECANCELED)
			operation->error = *error;
	}
	meeting = operation->meetings;
	operation->met++;
	end_meeting_locked(operation);
	while (operation->meetings == meeting)
		pthread_cond_wait(&operation->decided, &operation->lock);
	failed = operation->meeting_failed;
	pthread_mutex_unlock(&operation->lock);
	return result < 0 ? result : failed ? -ECANCELED : 0;
}

int gcr_task_decide(struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	int reason = gcr_task_stopped(task);

	pthread_mutex_lock(&operation->lock);
	if (!reason)
		reason = operation->stop;
	operation->committed = !reason;
	pthread_mutex_unlock(&operation->lock);
	return reason ? -ECANCELED : 0;
}

void gcr_task_fail(struct gcr_task *task, const struct gcr_error *error)
{
	struct gcr_operation *operation = task->operation;

	pthread_mutex_lock(&operation->lock);
	operation->committed = false;
	if (!operation->stop && !operation->error.number)
		operation->error = *error;
	gcr_operation_stop_locked(operation, error->number);
	pthread_mutex_unlock(&operation->lock);
}

/* ---- from the start to the end ---- */

int gcr_task_hold_snapshot(struct gcr_task *task, struct gcr_snapshot *snapshot,
			   struct gcr_error *error)
{
	if (task->held)
		return 0;
	task->held = gcr_snapshot_ref(snapshot);
	return gcr_snapshot_begin_verb(snapshot, error);
}

static bool is_packed(struct gcr_snapshot *snapshot)
{
	struct gcr_pack_figures figures;

	gcr_folder_pack_figures(gcr_snapshot_folder(snapshot), &figures);
	return figures.pieces;
}

static int unpack(struct gcr_task *task, struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	const struct gcr_process *process = task->process;
	struct gcr_pack_figures figures;
	bool unused;
	int result;

	gcr_folder_pack_figures(gcr_snapshot_folder(snapshot), &figures);
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

/* Verbs win over those who write to the snapshot that the process has. */
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
	/* A place has the files themselves. */
	if (is_unpacked)
		result = unpack(task, snapshot, error);
	if (!result)
		result = gcr_task_hold_snapshot(task, snapshot, error);
	/* Its owner may have moved a file away meanwhile, and back. */
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
	if (task->exchange)
		return gcr_exchange_carry_out(task, ret_state, error);
	if (task->command->verb == GCR_VERB_DUMP)
		return gcr_dump(task, ret_state, error);
	if (task->command->verb != GCR_VERB_FREEZE)
		return gcr_engine_of(task->process)->thaw(task, ret_state, error);
	if (task->command->park)
		return gcr_freeze_and_park(task, ret_state, error);
	return gcr_engine_freeze(task, ret_state, error);
}

/* What the writer is told when a task ended because the operation was to stop. */
static void explain_stop(const struct gcr_task *task, int reason, struct gcr_error *error)
{
	const char *verb = gcr_verb_name(task->command->verb);
	char tail[GCR_ERROR_WORDS_MAX] = "";

	if (gcr_process_has_ended(task->process)) {
		gcr_error_set(error, ESRCH, "process %d has ended", (int)task->process->pid);
		return;
	}
	/* The engine has words of its own only if something went wrong on the way back. */
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

	gcr_exchange_end(task, result, error);
	/* What is dumped has ended by our hand. */
	if (state != GCR_STATE_DUMPED && gcr_process_has_ended(process)) {
		result = gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
		gcr_record_remove(operation->daemon->runtime_fd, process->pid,
				  process->start_ticks);
	}
	gcr_gpus_expire(operation->daemon->gpus);
	/* Without the one that was to make room a thaw goes on. */
	counts = error->number != ESRCH || !gcr_exchange_freezes(task);
	/* A deadline that the writers have been told of already is not told twice. */
	told = error->number == ETIMEDOUT && atomic_load(&task->control_pending) &&
	       gcr_transition_find(verb, state);
	if (!task->recovery)
		gcr_metrics_verb(operation->daemon->metrics, verb, error->number, duration_usec,
				 task->timing.bytes);
	gcr_process_settle(process, state, !result && !task->recovery ? duration_usec : 0,
			   (!task->recovery || result < 0) && !told ? error : NULL);
	gcr_vendor_keep_spares(operation->daemon);
	if (task->recovery)
		gcr_recover_ended(operation->daemon);

	pthread_mutex_lock(&operation->lock);
	if (result < 0 && counts) {
		if (!operation->error.number)
			operation->error = *error;
		if (error->number != ESRCH && !gcr_transition_find(verb, state))
			operation->astray = true;
		gcr_operation_stop_locked(operation, error->number);
	}
	last = ++operation->ended == operation->count;
	end_meeting_locked(operation);
	pthread_mutex_unlock(&operation->lock);
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

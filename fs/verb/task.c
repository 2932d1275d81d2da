/* SPDX-License-Identifier: MIT */
/*
 * Deadlines of tasks, and their agreement with the other tasks of the operation before a step that
 * cannot be taken back.
 */
#include "fs/verb/task.h"

#include <errno.h>
#include <pthread.h>

#include "fs/base/fair_queue.h"
#include "fs/store/store.h"
#include "fs/verb/operation_data.h"
#include "lib/clock.h"
#include "lib/lock.h"

/*
 * The default deadline: time for the control state, and for the bytes at a fifth of the rate of the
 * driver's own copy out (2.7 GB/s measured on an H100).
 */
#define DEADLINE_BASE_USEC	(60 * GCR_USEC_PER_SEC)
#define DEADLINE_BYTES_PER_USEC 512
/* Time between the answer and the kernel's own limit on a FUSE request. */
#define DEADLINE_MARGIN_USEC	(5 * GCR_USEC_PER_SEC)

/* ---- stopping and deadlines ---- */

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
	int64_t duration_usec = operation->job.command.timeout_usec;

	if (!duration_usec)
		duration_usec = DEADLINE_BASE_USEC + (int64_t)(bytes / DEADLINE_BYTES_PER_USEC);
	return operation->tasks[0].started_usec +
	       gcr_operation_limit(operation->job.daemon, duration_usec);
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

	pthread_mutex_lock(&operation->job.lock);
	if (!task->recovery && gcr_clock_usec() >= operation->job.deadline_usec)
		gcr_job_stop_locked(&operation->job, ETIMEDOUT);
	reason = operation->job.stop;
	pthread_mutex_unlock(&operation->job.lock);
	return reason;
}

int64_t gcr_task_deadline_usec(const struct gcr_task *task)
{
	int64_t deadline_usec;

	if (task->is_undoing)
		return gcr_clock_usec() + DEADLINE_BASE_USEC;
	pthread_mutex_lock(&task->operation->job.lock);
	deadline_usec = task->operation->job.deadline_usec;
	pthread_mutex_unlock(&task->operation->job.lock);
	return deadline_usec;
}

uint64_t gcr_task_client(const struct gcr_task *task)
{
	const struct gcr_process *process = task->process;
	struct gcr_quota *quota = process->daemon->quota;
	uid_t counted = gcr_quota_owner(quota, task->command->rights.counted);

	if (gcr_quota_is_limited(quota, counted))
		return gcr_fair_client(counted, counted);
	return gcr_fair_client(counted, gcr_quota_owner(quota, process->counted));
}

void gcr_task_set_bytes(struct gcr_task *task, uint64_t bytes)
{
	struct gcr_operation *operation = task->operation;
	int64_t deadline_usec = gcr_operation_deadline(operation, (bytes + task->unpacked_bytes) *
									  operation->job.count);

	task->bytes = bytes;
	pthread_mutex_lock(&operation->job.lock);
	if (deadline_usec > operation->job.deadline_usec)
		operation->job.deadline_usec = deadline_usec;
	pthread_mutex_unlock(&operation->job.lock);
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
	pthread_mutex_lock(&operation->job.lock);
	gcr_job_stop_locked(&operation->job, ETIMEDOUT);
	reason = operation->job.stop ? operation->job.stop : ETIMEDOUT;
	committed = operation->job.is_committed;
	first = !operation->job.is_answered;
	operation->job.is_answered = true;
	pthread_mutex_unlock(&operation->job.lock);
	gcr_error_set(&error, ETIMEDOUT,
		      "%s did not end in time; the driver's call cannot be taken back, the process "
		      "%s when it returns",
		      verb, committed ? "goes on" : "is rolled back");
	gcr_process_report(task->process, verb, &error);
	if (first)
		gcr_job_answer(&operation->job, reason == ESHUTDOWN ? ECANCELED : reason);
}

/* ---- agreement of the tasks ---- */

bool gcr_task_is_first(const struct gcr_task *task)
{
	return task == task->operation->tasks;
}

struct gcr_process *gcr_task_sibling(const struct gcr_task *task, unsigned int index)
{
	return index < task->operation->job.count ? task->operation->tasks[index].process : NULL;
}

bool gcr_task_is_alone(const struct gcr_task *task)
{
	return task->operation->job.count == 1 || task->swap;
}

int gcr_task_commit(struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	int reason;

	/*
	 * A deadline that has passed, or a process that has ended, counts until the last moment.
	 * The thread that notices the end of a process stops the operation, so no lock may be held
	 * here.
	 */
	if (gcr_task_stopped(task))
		return -ECANCELED;
	if (task->is_undoing)
		return 0;
	for (unsigned int i = 0; i < operation->job.count; i++)
		if (gcr_process_has_ended(operation->tasks[i].process))
			gcr_job_stop(&operation->job, ESRCH);
	atomic_store(&task->phase, "vote");
	pthread_mutex_lock(&operation->job.lock);
	operation->votes++;
	if (operation->votes == operation->job.count && !operation->job.stop) {
		operation->job.is_committed = true;
		pthread_cond_broadcast(&operation->job.changed);
	}
	while (!operation->job.is_committed && !operation->job.stop)
		/* Another task may have extended the deadline during the wait. */
		if (gcr_cond_wait_until(&operation->job.changed, &operation->job.lock,
					operation->job.deadline_usec) < 0 &&
		    gcr_clock_usec() >= operation->job.deadline_usec)
			gcr_job_stop_locked(&operation->job, ETIMEDOUT);
	reason = operation->job.is_committed ? 0 : operation->job.stop;
	pthread_mutex_unlock(&operation->job.lock);
	return reason ? -ECANCELED : 0;
}

void gcr_operation_end_barrier_locked(struct gcr_operation *operation)
{
	if (!operation->at_barrier ||
	    operation->at_barrier + operation->ended < operation->job.count)
		return;
	operation->barrier_failed = operation->job.stop || operation->ended;
	operation->at_barrier = 0;
	operation->barriers_passed++;
	/* The next part can be stopped, and ends with a vote of its own if it has one. */
	operation->job.is_committed = false;
	operation->votes = 0;
	pthread_cond_broadcast(&operation->job.changed);
}

int gcr_task_barrier(struct gcr_task *task, int result, struct gcr_error *error)
{
	struct gcr_operation *operation = task->operation;
	unsigned int passed;
	bool failed;

	atomic_store(&task->phase, "vote");
	pthread_mutex_lock(&operation->job.lock);
	if (result < 0) {
		/* Even after a vote: the other tasks have to learn of the failure. */
		operation->job.is_committed = false;
		gcr_job_stop_locked(&operation->job, error->number ? error->number : -result);
		if (!operation->error.number && result != -ECANCELED)
			operation->error = *error;
	}
	passed = operation->barriers_passed;
	operation->at_barrier++;
	gcr_operation_end_barrier_locked(operation);
	while (operation->barriers_passed == passed)
		pthread_cond_wait(&operation->job.changed, &operation->job.lock);
	failed = operation->barrier_failed;
	pthread_mutex_unlock(&operation->job.lock);
	return result < 0 ? result : failed ? -ECANCELED : 0;
}

int gcr_task_decide(struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	int reason = gcr_task_stopped(task);

	pthread_mutex_lock(&operation->job.lock);
	if (!reason)
		reason = operation->job.stop;
	operation->job.is_committed = !reason;
	pthread_mutex_unlock(&operation->job.lock);
	return reason ? -ECANCELED : 0;
}

void gcr_task_fail(struct gcr_task *task, const struct gcr_error *error)
{
	struct gcr_operation *operation = task->operation;

	pthread_mutex_lock(&operation->job.lock);
	operation->job.is_committed = false;
	if (!operation->job.stop && !operation->error.number)
		operation->error = *error;
	gcr_job_stop_locked(&operation->job, error->number);
	pthread_mutex_unlock(&operation->job.lock);
}

int gcr_task_hold_snapshot(struct gcr_task *task, struct gcr_snapshot *snapshot,
			   struct gcr_error *error)
{
	if (task->held)
		return 0;
	task->held = gcr_snapshot_ref(snapshot);
	return gcr_snapshot_begin_verb(snapshot, error);
}

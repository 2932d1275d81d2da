/* SPDX-License-Identifier: MIT */
/*
 * Starting, joining, stopping and ending operations. `operations.lock` serialises the decisions
 * which verb is under way for which process; operation->job.lock guards one operation's votes, stop
 * reason and waiters, and is taken last. Waiters are answered and events written with no lock held.
 */
#include "fs/job/operation_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/engine/swap.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

static struct gcr_operation *operation_of(struct gcr_job *job)
{
	return (struct gcr_operation *)job; /* its first member */
}

/*
 * The job that is under way on the process, for struct gcr_jobs. NULL: none, or a recovery, which
 * no writer can join or cancel. Lock: process.
 */
static struct gcr_job *job_of_process(const struct gcr_process *process)
{
	return process->task && !process->task->recovery ? &process->task->operation->job : NULL;
}

static void destroy(struct gcr_job *job)
{
	struct gcr_operation *operation = operation_of(job);

	for (size_t i = 0; i < job->count; i++)
		gcr_process_unref(operation->tasks[i].process);
	gcr_swap_destroy(operation->swap);
	gcr_quota_release(&operation->dump_charge);
	free(operation);
}

static struct gcr_jobs operations = GCR_JOBS_INITIALIZER(job_of_process, destroy);

struct gcr_operation *gcr_operation_ref(struct gcr_operation *operation)
{
	gcr_job_ref(&operation->job);
	return operation;
}

void gcr_operation_unref(struct gcr_operation *operation)
{
	if (operation)
		gcr_job_unref(&operation->job);
}

void gcr_operation_complete(struct gcr_operation *operation)
{
	struct gcr_job *job = &operation->job;
	int error_number;
	bool inconsistent;

	pthread_mutex_lock(&job->lock);
	error_number = operation->error.number;
	inconsistent = operation->inconsistent;
	/* Nobody joins what is released now. */
	job->is_answered = true;
	pthread_mutex_unlock(&job->lock);

	gcr_quota_release(&job->charge);
	gcr_quota_release(&operation->dump_charge);
	gcr_job_answer(job, error_number);
	gcr_job_answer_cancellations(job, inconsistent ? EIO : error_number ? 0 : EBUSY);
	gcr_jobs_remove(job);
}

static struct gcr_operation *create(struct gcr_daemon *daemon, const struct gcr_command *command,
				    size_t count)
{
	struct gcr_operation *operation;

	operation = calloc(1, sizeof(*operation) + count * sizeof(struct gcr_task));
	if (!operation)
		return NULL;
	if (command->swap) {
		operation->swap = gcr_swap_create(command, daemon->admission);
		if (!operation->swap) {
			free(operation);
			return NULL;
		}
	}
	gcr_job_init(&operation->job, &operations, daemon, command);
	return operation;
}

static void add_task(struct gcr_operation *operation, struct gcr_process *process,
		     const struct gcr_command *command, const struct gcr_proc_program *program)
{
	struct gcr_task *task = &operation->tasks[operation->job.count];

	task->operation = operation;
	task->process = gcr_process_ref(process);
	task->command = command;
	if (program)
		task->program = *program;
	task->swap = operation->swap;
	task->started_usec = gcr_clock_usec();
	atomic_init(&task->phase, "start");
	operation->job.count++;
}

/*
 * Start the threads of an operation that is in the list and in its processes' `task`. If a thread
 * cannot be created, its task counts as failed, and the others roll back.
 */
static void launch(struct gcr_operation *operation)
{
	/* The last task to end drops the list's reference. */
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *held =
		gcr_operation_ref(operation);

	for (unsigned int i = 0; i < held->job.count; i++) {
		struct gcr_task *task = &held->tasks[i];
		const struct gcr_transition *transition;
		pthread_attr_t attributes;
		pthread_t thread;
		int result;

		task->from = gcr_process_state(task->process);
		transition = gcr_transition_find(task->command->verb, task->from);
		if (!task->recovery && transition)
			gcr_process_set_state(task->process, transition->via);
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		result = pthread_create(&thread, &attributes, gcr_task_run, task);
		pthread_attr_destroy(&attributes);
		if (result) {
			struct gcr_error error;

			gcr_error_set(&error, ENOMEM, "cannot start a thread: %s",
				      strerror(result));
			gcr_task_finish(task, -ENOMEM,
					gcr_state_is_transition(task->from) ? GCR_STATE_FAILED
									    : task->from,
					&error);
		}
	}
}

/*
 * Check whether @command is allowed for @process now, perhaps as one half of a swap; *ret_nothing:
 * the process is in the wanted state already. -ESRCH, -EBUSY, with a message. Lock:
 * operations.lock.
 */
static int check_locked(struct gcr_process *process, const struct gcr_command *command,
			bool is_swapped, bool *ret_nothing, struct gcr_error *error)
{
	enum gcr_verb verb = command->verb;
	int result = 0;

	*ret_nothing = false;
	pthread_mutex_lock(&process->lock);
	if (process->state == GCR_STATE_GONE)
		result = gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	else if (process->task)
		result = gcr_error_set(error, EBUSY, "process %d is %s; wait, or write cancel",
				       (int)process->pid,
				       process->task->recovery ? "being recovered"
							       : gcr_state_name(process->state));
	else if (process->state == gcr_verb_goal(verb))
		*ret_nothing = !command->park;
	/* Only a thaw of its own finds out how much VRAM a failed process has and needs. */
	else if (is_swapped && process->state == GCR_STATE_FAILED)
		result = gcr_error_set(error, EBUSY,
				       "an exchange thaws a frozen process and freezes a running "
				       "one, but process %d is failed; thaw it alone first",
				       (int)process->pid);
	else if (!gcr_transition_find(verb, process->state))
		result = gcr_error_set(error, EBUSY, "%s leads to %s, but process %d is %s",
				       gcr_verb_name(verb), gcr_state_name(gcr_verb_goal(verb)),
				       (int)process->pid, gcr_state_name(process->state));
	pthread_mutex_unlock(&process->lock);
	return result;
}

/* Add a task for every process that is not in the wanted state already. Lock: operations.lock. */
static int add_tasks_locked(struct gcr_operation *operation, struct gcr_process *const *processes,
			    const struct gcr_proc_program *programs, size_t count,
			    struct gcr_error *error)
{
	for (size_t i = 0; i < count; i++) {
		const struct gcr_command *command = operation->swap && i
							    ? gcr_swap_freeze(operation->swap)
							    : &operation->job.command;
		bool nothing;
		int result = check_locked(processes[i], command, operation->swap, &nothing, error);

		if (result < 0)
			return result;
		if (!nothing)
			add_task(operation, processes[i], command, programs ? &programs[i] : NULL);
	}
	/* A swap needs both processes. */
	if (operation->swap && operation->job.count == 1)
		return gcr_error_set(error, EBUSY,
				     "an exchange thaws a frozen process and freezes a running "
				     "one, but both are %s",
				     gcr_state_name(gcr_process_state(processes[0])));
	return 0;
}

static bool same_way(const struct gcr_command *left, const struct gcr_command *right)
{
	if (left->data != right->data || left->unseen != right->unseen ||
	    left->park != right->park || left->leave != right->leave || left->tcp != right->tcp ||
	    left->unverified != right->unverified || left->root != right->root ||
	    left->swap != right->swap || left->swap_data != right->swap_data ||
	    strcmp(left->name, right->name) != 0 || left->gpu_pairs_count != right->gpu_pairs_count)
		return false;
	for (unsigned int i = 0; i < left->gpu_pairs_count; i++)
		if (left->gpu_pairs[i].from != right->gpu_pairs[i].from ||
		    left->gpu_pairs[i].to != right->gpu_pairs[i].to)
			return false;
	return true;
}

/*
 * Joins the operation. A writer who could not cancel the operation, because another user has begun
 * it for several processes, does not keep it going either. -EBUSY: it is being rolled back, or its
 * options differ; -ENOMEM.
 */
static int join(struct gcr_job *job, const struct gcr_command *command, struct gcr_waiter *waiter)
{
	if (!same_way(&job->command, command))
		return -EBUSY;
	return gcr_job_join(
		job, waiter,
		gcr_rights_may_cancel(&command->rights, &job->command.rights, job->count));
}

int gcr_operation_start(struct gcr_daemon *daemon, const struct gcr_command *command,
			struct gcr_process *const *processes,
			const struct gcr_proc_program *programs, size_t count,
			struct gcr_waiter *waiter, bool *ret_done, struct gcr_error *error)
{
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *operation = NULL;
	_cleanup_(gcr_job_unref_cleanup) struct gcr_job *joined = NULL;
	int result = 0;

	*ret_done = false;
	operation = create(daemon, command, count);
	if (!operation)
		return gcr_error_set(error, ENOMEM, "out of memory");

	pthread_mutex_lock(&operations.lock);
	if (atomic_load(&daemon->stopping)) {
		pthread_mutex_unlock(&operations.lock);
		return gcr_error_set(error, EBUSY, "the daemon is stopping");
	}
	joined = gcr_jobs_find_locked(&operations, command->verb, processes, count);
	if (joined && !join(gcr_job_ref(joined), command, waiter)) {
		pthread_mutex_unlock(&operations.lock);
		gcr_job_arm(joined, waiter);
		return 0;
	}
	result = add_tasks_locked(operation, processes, programs, count, error);
	if (result < 0) {
		pthread_mutex_unlock(&operations.lock);
		return result;
	}
	if (!operation->job.count) {
		pthread_mutex_unlock(&operations.lock);
		*ret_done = true;
		return 0;
	}
	result = gcr_quota_take(daemon->quota, GCR_QUOTA_VERBS, command->rights.counted,
				operation->job.count, &operation->job.charge, error);
	if (!result && command->verb == GCR_VERB_DUMP)
		result = gcr_quota_take(daemon->quota, GCR_QUOTA_DUMPS, command->rights.counted, 1,
					&operation->dump_charge, error);
	if (result < 0) {
		pthread_mutex_unlock(&operations.lock);
		return result;
	}
	operation->job.deadline_usec = gcr_operation_deadline(operation, 0);
	if (gcr_job_begin(&operation->job, waiter) < 0) {
		pthread_mutex_unlock(&operations.lock);
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	for (unsigned int i = 0; i < operation->job.count; i++) {
		struct gcr_process *process = operation->tasks[i].process;

		pthread_mutex_lock(&process->lock);
		process->task = &operation->tasks[i];
		pthread_mutex_unlock(&process->lock);
	}
	gcr_jobs_add_locked(&operation->job);
	pthread_mutex_unlock(&operations.lock);

	gcr_job_arm(&operation->job, waiter);
	launch(operation);
	return 0;
}

int gcr_operation_claim_recovery(struct gcr_process *process, enum gcr_verb verb,
				 struct gcr_operation **ret_operation)
{
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *operation = NULL;
	struct gcr_command command = {.verb = verb};
	int result = 0;

	operation = create(process->daemon, &command, 1);
	if (!operation)
		return -ENOMEM;
	add_task(operation, process, &operation->job.command, NULL);
	operation->tasks[0].recovery = true;
	operation->job.is_detached = true;
	operation->job.deadline_usec = gcr_operation_deadline(operation, 0);

	GCR_LOCK_SCOPE(&operations.lock);
	if (atomic_load(&process->daemon->stopping))
		return -ESHUTDOWN;
	pthread_mutex_lock(&process->lock);
	if (process->task)
		result = -EBUSY;
	else
		process->task = &operation->tasks[0];
	pthread_mutex_unlock(&process->lock);
	if (result < 0)
		return result;
	gcr_jobs_add_locked(&operation->job);
	*ret_operation = operation;
	return 0;
}

void gcr_operation_recover(struct gcr_operation *operation)
{
	launch(operation);
}

void gcr_operation_drop_recovery(struct gcr_operation *operation)
{
	struct gcr_process *process = operation->tasks[0].process;

	pthread_mutex_lock(&process->lock);
	process->task = NULL;
	pthread_mutex_unlock(&process->lock);
	gcr_operation_complete(operation);
}

size_t gcr_operation_cancel(struct gcr_process *const *processes, size_t count,
			    const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			    bool *ret_denied)
{
	return gcr_jobs_cancel(&operations, processes, count, rights, cancellation, ret_denied);
}

/*
 * A process has ended: stops its operation (all or none), unless it was the process to be frozen
 * in a swap.
 */
static void process_ended(struct gcr_process *process)
{
	struct gcr_operation *operation = NULL;

	pthread_mutex_lock(&operations.lock);
	pthread_mutex_lock(&process->lock);
	if (process->task && !gcr_swap_freezes(process->task))
		operation = process->task->operation;
	pthread_mutex_unlock(&process->lock);
	if (operation)
		gcr_job_stop(&operation->job, ESRCH);
	pthread_mutex_unlock(&operations.lock);
}

void gcr_operations_create(struct gcr_daemon *daemon)
{
	static const struct gcr_process_listener listener = {.ended = process_ended};

	gcr_processes_listen(daemon->processes, &listener);
}

void gcr_operations_wait(int64_t timeout_usec)
{
	gcr_jobs_wait(&operations, gcr_clock_usec() + timeout_usec);
}

void gcr_operations_stop(struct gcr_daemon *daemon)
{
	gcr_jobs_stop(&operations, daemon);
}

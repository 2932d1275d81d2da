/* SPDX-License-Identifier: MIT */
/*
 * Restores as jobs: starting, joining, stopping and ending them. Points at which a process could be
 * lost or doubled, each with a test that fails there: metadata, owners, images, host, GPUs, files,
 * pids, supplies, CRIU's start, failure and end by a signal, cancel in it, the store's links, the
 * record, the vote of the thaw, and the daemon's death in each.
 */
#include "fs/image/restore.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cancellation.h"
#include "fs/base/counters.h"
#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/waiter.h"
#include "fs/image/restore_private.h"
#include "fs/job/operation.h"
#include "fs/process/gpus.h"
#include "fs/store/subtree.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define DEADLINE_USEC (600 * GCR_USEC_PER_SEC)

static struct gcr_restore *restore_of(struct gcr_job *job)
{
	return (struct gcr_restore *)job; /* its first member */
}

static void destroy(struct gcr_job *job)
{
	struct gcr_restore *restore = restore_of(job);

	gcr_place_unref(restore->place);
	free(restore->cgroup);
	free(restore);
}

/* Restores are found by their places, and not by processes. */
static struct gcr_jobs restores = GCR_JOBS_INITIALIZER(NULL, destroy);

void gcr_restore_set_phase(struct gcr_restore *restore, const char *phase)
{
	atomic_store(&restore->phase, phase);
}

const char *gcr_restore_phase_locked(const struct gcr_place *place)
{
	return place->restore ? atomic_load(&place->restore->phase) : "-";
}

int gcr_restore_stopped(struct gcr_restore *restore)
{
	return gcr_job_stopped(&restore->job);
}

int gcr_restore_check_stop(struct gcr_restore *restore, struct gcr_error *error)
{
	int reason = gcr_restore_stopped(restore);

	switch (reason) {
	case 0:
		return 0;
	case EINTR:
		return gcr_error_set(error, EINTR,
				     "thaw was interrupted by a signal to the writer");
	case ETIMEDOUT:
		return gcr_error_set(error, ETIMEDOUT,
				     "thaw did not end in time (timeout=SEC allows more)");
	case ESHUTDOWN:
		return gcr_error_set(error, ECANCELED,
				     "thaw was rolled back: the daemon is stopping");
	default:
		return gcr_error_set(error, ECANCELED, "thaw was cancelled");
	}
}

/* ---- the thaw of the restored processes ---- */

/* State of the thaw operation, shared by the restore and the operation's waiter. */
struct ending {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_over;
	int error_number;
};

static void operation_ended(void *data, int error_number)
{
	struct ending *ending = data;

	pthread_mutex_lock(&ending->lock);
	ending->is_over = true;
	ending->error_number = error_number;
	pthread_cond_broadcast(&ending->changed);
	pthread_mutex_unlock(&ending->lock);
}

/*
 * Waits for the operation and returns its error number (positive, or 0). Cancels the operation if
 * the restore is to stop; the wait continues until the operation has ended.
 */
static int wait_for(struct gcr_restore *restore, struct ending *ending,
		    struct gcr_process *const *processes)
{
	bool is_told = false;

	pthread_mutex_lock(&ending->lock);
	while (!ending->is_over) {
		gcr_cond_wait_until(&ending->changed, &ending->lock,
				    gcr_clock_usec() + 50 * GCR_USEC_PER_MSEC);
		pthread_mutex_unlock(&ending->lock);
		if (!is_told && gcr_restore_stopped(restore)) {
			is_told = true;
			gcr_operation_cancel(processes, restore->members_count, NULL, NULL, NULL);
		}
		pthread_mutex_lock(&ending->lock);
	}
	pthread_mutex_unlock(&ending->lock);
	return ending->error_number;
}

/* Takes the error of the failed thaw from one of the processes. */
static void take_words(struct gcr_restore *restore, int number, struct gcr_error *error)
{
	gcr_error_set(error, number, "the thaw of what was restored failed");
	for (size_t i = 0; i < restore->members_count; i++) {
		struct gcr_process *process = restore->members[i].process;
		bool is_it;

		pthread_mutex_lock(&process->lock);
		is_it = process->error.number == number;
		if (is_it)
			*error = process->error;
		pthread_mutex_unlock(&process->lock);
		if (is_it)
			return;
	}
}

static int thaw(struct gcr_restore *restore, struct gcr_error *error)
{
	struct ending ending = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};
	struct gcr_command command = {.verb = GCR_VERB_THAW,
				      .unverified = restore->job.command.unverified};
	_cleanup_free_ struct gcr_process **processes =
		calloc(restore->members_count + 1, sizeof(*processes));
	struct gcr_waiter *waiter;
	bool done;
	int result;

	gcr_restore_set_phase(restore, "thaw");
	if (!restore->members_count)
		return 0;
	if (!processes || gcr_waiter_create_local(operation_ended, &ending, &waiter) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < restore->members_count; i++)
		processes[i] = restore->members[i].process;
	result = gcr_operation_start(restore->job.daemon, &command, processes, NULL,
				     restore->members_count, waiter, &done, error);
	if (!result && !done)
		result = wait_for(restore, &ending, processes);
	gcr_waiter_unref(waiter);
	if (result > 0)
		take_words(restore, result, error);
	return result > 0 ? -result : result;
}

/* ---- one restore ---- */

/* Makes the place another name of the restored process. */
static void become(struct gcr_restore *restore)
{
	struct gcr_process *process = NULL;
	struct gcr_process *root;

	pthread_mutex_lock(&restore->place->lock);
	free(restore->place->cgroup);
	restore->place->cgroup = TAKE_PTR(restore->cgroup);
	pthread_mutex_unlock(&restore->place->lock);
	if (!gcr_processes_find(restore->job.daemon->processes, restore->root, &root)) {
		if (root->start_ticks == restore->root_ticks)
			process = gcr_process_ref(root);
		gcr_process_unref(root);
	}
	/* If the root itself has ended by now, one of its GPU processes is taken. */
	if (!process)
		process = gcr_process_ref(restore->members[0].process);
	gcr_place_became(restore->place, process);
	gcr_process_unref(process);
}

static int carry_out(struct gcr_restore *restore, struct gcr_error *error)
{
	struct gcr_error unused;
	int result;

	gcr_restore_set_phase(restore, "check");
	result = gcr_restore_check(restore, error);
	if (result < 0)
		return result;
	if (restore->job.command.restored)
		restore->root = restore->job.command.restored;
	else
		result = gcr_restore_run_criu(restore, error);
	if (!result)
		result = gcr_restore_adopt(restore, error);
	/*
	 * With moved GPUs the mark stays at RESTORING: the records do not contain the moves, so a
	 * next daemon could not complete the thaw and has to end the tree.
	 */
	if (!result && !restore->moves_count)
		result = gcr_restore_mark(restore, GCR_PLACE_THAWING, error);
	if (!result) {
		gcr_restore_let_run(restore, false);
		result = thaw(restore, error);
	}
	if (result < 0) {
		gcr_restore_set_phase(restore, "rollback");
		/* If the tree does not end, the mark stays, so that a next daemon sees it. */
		if (gcr_restore_end_tree(restore) < 0)
			restore->from = GCR_STATE_FAILED;
		else if (gcr_place_mark(restore->place, NULL, &unused) < 0)
			gcr_log(LOG_WARNING, 0, "%s: %s", restore->place->name, unused.words);
		return result;
	}
	gcr_restore_let_run(restore, true);
	return 0;
}

static void answer_all(struct gcr_restore *restore, int error_number)
{
	gcr_job_answer(&restore->job, error_number);
	gcr_job_answer_cancellations(&restore->job, error_number ? 0 : EBUSY);
}

static void *run(void *data)
{
	struct gcr_restore *restore = data;
	struct gcr_place *place = restore->place;
	struct gcr_error error = {0};
	int result;

	pthread_setname_np(pthread_self(), "gpucrfs-restore");
	gcr_subtree_begin_verb(place->subtree);
	result = carry_out(restore, &error);
	gcr_subtree_end_verb(place->subtree);
	if (!result)
		error = (struct gcr_error){0};
	/* Only when all this is done may the place be dropped or thawed again (`restore` NULL). */
	if (result < 0)
		gcr_place_set_state(place, restore->from);
	else
		become(restore);
	pthread_mutex_lock(&place->lock);
	place->restore = NULL;
	pthread_mutex_unlock(&place->lock);
	gcr_restore_forget_metadata(restore);
	gcr_place_report(place, "thaw", &error);
	answer_all(restore, error.number);
	gcr_jobs_remove(&restore->job);
	return NULL;
}

/*
 * Makes the restore of the place: *ret_restore, with a reference for the caller. @waiter (NULL:
 * none) becomes its first waiter. Does not start it. -ENOMEM. Lock: place.
 */
static int start_locked(struct gcr_place *place, const struct gcr_command *command,
			struct gcr_waiter *waiter, struct gcr_restore **ret_restore)
{
	struct gcr_restore *restore = calloc(1, sizeof(*restore));

	if (!restore)
		return -ENOMEM;
	gcr_job_init(&restore->job, &restores, place->daemon, command);
	restore->job.count = 1;
	restore->place = gcr_place_ref(place);
	restore->from = place->state;
	restore->started_usec = gcr_clock_usec();
	restore->job.deadline_usec =
		restore->started_usec +
		(command->timeout_usec ? command->timeout_usec : DEADLINE_USEC);
	restore->root_fd = -1;
	atomic_init(&restore->phase, "start");
	if (gcr_job_begin(&restore->job, waiter) < 0) {
		gcr_job_unref(&restore->job);
		return -ENOMEM;
	}
	place->restore = restore;
	*ret_restore = restore;
	return 0;
}

static int launch(struct gcr_restore *restore)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int result;

	/*
	 * gcr_restores_stop() either finds the restore in the list, or has set `stopping` before
	 * this check.
	 */
	pthread_mutex_lock(&restores.lock);
	gcr_jobs_add_locked(&restore->job);
	if (atomic_load(&restore->job.daemon->stopping))
		gcr_job_stop(&restore->job, ESHUTDOWN);
	pthread_mutex_unlock(&restores.lock);
	gcr_place_set_state(restore->place, GCR_STATE_RESTORING);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	result = pthread_create(&thread, &attributes, run, restore);
	pthread_attr_destroy(&attributes);
	if (!result)
		return 0;
	gcr_place_set_state(restore->place, restore->from);
	pthread_mutex_lock(&restore->place->lock);
	restore->place->restore = NULL;
	pthread_mutex_unlock(&restore->place->lock);
	gcr_jobs_remove(&restore->job);
	return -result;
}

static bool same_way(const struct gcr_command *left, const struct gcr_command *right)
{
	return left->new_pids == right->new_pids && left->restored == right->restored &&
	       left->unverified == right->unverified && left->trusted == right->trusted &&
	       !strcmp(left->stdio, right->stdio) &&
	       left->gpu_pairs_count == right->gpu_pairs_count &&
	       !memcmp(left->gpu_pairs, right->gpu_pairs, sizeof(left->gpu_pairs));
}

/*
 * Makes @waiter wait for the restore. -EBUSY: the restore is over, or has other options; -ENOMEM.
 * Lock: place.
 */
static int join_locked(struct gcr_restore *restore, const struct gcr_command *command,
		       struct gcr_waiter *waiter)
{
	return same_way(&restore->job.command, command) ? gcr_job_join(&restore->job, waiter, true)
							: -EBUSY;
}

static int start(struct gcr_place *place, const struct gcr_command *command,
		 struct gcr_waiter *waiter, struct gcr_error *error)
{
	struct gcr_restore *restore = NULL;
	bool is_new = false;
	enum gcr_state state;
	bool is_ending;
	int result;

	gcr_place_look_at_end(place);
	pthread_mutex_lock(&place->lock);
	state = place->state;
	is_ending = place->origin.is_ending;
	if (atomic_load(&place->daemon->stopping)) {
		result = -ESHUTDOWN;
	} else if (place->restore) {
		restore = restore_of(gcr_job_ref(&place->restore->job));
		result = join_locked(restore, command, waiter);
	} else if (place->is_empty && !place->process) {
		result = -ESTALE;
	} else if (is_ending || place->process || (!gcr_transition_find(GCR_VERB_THAW, state))) {
		result = -EBUSY;
	} else {
		result = start_locked(place, command, waiter, &restore);
		is_new = !result;
	}
	pthread_mutex_unlock(&place->lock);
	if (!result)
		gcr_job_arm(&restore->job, waiter);
	if (is_new)
		result = launch(restore);
	if (is_new && result < 0) {
		/* Others may have joined meanwhile, also if this writer does not wait. */
		answer_all(restore, -result);
		if (waiter)
			result = 0;
	}
	if (restore)
		gcr_job_unref(&restore->job);
	if (result == -ESHUTDOWN)
		return gcr_error_set(error, EBUSY, "the daemon is stopping");
	if (result == -EBUSY && is_ending)
		return gcr_error_set(error, EBUSY, "the processes of %s have not ended yet",
				     place->name);
	if (result == -EBUSY)
		return gcr_error_set(error, EBUSY, "%s is %s", place->name, gcr_state_name(state));
	return result ? gcr_error_set(error, -result, "%s", strerror(-result)) : 0;
}

static int cancel(struct gcr_place *place, struct gcr_waiter *waiter, struct gcr_error *error)
{
	struct gcr_cancellation *cancellation = NULL;
	struct gcr_restore *restore = NULL;
	enum gcr_state state;
	int result = -EBUSY;

	if (waiter && gcr_cancellation_create(waiter, &cancellation) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_lock(&place->lock);
	state = place->state;
	if (place->restore)
		restore = restore_of(gcr_job_ref(&place->restore->job));
	pthread_mutex_unlock(&place->lock);
	if (restore) {
		result = gcr_job_cancel(&restore->job, cancellation);
		gcr_job_unref(&restore->job);
	}
	if (result == -ENOMEM)
		gcr_cancellation_end(cancellation, ENOMEM);
	else if (result < 0) {
		gcr_cancellation_destroy(cancellation);
		return gcr_error_set(error, -result, "no verb is under way; %s is %s", place->name,
				     gcr_state_name(state));
	}
	if (waiter) {
		gcr_waiter_arm(waiter, &(struct gcr_waited){});
		gcr_cancellation_end(cancellation, 0);
	}
	return 0;
}

/*
 * Carries out one verb written to the place's ctl, of @length bytes. Returns 0 or -errno with a
 * message. *ret_waits: the request will be answered when the verb ends.
 */
static int carry_out_verb(fuse_req_t request, struct gcr_place *place,
			  const struct gcr_command *command, size_t length, bool nonblocking,
			  bool *ret_waits, struct gcr_error *error)
{
	struct gcr_waiter *waiter = NULL;
	enum gcr_state state;
	bool is_running;
	int result;

	if (command->verb == GCR_VERB_DROP) {
		result = gcr_place_drop(place);
		return result ? gcr_error_set(error, -result, "it cannot be dropped: %s",
					      strerror(-result))
			      : 0;
	}
	/* is_running: the descriptor was opened before the restore. */
	pthread_mutex_lock(&place->lock);
	state = place->state;
	is_running = place->process && !place->restore;
	pthread_mutex_unlock(&place->lock);
	if (gcr_verb_is_packing(command->verb))
		return gcr_error_set(
			error, EBUSY, "%s is for processes that are frozen, but %s is %s",
			gcr_verb_name(command->verb), place->name, gcr_state_name(state));
	if (command->verb != GCR_VERB_THAW && command->verb != GCR_VERB_CANCEL)
		return gcr_error_set(error, EBUSY, "%s leads to %s, but %s is %s",
				     gcr_verb_name(command->verb),
				     gcr_state_name(gcr_verb_goal(command->verb)), place->name,
				     gcr_state_name(state));
	if (command->swap)
		return gcr_error_set(error, EINVAL, "swap= is for a process that is frozen");
	if (is_running && command->verb == GCR_VERB_THAW)
		return 0;
	if (command->verb == GCR_VERB_THAW) {
		result = gcr_restore_check_rights(command, error);
		if (result < 0)
			return result;
	}
	if (!nonblocking &&
	    gcr_waiter_create(place->daemon->waiters, request,
			      gcr_quota_owner(place->daemon->quota, command->rights.counted),
			      length, &waiter) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = command->verb == GCR_VERB_CANCEL ? cancel(place, waiter, error)
						  : start(place, command, waiter, error);
	*ret_waits = !result && waiter;
	gcr_waiter_unref(waiter);
	return result;
}

void gcr_restore_write(fuse_req_t request, const struct gcr_parties *parties,
		       struct gcr_place *place, const char *bytes, size_t length, bool nonblocking)
{
	struct gcr_command command;
	struct gcr_error error = {0};
	const char *verb = "-";
	bool waits = false;
	int result;

	result = gcr_command_parse(bytes, length, false, &command, &error);
	if (!result) {
		verb = gcr_verb_name(command.verb);
		command.writer = fuse_req_ctx(request)->pid;
		command.rights = gcr_parties_rights(parties);
		result = gcr_quota_check_timeout(place->daemon->quota, command.rights.counted,
						 command.timeout_usec, &error);
	}
	if (!result) {
		result = carry_out_verb(request, place, &command, length, nonblocking, &waits,
					&error);
	}
	if (result < 0) {
		gcr_counters_refusal(place->daemon->counters, -result);
		gcr_place_report_refusal(place, gcr_parties_rights(parties).uid, verb, &error);
		fuse_reply_err(request, -result);
	} else if (!waits) {
		fuse_reply_write(request, length);
	}
}

void gcr_restores_stop(struct gcr_daemon *daemon)
{
	gcr_jobs_stop(&restores, daemon);
}

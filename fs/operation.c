/* SPDX-License-Identifier: MIT */
/*
 * Starting, joining, stopping and ending verbs. `operations.lock` makes the decisions "which verb
 * is under way for which process" one at a time; operation->lock guards one operation's votes,
 * stop reason and waiters, and is the last that is taken. Waiters are answered and events written
 * with no lock held.
 */
#include "fs/operation.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "fs/dump.h"
#include "fs/engine.h"
#include "fs/exchange.h"
#include "fs/gpus.h"
#include "fs/helper.h"
#include "fs/log.h"
#include "fs/metrics.h"
#include "fs/packing.h"
#include "fs/store.h"
#include "fs/waiter.h"
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

/* The end of several operations that one `cancel` waits for. */
struct cancellation {
	atomic_int pending;
	atomic_int error; /* EBUSY: a verb went through all the same; EIO: it could not be undone */
	struct gcr_waiter *waiter;
};

struct entry {
	struct gcr_waiter *waiter;	   /* of the verb, or NULL */
	struct cancellation *cancellation; /* of a `cancel`, or NULL */
	bool abandoned;
};

struct gcr_operation {
	atomic_int references;
	struct gcr_daemon *daemon;
	struct gcr_command command;
	struct gcr_exchange *exchange; /* NULL: it is none */
	struct gcr_operation *next;    /* guarded by operations.lock */

	pthread_mutex_t lock;
	pthread_cond_t decided; /* committed, or stop is set */
	int stop;		/* positive errno: why it is to roll back */
	bool committed;
	unsigned int votes;
	unsigned int ended;
	unsigned int met;	/* of those that wait in gcr_task_meet() */
	unsigned int meetings;	/* that are over */
	bool meeting_failed;	/* the last one */
	struct gcr_error error; /* the first task's that failed */
	bool detached;		/* wanted whoever waits: opened O_NONBLOCK */
	bool answered;		/* the waiters have had their answer */
	bool astray;		/* some process is neither where it was nor where it was to go */
	int64_t deadline_usec;	/* monotonic */
	struct entry *entries;
	size_t entries_count;

	unsigned int count;
	struct gcr_task tasks[];
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t none_left;
	struct gcr_operation *list;
} operations = {.lock = PTHREAD_MUTEX_INITIALIZER, .none_left = PTHREAD_COND_INITIALIZER};

struct gcr_operation *gcr_operation_ref(struct gcr_operation *operation)
{
	atomic_fetch_add(&operation->references, 1);
	return operation;
}

void gcr_operation_unref(struct gcr_operation *operation)
{
	if (!operation || atomic_fetch_sub(&operation->references, 1) != 1)
		return;
	for (unsigned int i = 0; i < operation->count; i++)
		gcr_process_unref(operation->tasks[i].process);
	gcr_exchange_destroy(operation->exchange);
	pthread_cond_destroy(&operation->decided);
	pthread_mutex_destroy(&operation->lock);
	free(operation->entries);
	free(operation);
}

GCR_DEFINE_CLEANUP(struct gcr_operation *, gcr_operation_unref);

/* Caller holds operation->lock. The first reason stays; after the commit there is none. */
static void stop_locked(struct gcr_operation *operation, int reason)
{
	if (operation->committed || operation->stop)
		return;
	operation->stop = reason;
	pthread_cond_broadcast(&operation->decided);
}

static void stop(struct gcr_operation *operation, int reason)
{
	pthread_mutex_lock(&operation->lock);
	stop_locked(operation, reason);
	pthread_mutex_unlock(&operation->lock);
}

int64_t gcr_operation_limit(const struct gcr_daemon *daemon, int64_t duration_usec)
{
	int64_t most_usec = daemon->max_request_usec;

	if (!most_usec)
		return duration_usec;
	most_usec = most_usec > 2 * DEADLINE_MARGIN_USEC ? most_usec - DEADLINE_MARGIN_USEC
							 : most_usec / 2;
	return !duration_usec || most_usec < duration_usec ? most_usec : duration_usec;
}

static int64_t default_deadline(const struct gcr_operation *operation, uint64_t bytes)
{
	int64_t duration_usec = operation->command.timeout_usec;

	if (!duration_usec)
		duration_usec = DEADLINE_BASE_USEC + (int64_t)(bytes / DEADLINE_BYTES_PER_USEC);
	return operation->tasks[0].started_usec +
	       gcr_operation_limit(operation->daemon, duration_usec);
}

/* Caller holds operation->lock. */
static int add_entry_locked(struct gcr_operation *operation, struct gcr_waiter *waiter,
			    struct cancellation *cancellation)
{
	struct entry *entries =
		reallocarray(operation->entries, operation->entries_count + 1, sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	operation->entries = entries;
	entries[operation->entries_count++] = (struct entry){
		.waiter = waiter ? gcr_waiter_ref(waiter) : NULL, .cancellation = cancellation};
	return 0;
}

static void cancellation_end(struct cancellation *cancellation, int error_number)
{
	if (error_number)
		atomic_store(&cancellation->error, error_number);
	if (atomic_fetch_sub(&cancellation->pending, 1) != 1)
		return;
	gcr_waiter_answer(cancellation->waiter, atomic_load(&cancellation->error));
	gcr_waiter_unref(cancellation->waiter);
	free(cancellation);
}

/* Answer those who wait for the verb itself, and forget them. */
static void answer_waiters(struct gcr_operation *operation, int error_number)
{
	struct gcr_waiter *waiter;

	do {
		waiter = NULL;
		pthread_mutex_lock(&operation->lock);
		for (size_t i = 0; i < operation->entries_count && !waiter; i++)
			waiter = TAKE_PTR(operation->entries[i].waiter);
		pthread_mutex_unlock(&operation->lock);
		if (waiter) {
			gcr_waiter_answer(waiter, error_number);
			gcr_waiter_unref(waiter);
		}
	} while (waiter);
}

static void answer_cancellations(struct gcr_operation *operation, int error_number)
{
	_cleanup_free_ struct entry *entries = NULL;
	size_t count;

	pthread_mutex_lock(&operation->lock);
	entries = TAKE_PTR(operation->entries);
	count = operation->entries_count;
	operation->entries_count = 0;
	pthread_mutex_unlock(&operation->lock);
	for (size_t i = 0; i < count; i++)
		if (entries[i].cancellation)
			cancellation_end(entries[i].cancellation, error_number);
}

/* All tasks have ended. */
static void complete(struct gcr_operation *operation)
{
	struct gcr_operation **link;
	int error_number;
	bool astray;

	pthread_mutex_lock(&operation->lock);
	error_number = operation->error.number;
	astray = operation->astray;
	operation->answered = true;
	pthread_mutex_unlock(&operation->lock);

	answer_waiters(operation, error_number);
	answer_cancellations(operation, astray ? EIO : error_number ? 0 : EBUSY);

	pthread_mutex_lock(&operations.lock);
	for (link = &operations.list; *link != operation; link = &(*link)->next)
		;
	*link = operation->next;
	if (!operations.list)
		pthread_cond_broadcast(&operations.none_left);
	pthread_mutex_unlock(&operations.lock);
	gcr_operation_unref(operation);
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
		stop_locked(operation, error->number ? error->number : -result);
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
	stop_locked(operation, error->number);
	pthread_mutex_unlock(&operation->lock);
}

bool gcr_task_is_first(const struct gcr_task *task)
{
	return task == task->operation->tasks;
}

struct gcr_process *gcr_task_sibling(const struct gcr_task *task, unsigned int index)
{
	return index < task->operation->count ? task->operation->tasks[index].process : NULL;
}

static void finish_task(struct gcr_task *task, int result, enum gcr_state state,
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

	pthread_mutex_lock(&operation->lock);
	if (result < 0 && counts) {
		if (!operation->error.number)
			operation->error = *error;
		if (error->number != ESRCH && !gcr_transition_find(verb, state))
			operation->astray = true;
		stop_locked(operation, error->number);
	}
	last = ++operation->ended == operation->count;
	end_meeting_locked(operation);
	pthread_mutex_unlock(&operation->lock);
	if (last)
		complete(operation);
}

int gcr_task_hold_snapshot(struct gcr_task *task, struct gcr_snapshot *snapshot,
			   struct gcr_error *error)
{
	if (task->held)
		return 0;
	task->held = gcr_snapshot_ref(snapshot);
	return gcr_snapshot_begin_verb(snapshot, error);
}

/* Verbs win over those who write to the snapshot that the process has. */
static int hold_own_snapshot(struct gcr_task *task, struct gcr_error *error)
{
	struct gcr_process *process = task->process;
	struct gcr_snapshot *snapshot;
	int result = 0;

	pthread_mutex_lock(&process->lock);
	snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
	pthread_mutex_unlock(&process->lock);
	if (!snapshot)
		return 0;
	/* A place has the files themselves. */
	if (task->command->verb == GCR_VERB_DUMP)
		result = gcr_packing_undo(task, snapshot, error);
	if (!result)
		result = gcr_task_hold_snapshot(task, snapshot, error);
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

static void *run_task(void *data)
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
	finish_task(task, result, state, &error);
	return NULL;
}

static struct gcr_operation *create(struct gcr_daemon *daemon, const struct gcr_command *command,
				    size_t count)
{
	struct gcr_operation *operation;

	operation = calloc(1, sizeof(*operation) + count * sizeof(struct gcr_task));
	if (!operation)
		return NULL;
	if (command->swap) {
		operation->exchange = gcr_exchange_create(command);
		if (!operation->exchange) {
			free(operation);
			return NULL;
		}
	}
	atomic_init(&operation->references, 1);
	operation->daemon = daemon;
	operation->command = *command;
	pthread_mutex_init(&operation->lock, NULL);
	pthread_cond_init(&operation->decided, NULL);
	return operation;
}

static void add_task(struct gcr_operation *operation, struct gcr_process *process,
		     const struct gcr_command *command)
{
	struct gcr_task *task = &operation->tasks[operation->count];

	task->operation = operation;
	task->process = gcr_process_ref(process);
	task->command = command;
	task->exchange = operation->exchange;
	task->started_usec = gcr_clock_usec();
	atomic_init(&task->phase, "start");
	operation->count++;
}

/*
 * Start the threads of an operation that is in the list and in its processes' `task`. A thread
 * that cannot be made counts as a task that failed; then the others roll back.
 */
static void launch(struct gcr_operation *operation)
{
	/* The last task to end drops the list's reference. */
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *held =
		gcr_operation_ref(operation);

	for (unsigned int i = 0; i < held->count; i++) {
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
		result = pthread_create(&thread, &attributes, run_task, task);
		pthread_attr_destroy(&attributes);
		if (result) {
			struct gcr_error error;

			gcr_error_set(&error, ENOMEM, "cannot start a thread: %s",
				      strerror(result));
			finish_task(task, -ENOMEM,
				    gcr_state_is_transition(task->from) ? GCR_STATE_FAILED
									: task->from,
				    &error);
		}
	}
}

/* What forbids @command for @process now; *ret_nothing: it is there already. Lock: operations.lock.
 */
static int check_locked(struct gcr_process *process, const struct gcr_command *command,
			bool *ret_nothing, struct gcr_error *error)
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
	else if (!gcr_transition_find(verb, process->state))
		result = gcr_error_set(error, EBUSY, "%s leads to %s, but process %d is %s",
				       gcr_verb_name(verb), gcr_state_name(gcr_verb_goal(verb)),
				       (int)process->pid, gcr_state_name(process->state));
	pthread_mutex_unlock(&process->lock);
	return result;
}

/* A task for every process that is not there already. Lock: operations.lock. */
static int add_tasks_locked(struct gcr_operation *operation, struct gcr_process *const *processes,
			    size_t count, struct gcr_error *error)
{
	for (size_t i = 0; i < count; i++) {
		const struct gcr_command *command =
			operation->exchange && i ? gcr_exchange_freeze(operation->exchange)
						 : &operation->command;
		bool nothing;
		int result = check_locked(processes[i], command, &nothing, error);

		if (result < 0)
			return result;
		if (!nothing)
			add_task(operation, processes[i], command);
	}
	/* Half an exchange is none. */
	if (operation->exchange && operation->count == 1)
		return gcr_error_set(error, EBUSY,
				     "an exchange thaws a frozen process and freezes a running "
				     "one, but both are %s",
				     gcr_state_name(gcr_process_state(processes[0])));
	return 0;
}

/* The one operation that carries out @verb for these processes (and others?) now, or NULL. */
static struct gcr_operation *find_to_join_locked(enum gcr_verb verb,
						 struct gcr_process *const *processes, size_t count)
{
	struct gcr_operation *operation = NULL;

	for (size_t i = 0; i < count; i++) {
		struct gcr_operation *its = NULL;

		pthread_mutex_lock(&processes[i]->lock);
		if (processes[i]->task && !processes[i]->task->recovery)
			its = processes[i]->task->operation;
		pthread_mutex_unlock(&processes[i]->lock);
		if (!its || (operation && its != operation))
			return NULL;
		operation = its;
	}
	return operation && operation->command.verb == verb ? operation : NULL;
}

static bool same_way(const struct gcr_command *left, const struct gcr_command *right)
{
	if (left->data != right->data || left->park != right->park || left->leave != right->leave ||
	    left->tcp != right->tcp || left->unverified != right->unverified ||
	    left->root != right->root || left->swap != right->swap ||
	    left->swap_data != right->swap_data || strcmp(left->name, right->name) != 0 ||
	    left->gpu_pairs_count != right->gpu_pairs_count)
		return false;
	for (unsigned int i = 0; i < left->gpu_pairs_count; i++)
		if (left->gpu_pairs[i].from != right->gpu_pairs[i].from ||
		    left->gpu_pairs[i].to != right->gpu_pairs[i].to)
			return false;
	return true;
}

/* Join unless it is being rolled back, takes other things along, or goes to other GPUs. */
static int join_locked(struct gcr_operation *operation, const struct gcr_command *command,
		       struct gcr_waiter *waiter)
{
	int result = -EBUSY;

	pthread_mutex_lock(&operation->lock);
	if (!operation->stop && !operation->answered && same_way(&operation->command, command)) {
		result = 0;
		if (waiter)
			result = add_entry_locked(operation, waiter, NULL);
		else
			operation->detached = true;
	}
	pthread_mutex_unlock(&operation->lock);
	return result;
}

static void abandon(void *object, struct gcr_waiter *waiter)
{
	gcr_operation_abandon(object, waiter);
}

static void ref(void *object)
{
	gcr_operation_ref(object);
}

static void unref(void *object)
{
	gcr_operation_unref(object);
}

static void arm(struct gcr_waiter *waiter, struct gcr_operation *operation)
{
	gcr_waiter_arm(waiter, &(struct gcr_waited){operation, abandon, ref, unref});
}

int gcr_operation_start(struct gcr_daemon *daemon, const struct gcr_command *command,
			struct gcr_process *const *processes, size_t count,
			struct gcr_waiter *waiter, bool *ret_done, struct gcr_error *error)
{
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *operation = NULL;
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *joined = NULL;
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
	joined = find_to_join_locked(command->verb, processes, count);
	if (joined) {
		gcr_operation_ref(joined);
		result = join_locked(joined, command, waiter);
		if (!result) {
			pthread_mutex_unlock(&operations.lock);
			if (waiter)
				arm(waiter, joined);
			return 0;
		}
	}
	result = add_tasks_locked(operation, processes, count, error);
	if (result < 0) {
		pthread_mutex_unlock(&operations.lock);
		return result;
	}
	if (!operation->count) {
		pthread_mutex_unlock(&operations.lock);
		*ret_done = true;
		return 0;
	}
	operation->deadline_usec = default_deadline(operation, 0);
	operation->detached = !waiter;
	if (waiter && add_entry_locked(operation, waiter, NULL) < 0) {
		pthread_mutex_unlock(&operations.lock);
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	for (unsigned int i = 0; i < operation->count; i++) {
		struct gcr_process *process = operation->tasks[i].process;

		pthread_mutex_lock(&process->lock);
		process->task = &operation->tasks[i];
		pthread_mutex_unlock(&process->lock);
	}
	operation->next = operations.list;
	operations.list = gcr_operation_ref(operation);
	pthread_mutex_unlock(&operations.lock);

	if (waiter)
		arm(waiter, operation);
	launch(operation);
	return 0;
}

int gcr_operation_recover(struct gcr_process *process, enum gcr_verb verb)
{
	_cleanup_(gcr_operation_unref_cleanup) struct gcr_operation *operation = NULL;
	struct gcr_command command = {.verb = verb};
	int result = 0;

	operation = create(process->daemon, &command, 1);
	if (!operation)
		return -ENOMEM;
	add_task(operation, process, &operation->command);
	operation->tasks[0].recovery = true;
	operation->detached = true;
	operation->deadline_usec = default_deadline(operation, 0);

	pthread_mutex_lock(&operations.lock);
	pthread_mutex_lock(&process->lock);
	if (process->task)
		result = -EBUSY;
	else
		process->task = &operation->tasks[0];
	pthread_mutex_unlock(&process->lock);
	if (result < 0) {
		pthread_mutex_unlock(&operations.lock);
		return result;
	}
	operation->next = operations.list;
	operations.list = gcr_operation_ref(operation);
	pthread_mutex_unlock(&operations.lock);
	launch(operation);
	return 0;
}

/* The operations under way for these processes, each once, with references. operations.lock held.
 */
static int collect_locked(struct gcr_process *const *processes, size_t count,
			  struct gcr_operation **ret_list)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++) {
		struct gcr_operation *operation = NULL;
		size_t known = 0;

		pthread_mutex_lock(&processes[i]->lock);
		if (processes[i]->task && !processes[i]->task->recovery)
			operation = processes[i]->task->operation;
		pthread_mutex_unlock(&processes[i]->lock);
		while (known < found && ret_list[known] != operation)
			known++;
		if (operation && known == found)
			ret_list[found++] = gcr_operation_ref(operation);
	}
	return (int)found;
}

int gcr_operation_cancel(struct gcr_process *const *processes, size_t count,
			 struct gcr_waiter *waiter, bool *ret_done, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_operation **list = NULL;
	struct cancellation *cancellation = NULL;
	int found;

	*ret_done = false;
	list = calloc(count, sizeof(struct gcr_operation *));
	cancellation = calloc(1, sizeof(*cancellation));
	if (!list || !cancellation) {
		free(cancellation);
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	pthread_mutex_lock(&operations.lock);
	found = collect_locked(processes, count, list);
	if (!found) {
		pthread_mutex_unlock(&operations.lock);
		free(cancellation);
		return gcr_error_set(error, EBUSY, "no verb is under way; process %d is %s",
				     (int)processes[0]->pid,
				     gcr_state_name(gcr_process_shown_state(processes[0])));
	}
	/* One more than there are, so that it cannot end before we are done here. */
	atomic_init(&cancellation->pending, 1);
	atomic_init(&cancellation->error, 0);
	cancellation->waiter = waiter ? gcr_waiter_ref(waiter) : NULL;
	for (int i = 0; i < found; i++) {
		pthread_mutex_lock(&list[i]->lock);
		if (waiter && !add_entry_locked(list[i], NULL, cancellation))
			atomic_fetch_add(&cancellation->pending, 1);
		stop_locked(list[i], ECANCELED);
		pthread_mutex_unlock(&list[i]->lock);
	}
	pthread_mutex_unlock(&operations.lock);
	for (int i = 0; i < found; i++)
		gcr_operation_unref(list[i]);
	if (waiter) {
		gcr_waiter_arm(waiter, &(struct gcr_waited){});
		cancellation_end(cancellation, 0);
	} else {
		free(cancellation);
	}
	return 0;
}

void gcr_operation_abandon(struct gcr_operation *operation, struct gcr_waiter *waiter)
{
	struct gcr_waiter *answer = NULL;
	bool wanted;

	pthread_mutex_lock(&operation->lock);
	wanted = operation->detached;
	for (size_t i = 0; i < operation->entries_count; i++) {
		struct entry *entry = &operation->entries[i];

		if (entry->waiter == waiter)
			entry->abandoned = true;
		if (entry->waiter && !entry->abandoned)
			wanted = true;
	}
	if (!wanted) {
		stop_locked(operation, EINTR);
	} else if (!operation->committed) {
		/* Others want it to go on: this one alone is let go. */
		for (size_t i = 0; i < operation->entries_count && !answer; i++)
			if (operation->entries[i].waiter == waiter)
				answer = TAKE_PTR(operation->entries[i].waiter);
	}
	pthread_mutex_unlock(&operation->lock);
	if (answer) {
		gcr_waiter_answer(answer, EINTR);
		gcr_waiter_unref(answer);
	}
}

void gcr_operation_process_gone(struct gcr_process *process)
{
	struct gcr_operation *operation = NULL;

	pthread_mutex_lock(&operations.lock);
	pthread_mutex_lock(&process->lock);
	if (process->task && !gcr_exchange_freezes(process->task))
		operation = process->task->operation;
	pthread_mutex_unlock(&process->lock);
	/* All or none: what can no longer be done for this one is not done for the others. */
	if (operation)
		stop(operation, ESRCH);
	pthread_mutex_unlock(&operations.lock);
}

void gcr_operations_wait(int64_t timeout_usec)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	struct timespec until = {until_usec / GCR_USEC_PER_SEC,
				 until_usec % GCR_USEC_PER_SEC * 1000};
	int result = 0;

	pthread_mutex_lock(&operations.lock);
	while (operations.list && !result)
		result = pthread_cond_clockwait(&operations.none_left, &operations.lock,
						CLOCK_MONOTONIC, &until);
	pthread_mutex_unlock(&operations.lock);
}

void gcr_operations_stop(struct gcr_daemon *daemon)
{
	pthread_mutex_lock(&operations.lock);
	atomic_store(&daemon->stopping, true);
	for (struct gcr_operation *operation = operations.list; operation;
	     operation = operation->next)
		stop(operation, ESHUTDOWN);
	while (operations.list)
		pthread_cond_wait(&operations.none_left, &operations.lock);
	pthread_mutex_unlock(&operations.lock);
}

int gcr_task_stopped(const struct gcr_task *task)
{
	struct gcr_operation *operation = task->operation;
	int reason;

	if (gcr_process_state(task->process) == GCR_STATE_GONE)
		return ESRCH;
	if (task->is_undoing || task->has_passed)
		return 0;
	pthread_mutex_lock(&operation->lock);
	if (!task->recovery && gcr_clock_usec() >= operation->deadline_usec)
		stop_locked(operation, ETIMEDOUT);
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
	int64_t deadline_usec = default_deadline(operation, bytes * operation->count);

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
	stop_locked(operation, ETIMEDOUT);
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
		answer_waiters(operation, reason == ESHUTDOWN ? ECANCELED : reason);
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
			stop(operation, ESRCH);
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
			stop_locked(operation, ETIMEDOUT);
	reason = operation->committed ? 0 : operation->stop;
	pthread_mutex_unlock(&operation->lock);
	return reason ? -ECANCELED : 0;
}

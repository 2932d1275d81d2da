/* SPDX-License-Identifier: MIT */
/*
 * Starting, joining, stopping and ending `pack` and `unpack`. packings.lock serialises the
 * decisions which packing is under way for which process, and is taken before a process's lock;
 * packing->lock is taken last. Waiters are answered and events written with no lock held.
 */
#include "fs/verb/packing.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "fs/base/cancellation.h"
#include "fs/base/credentials.h"
#include "fs/base/quota.h"
#include "fs/base/waiter.h"
#include "fs/base/waiting.h"
#include "fs/pack/pack_table.h"
#include "fs/process/pin.h"
#include "fs/store/folder.h"
#include "fs/store/pack_work.h"
#include "fs/store/store.h"
#include "fs/verb/task.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Lowest priority; not SCHED_IDLE, with which a verb might wait for a thread that never runs. */
#define NICE 19

/*
 * The deadline of a packing that the daemon starts: allows for a rate far below that of one thread
 * with a tenth of a processor.
 */
#define OWN_BASE_USEC	   (600 * GCR_USEC_PER_SEC)
#define OWN_BYTES_PER_USEC 4

/* How often a worker is asked whether it has released the files, and the pause between. */
#define LOOKS	  100
#define LOOK_MSEC 20

struct target {
	struct gcr_process *process;
	struct gcr_pack_work *work; /* NULL: a verb has begun for the process */
	struct gcr_error error;	    /* the first error; number 0: none */
	bool is_begun;		    /* a thread has begun */
	bool is_ready;		    /* the workers have released its files */
	bool is_done;		    /* no further pieces */
	unsigned int threads;	    /* threads that work on it */
};

struct gcr_packing {
	/* constant after the start */
	atomic_int references;
	struct gcr_daemon *daemon;
	struct gcr_command command;
	struct gcr_quota_charge charge;	      /* for the writer */
	struct gcr_quota_charge store_charge; /* bytes that `unpack` will take, until it has */
	int64_t deadline_usec;		      /* monotonic; 0: none */
	struct gcr_packing *next;	      /* guarded by packings.lock */

	pthread_mutex_t lock; /* guards the following fields */
	pthread_cond_t idle;  /* a thread has left a target */
	int stop;	      /* positive errno: the reason to end */
	bool detached;	      /* wanted even without waiters */
	bool answered;
	unsigned int threads;
	bool has_worked; /* some thread had the memory that it needs */
	struct gcr_waiting waiting;

	size_t count;
	struct target targets[];
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t ended; /* a packing has ended */
	struct gcr_packing *list;
} packings = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* ---- lifetime ---- */

static void packing_unref(struct gcr_packing *packing)
{
	if (!packing || atomic_fetch_sub(&packing->references, 1) != 1)
		return;
	for (size_t i = 0; i < packing->count; i++) {
		gcr_pack_work_destroy(packing->targets[i].work);
		gcr_process_unref(packing->targets[i].process);
	}
	gcr_waiting_finish(&packing->waiting);
	gcr_quota_release(&packing->charge);
	gcr_quota_release(&packing->store_charge);
	pthread_cond_destroy(&packing->idle);
	pthread_mutex_destroy(&packing->lock);
	free(packing);
}

GCR_DEFINE_CLEANUP(struct gcr_packing *, packing_unref);

static struct gcr_packing *packing_ref(struct gcr_packing *packing)
{
	atomic_fetch_add(&packing->references, 1);
	return packing;
}

static int64_t deadline(const struct gcr_daemon *daemon, const struct gcr_command *command)
{
	int64_t duration_usec = gcr_operation_limit(daemon, command->timeout_usec);

	return duration_usec ? gcr_clock_usec() + duration_usec : 0;
}

static struct gcr_packing *packing_new(struct gcr_daemon *daemon, const struct gcr_command *command,
				       size_t count)
{
	struct gcr_packing *packing = calloc(1, sizeof(*packing) + count * sizeof(struct target));

	if (!packing)
		return NULL;
	atomic_init(&packing->references, 1);
	packing->daemon = daemon;
	packing->command = *command;
	packing->deadline_usec = deadline(daemon, command);
	pthread_mutex_init(&packing->lock, NULL);
	pthread_cond_init(&packing->idle, NULL);
	return packing;
}

/* The first reason stays. Lock: packing. */
static void stop_locked(struct gcr_packing *packing, int reason)
{
	if (!packing->stop)
		packing->stop = reason;
}

static int stopped(struct gcr_packing *packing)
{
	GCR_LOCK_SCOPE(&packing->lock);
	if (packing->deadline_usec && gcr_clock_usec() >= packing->deadline_usec)
		stop_locked(packing, ETIMEDOUT);
	return packing->stop;
}

/* ---- the end ---- */

static void explain_stop(int reason, const char *verb, struct gcr_error *error)
{
	switch (reason) {
	case EINTR:
		gcr_error_set(error, EINTR,
			      "%s was interrupted by a signal to the writer; what was done stays",
			      verb);
		break;
	case ETIMEDOUT:
		gcr_error_set(error, ETIMEDOUT, "%s did not end in time; what was done stays",
			      verb);
		break;
	case ENOMEM:
		gcr_error_set(error, ENOMEM, "there is no memory to %s with, or for a thread",
			      verb);
		break;
	case ESHUTDOWN:
		gcr_error_set(error, ECANCELED,
			      "%s has ended: the daemon is stopping; what was done stays", verb);
		break;
	default:
		gcr_error_set(error, ECANCELED, "%s was cancelled; what was done stays", verb);
		break;
	}
}

/* Note for the automatic packing whether there is anything left to pack. Lock: process. */
static void note_end_locked(struct gcr_process *process, enum gcr_verb verb, bool is_whole)
{
	if (verb == GCR_VERB_UNPACK)
		process->was_unpacked = true;
	else if (is_whole) {
		process->was_packed = true;
		process->was_unpacked = false;
	}
}

/*
 * End the work on one process, and report the result in its error file and the events, unless a
 * verb has begun for the process.
 */
static void end_target(struct gcr_packing *packing, struct target *target)
{
	struct gcr_process *process = target->process;
	const char *verb = gcr_verb_name(packing->command.verb);
	unsigned int skipped = 0;
	struct gcr_pack_work *work;
	bool is_whole;
	bool is_ours;

	pthread_mutex_lock(&packing->lock);
	work = TAKE_PTR(target->work);
	if (work)
		skipped = gcr_pack_work_skipped(work);
	if (!target->is_done && !target->error.number)
		explain_stop(packing->stop, verb, &target->error);
	if (!target->error.number && work)
		gcr_pack_work_result(work, &target->error);
	is_whole = !target->error.number && !skipped;
	if (!target->error.number && skipped)
		gcr_error_set(&target->error, EBUSY,
			      "%u of its files are open, mapped or linked by others and stay as "
			      "they are",
			      skipped);
	pthread_mutex_unlock(&packing->lock);
	/* Release the folder (the snapshot's directory) before the end becomes visible. */
	gcr_pack_work_destroy(work);
	if (gcr_process_has_ended(process))
		gcr_error_set(&target->error, ESRCH, "process %d has ended", (int)process->pid);
	pthread_mutex_lock(&process->lock);
	is_ours = process->packing == packing;
	if (is_ours) {
		process->packing = NULL;
		note_end_locked(process, packing->command.verb, is_whole);
	}
	pthread_mutex_unlock(&process->lock);
	if (is_ours)
		gcr_process_report(process, verb, &target->error);
}

static void answer(struct gcr_packing *packing, int error_number)
{
	struct gcr_cancellation *cancellation;
	struct gcr_waiter *waiter;

	do {
		pthread_mutex_lock(&packing->lock);
		packing->answered = true;
		waiter = gcr_waiting_take(&packing->waiting, NULL);
		cancellation = gcr_waiting_take_cancellation(&packing->waiting);
		pthread_mutex_unlock(&packing->lock);
		if (cancellation)
			gcr_cancellation_end(cancellation, 0);
		if (waiter)
			gcr_waiter_answer(waiter, error_number);
		gcr_waiter_unref(waiter);
	} while (waiter || cancellation);
}

/*
 * Runs in the last thread of the packing: ends all targets, answers the writers that wait, and
 * takes the packing off the list.
 */
static void complete(struct gcr_packing *packing)
{
	struct gcr_packing **link;
	int error_number = 0;

	for (size_t i = 0; i < packing->count; i++) {
		end_target(packing, &packing->targets[i]);
		if (!error_number)
			error_number = packing->targets[i].error.number;
	}
	/*
	 * Before the list becomes empty: the daemon may exit then, and could not answer the
	 * waiters.
	 */
	gcr_quota_release(&packing->charge);
	gcr_quota_release(&packing->store_charge);
	answer(packing, error_number);
	pthread_mutex_lock(&packings.lock);
	for (link = &packings.list; *link != packing; link = &(*link)->next)
		;
	*link = packing->next;
	pthread_cond_broadcast(&packings.ended);
	pthread_mutex_unlock(&packings.lock);
	packing_unref(packing);
}

/* ---- the threads ---- */

/* Returns false if the target needs no more work. */
static bool begin_target(struct gcr_packing *packing, struct target *target)
{
	GCR_LOCK_SCOPE(&packing->lock);
	if (target->error.number || target->is_done)
		return false;
	target->threads++;
	return true;
}

static bool has_failed(struct gcr_packing *packing, const struct target *target)
{
	GCR_LOCK_SCOPE(&packing->lock);
	return target->error.number;
}

/* The first thread has the workers release the files; the other threads wait for that. */
static void make_ready(struct gcr_packing *packing, struct target *target)
{
	struct gcr_snapshot *snapshot = gcr_pack_work_snapshot(target->work);
	unsigned int looks = 0;
	bool is_first;

	pthread_mutex_lock(&packing->lock);
	is_first = !target->is_begun;
	target->is_begun = true;
	while (!is_first && !target->is_ready)
		pthread_cond_wait(&packing->idle, &packing->lock);
	pthread_mutex_unlock(&packing->lock);
	if (!is_first)
		return;
	while (packing->command.verb == GCR_VERB_PACK && looks++ < LOOKS && !stopped(packing) &&
	       !has_failed(packing, target) &&
	       gcr_unpin_files(target->process, snapshot) == -EAGAIN)
		poll(NULL, 0, LOOK_MSEC);
	pthread_mutex_lock(&packing->lock);
	target->is_ready = true;
	pthread_cond_broadcast(&packing->idle);
	pthread_mutex_unlock(&packing->lock);
}

/* One thread's work on a target of a packing. */
struct turn {
	struct gcr_packing *packing;
	const struct target *target;
};

static bool is_wanted(void *data)
{
	const struct turn *turn = data;

	return !stopped(turn->packing) && !has_failed(turn->packing, turn->target);
}

/* Work on @target; on return, other threads may still work on pieces of it. */
static void do_target(struct gcr_packing *packing, struct target *target,
		      struct gcr_pack_worker *worker)
{
	struct turn turn = {packing, target};
	const struct gcr_wanted wanted = {is_wanted, &turn};
	struct gcr_error error = {0};
	int result = 1;

	if (!begin_target(packing, target))
		return;
	make_ready(packing, target);
	while (result > 0 && is_wanted(&turn))
		result = gcr_pack_work_step(target->work, worker, &wanted, &error);
	pthread_mutex_lock(&packing->lock);
	/* A piece was left undone: other threads, which find no further piece, do not know that. */
	if (result < 0 && !error.number)
		explain_stop(packing->stop, gcr_verb_name(packing->command.verb), &error);
	if (!result)
		target->is_done = true;
	if (result < 0 && !target->error.number)
		target->error = error;
	target->threads--;
	pthread_cond_broadcast(&packing->idle);
	pthread_mutex_unlock(&packing->lock);
}

/* A thread, or the starter of the threads, is done. The last one completes the packing. */
static void leave(struct gcr_packing *packing)
{
	bool is_last;

	pthread_mutex_lock(&packing->lock);
	is_last = --packing->threads == 0;
	if (is_last && !packing->has_worked)
		stop_locked(packing, ENOMEM);
	pthread_mutex_unlock(&packing->lock);
	if (is_last)
		complete(packing);
}

static void *work(void *data)
{
	_cleanup_(gcr_pack_worker_destroy_cleanup) struct gcr_pack_worker *worker = NULL;
	struct gcr_packing *packing = data;

	pthread_setname_np(pthread_self(), "gpucrfs-pack");
	setpriority(PRIO_PROCESS, 0, NICE); /* of this thread */
	/* Without memory for another worker, the threads that have one do the work. */
	if (packing->command.verb == GCR_VERB_UNPACK || !gcr_pack_worker_create(&worker)) {
		pthread_mutex_lock(&packing->lock);
		packing->has_worked = true;
		pthread_mutex_unlock(&packing->lock);
		for (size_t i = 0; i < packing->count; i++)
			do_target(packing, &packing->targets[i], worker);
	}
	leave(packing);
	return NULL;
}

/* Start the threads; takes over the list's reference. */
static void launch(struct gcr_packing *packing)
{
	unsigned int count = gcr_pack_work_threads();

	/*
	 * One more than the threads, so that the packing does not end before all have been started.
	 */
	packing->threads = 1;
	for (unsigned int i = 0; i < count; i++) {
		pthread_attr_t attributes;
		pthread_t thread;

		pthread_mutex_lock(&packing->lock);
		packing->threads++;
		pthread_mutex_unlock(&packing->lock);
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		if (pthread_create(&thread, &attributes, work, packing))
			leave(packing);
		pthread_attr_destroy(&attributes);
	}
	leave(packing);
}

/* ---- starting ---- */

/*
 * Get the process's snapshot, a reference. Errors, with a message: -EBUSY, -EOPNOTSUPP, -ESRCH.
 * Lock: packings.
 */
static int find_files_locked(struct gcr_process *process, enum gcr_verb verb,
			     struct gcr_snapshot **ret_snapshot, struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&process->lock);
	if (process->state == GCR_STATE_GONE)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	if (process->packing)
		return gcr_error_set(
			error, EBUSY,
			"process %d is being packed or unpacked; wait, or write cancel",
			(int)process->pid);
	if (process->state != GCR_STATE_FROZEN || process->task)
		return gcr_error_set(error, EBUSY, "%s is for what is frozen, but process %d is %s",
				     gcr_verb_name(verb), (int)process->pid,
				     process->state == GCR_STATE_FROZEN
					     ? "being recovered"
					     : gcr_state_name(process->state));
	if (!process->snapshot)
		return gcr_error_set(error, EOPNOTSUPP,
				     "process %d has its VRAM in its own memory (engine %s), where "
				     "nothing can be packed",
				     (int)process->pid, process->engine);
	*ret_snapshot = gcr_snapshot_ref(process->snapshot);
	return 0;
}

static int add_target_locked(struct gcr_packing *packing, struct gcr_process *process,
			     struct gcr_error *error)
{
	struct target *target = &packing->targets[packing->count];
	enum gcr_verb verb = packing->command.verb;
	struct gcr_snapshot *snapshot = NULL;
	int result = find_files_locked(process, verb, &snapshot, error);

	if (result < 0)
		return result;
	result = gcr_pack_work_create(snapshot, verb == GCR_VERB_UNPACK,
				      gcr_credentials_are_contained(process->pid), &target->work,
				      error);
	gcr_snapshot_unref(snapshot);
	if (result < 0)
		return result;
	target->process = gcr_process_ref(process);
	packing->count++;
	return 0;
}

static uint64_t unpacked_bytes(const struct gcr_pack_work *work)
{
	struct gcr_pack_figures figures;

	gcr_folder_pack_figures(gcr_snapshot_folder(gcr_pack_work_snapshot(work)), &figures);
	return figures.packed_bytes - figures.hole_bytes;
}

/* Charge a user other than root for the store room that unpacking takes. Lock: packings. */
static int take_store_locked(struct gcr_packing *packing, struct gcr_error *error)
{
	struct gcr_store *store = packing->daemon->store;
	uid_t uid = packing->command.rights.counted;
	uint64_t bytes = 0;
	int result;

	if (packing->command.verb != GCR_VERB_UNPACK)
		return 0;
	for (size_t i = 0; i < packing->count; i++)
		bytes += unpacked_bytes(packing->targets[i].work);
	result = gcr_store_check_user(store, uid, bytes, error);
	if (!result)
		gcr_quota_count(packing->daemon->quota, GCR_QUOTA_STORE, uid, bytes,
				&packing->store_charge);
	return result;
}

/*
 * The packing that carries out @verb for all these processes (and perhaps others), or NULL. Lock:
 * packings.
 */
static struct gcr_packing *find_to_join_locked(enum gcr_verb verb,
					       struct gcr_process *const *processes, size_t count)
{
	struct gcr_packing *found = NULL;

	for (size_t i = 0; i < count; i++) {
		struct gcr_packing *its;

		pthread_mutex_lock(&processes[i]->lock);
		its = processes[i]->packing;
		pthread_mutex_unlock(&processes[i]->lock);
		if (!its || (found && its != found))
			return NULL;
		found = its;
	}
	return found && found->command.verb == verb ? found : NULL;
}

/*
 * Joins the packing. A writer who could not cancel the packing does not keep it going either.
 * -EBUSY: the packing is ending; -ENOMEM. Lock: packings, so that the packing is still in the list.
 */
static int join_locked(struct gcr_packing *packing, const struct gcr_command *command,
		       struct gcr_waiter *waiter)
{
	bool is_wanting =
		gcr_rights_may_cancel(&command->rights, &packing->command.rights, packing->count);
	int result = 0;

	GCR_LOCK_SCOPE(&packing->lock);
	if (packing->answered || packing->stop)
		return -EBUSY;
	if (waiter)
		result = gcr_waiting_add(&packing->waiting, waiter, is_wanting);
	else
		packing->detached |= is_wanting;
	return result;
}

/* abandon() of struct gcr_waited: the writer of @waiter does not want the packing any more. */
static void abandon(void *object, struct gcr_waiter *waiter)
{
	struct gcr_packing *packing = object;
	struct gcr_waiter *answered = NULL;

	pthread_mutex_lock(&packing->lock);
	if (!gcr_waiting_abandon(&packing->waiting, waiter) && !packing->detached)
		stop_locked(packing, EINTR);
	else
		answered = gcr_waiting_take(&packing->waiting, waiter);
	pthread_mutex_unlock(&packing->lock);
	/* Other writers still want the packing: only this waiter is answered. */
	if (answered)
		gcr_waiter_answer(answered, EINTR);
	gcr_waiter_unref(answered);
}

static void ref(void *object)
{
	packing_ref(object);
}

static void unref(void *object)
{
	packing_unref(object);
}

static void arm(struct gcr_waiter *waiter, struct gcr_packing *packing)
{
	if (waiter)
		gcr_waiter_arm(waiter, &(struct gcr_waited){packing, abandon, ref, unref});
}

/* Make the packing visible in its processes and the list. Lock: packings. */
static void publish_locked(struct gcr_packing *packing)
{
	for (size_t i = 0; i < packing->count; i++) {
		struct gcr_process *process = packing->targets[i].process;

		pthread_mutex_lock(&process->lock);
		process->packing = packing;
		pthread_mutex_unlock(&process->lock);
	}
	packing->next = packings.list;
	packings.list = packing_ref(packing);
}

static int start_locked(struct gcr_packing *packing, struct gcr_process *const *processes,
			size_t count, struct gcr_waiter *waiter, struct gcr_error *error)
{
	int result = 0;

	if (atomic_load(&packing->daemon->stopping))
		return gcr_error_set(error, EBUSY, "the daemon is stopping");
	for (size_t i = 0; i < count && !result; i++)
		result = add_target_locked(packing, processes[i], error);
	packing->detached = !waiter;
	if (!result)
		result = gcr_quota_take(packing->daemon->quota, GCR_QUOTA_VERBS,
					packing->command.rights.counted, packing->count,
					&packing->charge, error);
	if (!result)
		result = take_store_locked(packing, error);
	if (!result && waiter && gcr_waiting_add(&packing->waiting, waiter, true) < 0)
		result = gcr_error_set(error, ENOMEM, "out of memory");
	if (!result)
		publish_locked(packing);
	return result;
}

int gcr_packing_start(struct gcr_daemon *daemon, const struct gcr_command *command,
		      struct gcr_process *const *processes, size_t count, struct gcr_waiter *waiter,
		      struct gcr_error *error)
{
	_cleanup_(packing_unref_cleanup) struct gcr_packing *packing =
		packing_new(daemon, command, count);
	_cleanup_(packing_unref_cleanup) struct gcr_packing *joined = NULL;
	int result;

	if (!packing)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_lock(&packings.lock);
	joined = find_to_join_locked(command->verb, processes, count);
	if (joined && !join_locked(packing_ref(joined), command, waiter)) {
		pthread_mutex_unlock(&packings.lock);
		arm(waiter, joined);
		return 0;
	}
	result = start_locked(packing, processes, count, waiter, error);
	pthread_mutex_unlock(&packings.lock);
	if (result < 0)
		return result;
	arm(waiter, packing);
	launch(packing);
	return 0;
}

int gcr_packing_start_own(struct gcr_daemon *daemon, struct gcr_process *process,
			  struct gcr_error *error)
{
	struct gcr_command command = {.verb = GCR_VERB_PACK};
	uint64_t bytes;

	pthread_mutex_lock(&process->lock);
	bytes = process->snapshot ? gcr_snapshot_bytes(process->snapshot) : 0;
	pthread_mutex_unlock(&process->lock);
	command.timeout_usec = OWN_BASE_USEC + (int64_t)(bytes / OWN_BYTES_PER_USEC);
	return gcr_packing_start(daemon, &command, &process, 1, NULL, error);
}

/* ---- stopping ---- */

/* Is the packing under way for any of these processes? Lock: packings. */
static bool is_for_any_locked(const struct gcr_packing *packing,
			      struct gcr_process *const *processes, size_t count)
{
	bool is = false;

	for (size_t i = 0; i < count && !is; i++) {
		pthread_mutex_lock(&processes[i]->lock);
		is = processes[i]->packing == packing;
		pthread_mutex_unlock(&processes[i]->lock);
	}
	return is;
}

bool gcr_packing_is_under_way(struct gcr_process *process, enum gcr_verb verb)
{
	GCR_LOCK_SCOPE(&process->lock);
	return process->packing && process->packing->command.verb == verb;
}

static void stop(struct gcr_packing *packing, int reason)
{
	GCR_LOCK_SCOPE(&packing->lock);
	stop_locked(packing, reason);
}

size_t gcr_packing_cancel(struct gcr_process *const *processes, size_t count,
			  const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			  bool *ret_denied)
{
	size_t found = 0;
	size_t untold = 0;

	pthread_mutex_lock(&packings.lock);
	for (struct gcr_packing *packing = packings.list; packing; packing = packing->next) {
		if (!is_for_any_locked(packing, processes, count))
			continue;
		if (!gcr_rights_may_cancel(rights, &packing->command.rights, packing->count)) {
			*ret_denied = true;
			continue;
		}
		pthread_mutex_lock(&packing->lock);
		/* The packing has just ended, and would never end the cancellation. */
		if (packing->answered) {
			pthread_mutex_unlock(&packing->lock);
			continue;
		}
		found++;
		if (cancellation) {
			gcr_cancellation_hold(cancellation);
			untold += gcr_waiting_add_cancellation(&packing->waiting, cancellation) < 0;
		}
		stop_locked(packing, ECANCELED);
		pthread_mutex_unlock(&packing->lock);
	}
	pthread_mutex_unlock(&packings.lock);
	for (; untold; untold--)
		gcr_cancellation_end(cancellation, ENOMEM);
	return found;
}

static struct target *find_target(struct gcr_packing *packing, const struct gcr_process *process)
{
	struct target *target = packing->targets;

	while (target->process != process)
		target++;
	return target;
}

/* Stop the work on @target: on return no thread works on it, and none begins again. */
static void end_of_target(struct gcr_packing *packing, struct target *target)
{
	struct gcr_pack_work *work;

	pthread_mutex_lock(&packing->lock);
	if (!target->error.number)
		gcr_error_set(&target->error, ECANCELED,
			      "%s has ended: another verb has begun; what was done stays",
			      gcr_verb_name(packing->command.verb));
	while (target->threads)
		pthread_cond_wait(&packing->idle, &packing->lock);
	work = TAKE_PTR(target->work);
	pthread_mutex_unlock(&packing->lock);
	gcr_pack_work_destroy(work);
}

void gcr_packing_end(struct gcr_process *process)
{
	_cleanup_(packing_unref_cleanup) struct gcr_packing *packing = NULL;

	pthread_mutex_lock(&packings.lock);
	pthread_mutex_lock(&process->lock);
	packing = process->packing ? packing_ref(TAKE_PTR(process->packing)) : NULL;
	pthread_mutex_unlock(&process->lock);
	pthread_mutex_unlock(&packings.lock);
	if (packing)
		end_of_target(packing, find_target(packing, process));
}

void gcr_packings_stop(void)
{
	pthread_mutex_lock(&packings.lock);
	while (packings.list) {
		for (struct gcr_packing *packing = packings.list; packing; packing = packing->next)
			stop(packing, ESHUTDOWN);
		pthread_cond_wait(&packings.ended, &packings.lock);
	}
	pthread_mutex_unlock(&packings.lock);
}

/* SPDX-License-Identifier: MIT */
/*
 * Starting, joining, stopping and ending `pack` and `unpack`. packings.lock serialises the
 * decisions which packing is under way for which process, and is taken before a process's lock;
 * packing->job.lock is taken last. Waiters are answered and events written with no lock held.
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
#include "fs/pack/pack_table.h"
#include "fs/process/pin.h"
#include "fs/store/subtree.h"
#include "fs/store/pack_work.h"
#include "fs/store/store.h"
#include "fs/verb/job.h"
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
	struct gcr_job job;
	struct gcr_quota_charge store_charge; /* bytes that `unpack` will take, until it has */

	/* Guarded by job.lock, whose condition tells that a thread has left a target. */
	unsigned int threads;
	bool has_worked; /* some thread had the memory that it needs */

	struct target targets[]; /* one for each of the job's processes */
};

static struct gcr_job *job_of_process(const struct gcr_process *process)
{
	return process->packing ? &process->packing->job : NULL;
}

static void destroy(struct gcr_job *job)
{
	struct gcr_packing *packing = (struct gcr_packing *)job; /* its first member */

	for (size_t i = 0; i < job->count; i++) {
		gcr_pack_work_destroy(packing->targets[i].work);
		gcr_process_unref(packing->targets[i].process);
	}
	gcr_quota_release(&packing->store_charge);
	free(packing);
}

static struct gcr_jobs packings = GCR_JOBS_INITIALIZER(job_of_process, destroy);

static void packing_unref(struct gcr_packing *packing)
{
	if (packing)
		gcr_job_unref(&packing->job);
}

GCR_DEFINE_CLEANUP(struct gcr_packing *, packing_unref);

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
	gcr_job_init(&packing->job, &packings, daemon, command);
	packing->job.deadline_usec = deadline(daemon, command);
	return packing;
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
	const char *verb = gcr_verb_name(packing->job.command.verb);
	unsigned int skipped = 0;
	struct gcr_pack_work *work;
	bool is_whole;
	bool is_ours;

	pthread_mutex_lock(&packing->job.lock);
	work = TAKE_PTR(target->work);
	if (work)
		skipped = gcr_pack_work_skipped(work);
	if (!target->is_done && !target->error.number)
		explain_stop(packing->job.stop, verb, &target->error);
	if (!target->error.number && work)
		gcr_pack_work_result(work, &target->error);
	is_whole = !target->error.number && !skipped;
	if (!target->error.number && skipped)
		gcr_error_set(&target->error, EBUSY,
			      "%u of its files are open, mapped or linked by others and stay as "
			      "they are",
			      skipped);
	pthread_mutex_unlock(&packing->job.lock);
	/* Release the subtree (the snapshot's directory) before the end becomes visible. */
	gcr_pack_work_destroy(work);
	if (gcr_process_has_ended(process))
		gcr_error_set(&target->error, ESRCH, "process %d has ended", (int)process->pid);
	pthread_mutex_lock(&process->lock);
	is_ours = process->packing == packing;
	if (is_ours) {
		process->packing = NULL;
		note_end_locked(process, packing->job.command.verb, is_whole);
	}
	pthread_mutex_unlock(&process->lock);
	if (is_ours)
		gcr_process_report(process, verb, &target->error);
}

/*
 * Runs in the last thread of the packing: ends all targets, answers the writers that wait, and
 * takes the packing off the list.
 */
static void complete(struct gcr_packing *packing)
{
	int error_number = 0;

	for (size_t i = 0; i < packing->job.count; i++) {
		end_target(packing, &packing->targets[i]);
		if (!error_number)
			error_number = packing->targets[i].error.number;
	}
	/*
	 * Before the list becomes empty: the daemon may exit then, and could not answer the
	 * waiters.
	 */
	gcr_quota_release(&packing->job.charge);
	gcr_quota_release(&packing->store_charge);
	gcr_job_answer(&packing->job, error_number);
	gcr_job_answer_cancellations(&packing->job, 0);
	gcr_jobs_remove(&packing->job);
}

/* ---- the threads ---- */

/* Returns false if the target needs no more work. */
static bool begin_target(struct gcr_packing *packing, struct target *target)
{
	GCR_LOCK_SCOPE(&packing->job.lock);
	if (target->error.number || target->is_done)
		return false;
	target->threads++;
	return true;
}

static bool has_failed(struct gcr_packing *packing, const struct target *target)
{
	GCR_LOCK_SCOPE(&packing->job.lock);
	return target->error.number;
}

/* The first thread has the workers release the files; the other threads wait for that. */
static void make_ready(struct gcr_packing *packing, struct target *target)
{
	struct gcr_snapshot *snapshot = gcr_pack_work_snapshot(target->work);
	unsigned int looks = 0;
	bool is_first;

	pthread_mutex_lock(&packing->job.lock);
	is_first = !target->is_begun;
	target->is_begun = true;
	while (!is_first && !target->is_ready)
		pthread_cond_wait(&packing->job.changed, &packing->job.lock);
	pthread_mutex_unlock(&packing->job.lock);
	if (!is_first)
		return;
	while (packing->job.command.verb == GCR_VERB_PACK && looks++ < LOOKS &&
	       !gcr_job_stopped(&packing->job) && !has_failed(packing, target) &&
	       gcr_unpin_files(target->process, snapshot) == -EAGAIN)
		poll(NULL, 0, LOOK_MSEC);
	pthread_mutex_lock(&packing->job.lock);
	target->is_ready = true;
	pthread_cond_broadcast(&packing->job.changed);
	pthread_mutex_unlock(&packing->job.lock);
}

/* One thread's work on a target of a packing. */
struct turn {
	struct gcr_packing *packing;
	const struct target *target;
};

static bool is_wanted(void *data)
{
	const struct turn *turn = data;

	return !gcr_job_stopped(&turn->packing->job) && !has_failed(turn->packing, turn->target);
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
	pthread_mutex_lock(&packing->job.lock);
	/* A piece was left undone: other threads, which find no further piece, do not know that. */
	if (result < 0 && !error.number)
		explain_stop(packing->job.stop, gcr_verb_name(packing->job.command.verb), &error);
	if (!result)
		target->is_done = true;
	if (result < 0 && !target->error.number)
		target->error = error;
	target->threads--;
	pthread_cond_broadcast(&packing->job.changed);
	pthread_mutex_unlock(&packing->job.lock);
}

/* A thread, or the starter of the threads, is done. The last one completes the packing. */
static void leave(struct gcr_packing *packing)
{
	bool is_last;

	pthread_mutex_lock(&packing->job.lock);
	is_last = --packing->threads == 0;
	if (is_last && !packing->has_worked)
		gcr_job_stop_locked(&packing->job, ENOMEM);
	pthread_mutex_unlock(&packing->job.lock);
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
	if (packing->job.command.verb == GCR_VERB_UNPACK || !gcr_pack_worker_create(&worker)) {
		pthread_mutex_lock(&packing->job.lock);
		packing->has_worked = true;
		pthread_mutex_unlock(&packing->job.lock);
		for (size_t i = 0; i < packing->job.count; i++)
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

		pthread_mutex_lock(&packing->job.lock);
		packing->threads++;
		pthread_mutex_unlock(&packing->job.lock);
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

/*
 * Are the chunks of the process shared with no other process? A user must not learn by her own
 * packing what a process has that she may not look into.
 */
static bool is_packed_alone(pid_t pid)
{
	return gcr_credentials_are_contained(pid) || gcr_proc_has_more_rights(pid);
}

static int add_target_locked(struct gcr_packing *packing, struct gcr_process *process,
			     struct gcr_error *error)
{
	struct target *target = &packing->targets[packing->job.count];
	enum gcr_verb verb = packing->job.command.verb;
	struct gcr_snapshot *snapshot = NULL;
	int result = find_files_locked(process, verb, &snapshot, error);

	if (result < 0)
		return result;
	result = gcr_pack_work_create(snapshot, verb == GCR_VERB_UNPACK,
				      is_packed_alone(process->pid), &target->work, error);
	gcr_snapshot_unref(snapshot);
	if (result < 0)
		return result;
	target->process = gcr_process_ref(process);
	packing->job.count++;
	return 0;
}

static uint64_t unpacked_bytes(const struct gcr_pack_work *work)
{
	struct gcr_pack_figures figures;

	gcr_subtree_pack_figures(gcr_snapshot_subtree(gcr_pack_work_snapshot(work)), &figures);
	return figures.packed_bytes - figures.hole_bytes;
}

/*
 * For `unpack`: charges the user for the store room that unpacking takes. -EDQUOT, with a message;
 * root has no limit. Lock: packings.
 */
static int take_store_locked(struct gcr_packing *packing, struct gcr_error *error)
{
	struct gcr_store *store = packing->job.daemon->store;
	uid_t uid = packing->job.command.rights.counted;
	uint64_t bytes = 0;
	int result;

	if (packing->job.command.verb != GCR_VERB_UNPACK)
		return 0;
	for (size_t i = 0; i < packing->job.count; i++)
		bytes += unpacked_bytes(packing->targets[i].work);
	result = gcr_store_check_user(store, uid, bytes, error);
	if (!result)
		gcr_quota_count(packing->job.daemon->quota, GCR_QUOTA_STORE, uid, bytes,
				&packing->store_charge);
	return result;
}

/*
 * Joins the packing. A writer who could not cancel the packing does not keep it going either.
 * -EBUSY: the packing is ending; -ENOMEM.
 */
static int join(struct gcr_job *job, const struct gcr_command *command, struct gcr_waiter *waiter)
{
	return gcr_job_join(
		job, waiter,
		gcr_rights_may_cancel(&command->rights, &job->command.rights, job->count));
}

/* Make the packing visible in its processes and the list. Lock: packings. */
static void publish_locked(struct gcr_packing *packing)
{
	for (size_t i = 0; i < packing->job.count; i++) {
		struct gcr_process *process = packing->targets[i].process;

		pthread_mutex_lock(&process->lock);
		process->packing = packing;
		pthread_mutex_unlock(&process->lock);
	}
	gcr_jobs_add_locked(&packing->job);
}

static int start_locked(struct gcr_packing *packing, struct gcr_process *const *processes,
			size_t count, struct gcr_waiter *waiter, struct gcr_error *error)
{
	int result = 0;

	if (atomic_load(&packing->job.daemon->stopping))
		return gcr_error_set(error, EBUSY, "the daemon is stopping");
	for (size_t i = 0; i < count && !result; i++)
		result = add_target_locked(packing, processes[i], error);
	if (!result)
		result = gcr_quota_take(packing->job.daemon->quota, GCR_QUOTA_VERBS,
					packing->job.command.rights.counted, packing->job.count,
					&packing->job.charge, error);
	if (!result)
		result = take_store_locked(packing, error);
	if (!result && gcr_job_begin(&packing->job, waiter) < 0)
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
	_cleanup_(gcr_job_unref_cleanup) struct gcr_job *joined = NULL;
	int result;

	if (!packing)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_lock(&packings.lock);
	joined = gcr_jobs_find_locked(&packings, command->verb, processes, count);
	if (joined && !join(gcr_job_ref(joined), command, waiter)) {
		pthread_mutex_unlock(&packings.lock);
		gcr_job_arm(joined, waiter);
		return 0;
	}
	result = start_locked(packing, processes, count, waiter, error);
	pthread_mutex_unlock(&packings.lock);
	if (result < 0)
		return result;
	gcr_job_arm(&packing->job, waiter);
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

bool gcr_packing_is_under_way(struct gcr_process *process, enum gcr_verb verb)
{
	GCR_LOCK_SCOPE(&process->lock);
	return process->packing && process->packing->job.command.verb == verb;
}

size_t gcr_packing_cancel(struct gcr_process *const *processes, size_t count,
			  const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			  bool *ret_denied)
{
	return gcr_jobs_cancel(&packings, processes, count, rights, cancellation, ret_denied);
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

	pthread_mutex_lock(&packing->job.lock);
	if (!target->error.number)
		gcr_error_set(&target->error, ECANCELED,
			      "%s has ended: another verb has begun; what was done stays",
			      gcr_verb_name(packing->job.command.verb));
	while (target->threads)
		pthread_cond_wait(&packing->job.changed, &packing->job.lock);
	work = TAKE_PTR(target->work);
	pthread_mutex_unlock(&packing->job.lock);
	gcr_pack_work_destroy(work);
}

void gcr_packing_end(struct gcr_process *process)
{
	_cleanup_(packing_unref_cleanup) struct gcr_packing *packing = NULL;

	pthread_mutex_lock(&packings.lock);
	pthread_mutex_lock(&process->lock);
	packing = TAKE_PTR(process->packing);
	if (packing)
		gcr_job_ref(&packing->job);
	pthread_mutex_unlock(&process->lock);
	pthread_mutex_unlock(&packings.lock);
	if (packing)
		end_of_target(packing, find_target(packing, process));
}

void gcr_packings_stop(struct gcr_daemon *daemon)
{
	gcr_jobs_stop(&packings, daemon);
}

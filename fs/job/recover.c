/* SPDX-License-Identifier: MIT */
/*
 * Reads the records at the daemon's start. The recovery itself is done by the engine, on a task of
 * its own.
 */
#include "fs/job/recover.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/park.h"
#include "fs/helper/helper.h"
#include "fs/job/operation.h"
#include "fs/job/sampler.h"
#include "fs/process/process.h"
#include "fs/process/vendor.h"
#include "fs/store/record.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* A recovery that cannot be made now is tried again after this time. */
#define RETRY_USEC  (10 * GCR_USEC_PER_SEC)
/* The same for a process that could not be listed, or whose record could not be read. */
#define MISSED_USEC (2 * GCR_USEC_PER_SEC)

struct process_id {
	pid_t pid;
	uint64_t start_ticks;
};

/* The swaps that an earlier daemon was carrying out. */
static struct {
	pthread_mutex_t lock; /* taken before all other locks */
	bool may_be_finished;
	struct interrupted {
		struct interrupted *next;
		struct process_id thawed, frozen;
	} * list;
} interrupted = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * Has some process with a record not been recovered yet? Until then no interrupted swap is
 * finished. See gcr_recover_missed().
 */
static atomic_bool has_missed;

static bool is_same(const struct process_id *left, const struct process_id *right)
{
	return left->pid == right->pid && left->start_ticks == right->start_ticks;
}

/*
 * Note a swap; the records of both processes may name the same one. Without memory, both processes
 * are left as they are found.
 */
static void note_swap(struct process_id thawed, struct process_id frozen)
{
	struct interrupted **link;

	pthread_mutex_lock(&interrupted.lock);
	link = &interrupted.list;
	while (*link && !(is_same(&(*link)->thawed, &thawed) && is_same(&(*link)->frozen, &frozen)))
		link = &(*link)->next;
	if (!*link && (*link = calloc(1, sizeof(**link)))) {
		(*link)->thawed = thawed;
		(*link)->frozen = frozen;
	}
	pthread_mutex_unlock(&interrupted.lock);
}

static void note_swaps(const struct gcr_record *record)
{
	const struct process_id own = {record->pid, record->start_ticks};

	if (record->swap_pid)
		note_swap(own, (struct process_id){record->swap_pid, record->swap_start_ticks});
	if (record->frozen_for_pid)
		note_swap(
			(struct process_id){record->frozen_for_pid, record->frozen_for_start_ticks},
			own);
}

static void restore_fields(struct gcr_process *process, const struct gcr_record *record)
{
	pthread_mutex_lock(&process->lock);
	memcpy(process->generation, record->generation, sizeof(process->generation));
	memcpy(process->engine, record->engine, sizeof(process->engine));
	process->shares_count = record->gpus_count;
	process->held_bytes = 0;
	process->frozen_for_pid = record->frozen_for_pid;
	process->frozen_for_start_ticks = record->frozen_for_start_ticks;
	process->moved = record->moved;
	process->moving = record->moving;
	process->may_have_moved = record->state == GCR_RECORD_THAWING || record->moving.count;
	for (uint32_t i = 0; i < record->gpus_count; i++) {
		memcpy(process->shares[i].uuid, record->gpus[i].uuid, GCR_UUID_BYTES);
		process->shares[i].bytes = record->gpus[i].bytes;
		if (record->state != GCR_RECORD_FREEZING)
			process->held_bytes += record->gpus[i].bytes;
	}
	pthread_mutex_unlock(&process->lock);
}

/* The frozen time of a process that was being frozen starts now; the real time is not known. */
static void set_frozen_time(struct gcr_process *process, const struct gcr_record *record)
{
	pthread_mutex_lock(&process->lock);
	if (record->state != GCR_RECORD_FREEZING && record->since_usec > 0 &&
	    record->since_usec < gcr_clock_real_usec())
		process->frozen_usec = record->since_usec;
	pthread_mutex_unlock(&process->lock);
}

static enum gcr_verb interrupted_verb(const struct gcr_record *record)
{
	return record->state == GCR_RECORD_THAWING ? GCR_VERB_THAW : GCR_VERB_FREEZE;
}

/* Set @process, which @operation has claimed, to the state in its record, and recover it. */
static void recover_claimed(struct gcr_process *process, const struct gcr_record *record,
			    struct gcr_operation *operation)
{
	static const enum gcr_state states[] = {
		[GCR_RECORD_FREEZING] = GCR_STATE_FREEZING,
		[GCR_RECORD_FROZEN] = GCR_STATE_FROZEN,
		[GCR_RECORD_THAWING] = GCR_STATE_THAWING,
		[GCR_RECORD_FAILED] = GCR_STATE_FAILED,
	};

	restore_fields(process, record);
	gcr_process_set_state(process, states[record->state]);
	set_frozen_time(process, record);
	/* Otherwise the library would connect again only when its own time limit is over. */
	gcr_unpark_left(record->pid);
	gcr_log(LOG_NOTICE, record->pid, "was left %s by an earlier daemon",
		gcr_record_state_name(record->state));
	if (record->state == GCR_RECORD_FAILED) {
		struct gcr_error error;

		gcr_operation_drop_recovery(operation);
		gcr_error_set(&error, EIO, "an earlier daemon could not restore it");
		gcr_process_report(process, "recover", &error);
	} else {
		/* Also a frozen process: another tool may have thawed it. */
		gcr_operation_recover(operation);
	}
}

static int recover_one(const struct gcr_record *record, void *data)
{
	struct gcr_daemon *daemon = data;
	struct gcr_vendor *vendor = gcr_vendor_of_engine(daemon, record->engine);
	struct gcr_operation *operation;
	struct gcr_process *process;
	int result;

	result = gcr_processes_add(daemon->processes, record->pid, record->start_ticks, vendor,
				   &process);
	if (result == -ESRCH) {
		gcr_record_remove(daemon->runtime_fd, record->pid, record->start_ticks);
		return 0;
	}
	if (result < 0) {
		gcr_log(LOG_ERR, record->pid, "has a record, but cannot be listed: %s",
			strerror(-result));
		/* ENOENT: of a user whose processes are not this daemon's. */
		if (result != -ENOENT)
			atomic_store(&has_missed, true);
		return 0;
	}
	note_swaps(record);
	result = gcr_operation_claim_recovery(process, interrupted_verb(record), &operation);
	if (!result) {
		recover_claimed(process, record, operation);
	} else if (result != -ESHUTDOWN) {
		struct gcr_error error;

		restore_fields(process, record);
		gcr_process_set_state(process, GCR_STATE_FAILED);
		gcr_error_set(&error, -result, "cannot be recovered now: %s; thaw tries again",
			      strerror(-result));
		gcr_process_report(process, "recover", &error);
	}
	gcr_process_unclaim(process, GCR_CLAIM_RECORD);
	gcr_process_unref(process);
	return 0;
}

/* The process, with a reference; NULL: it has ended, or uses no GPU. */
static struct gcr_process *find(struct gcr_daemon *daemon, const struct process_id *id)
{
	struct gcr_process *process;

	if (gcr_processes_find(daemon->processes, id->pid, &process) < 0)
		return NULL;
	if (process->start_ticks == id->start_ticks && !process->launcher)
		return process;
	gcr_process_unref(process);
	return NULL;
}

/*
 * Does the process run? Once no process is missed, one that is not in the table has no record: if
 * it exists, it runs.
 */
static bool runs(struct gcr_process *process, const struct process_id *id)
{
	_cleanup_close_ int pidfd = -1;

	return process ? gcr_process_state(process) == GCR_STATE_RUNNING
		       : gcr_proc_open(id->pid, id->start_ticks, &pidfd) != -ESRCH;
}

/*
 * Is the process frozen, and was it frozen for this swap? If so, the note of the swap is removed
 * unless the process @is_to_come_back.
 */
static bool was_frozen_for(struct gcr_process *process, const struct process_id *thawed,
			   bool is_to_come_back)
{
	bool is_so;

	pthread_mutex_lock(&process->lock);
	is_so = process->state == GCR_STATE_FROZEN && !process->task &&
		process->frozen_for_pid == thawed->pid &&
		process->frozen_for_start_ticks == thawed->start_ticks;
	if (is_so && !is_to_come_back) {
		process->frozen_for_pid = 0;
		/* While the lock is held, no verb begins, which would write the record too. */
		gcr_record_end_swap(process->daemon->runtime_fd, process->pid,
				    process->start_ticks);
	}
	pthread_mutex_unlock(&process->lock);
	return is_so;
}

static bool is_recovering(struct gcr_process *process)
{
	bool is_so;

	if (!process)
		return false;
	pthread_mutex_lock(&process->lock);
	is_so = process->task && process->task->recovery;
	pthread_mutex_unlock(&process->lock);
	return is_so;
}

/*
 * Reports to the user of @process that a swap with process @other was interrupted. @what ends the
 * message.
 */
static void tell(struct gcr_process *process, const char *verb, pid_t other, const char *what)
{
	struct gcr_error error;

	gcr_error_set(&error, ECANCELED,
		      "an earlier daemon ended in the middle of its exchange with process %d%s",
		      (int)other, what);
	gcr_process_report(process, verb, &error);
}

/*
 * Finishes an interrupted swap. The swap is complete if the process to be thawed runs. If that
 * process is frozen or has ended, the process that was frozen for it is thawed again. Returns false
 * if one of the two is still being recovered, or may be one of the missed processes.
 */
static bool finish_swap(struct gcr_daemon *daemon, const struct interrupted *one)
{
	const struct gcr_command command = {.verb = GCR_VERB_THAW};
	struct gcr_process *thawed = find(daemon, &one->thawed);
	struct gcr_process *frozen = find(daemon, &one->frozen);
	bool is_early = atomic_load(&has_missed) || is_recovering(thawed) || is_recovering(frozen);
	struct gcr_error error = {0};
	bool unused;

	/* The process that was to be thawed is in VRAM: the swap was completed. */
	if (!is_early && runs(thawed, &one->thawed)) {
		if (frozen)
			was_frozen_for(frozen, &one->thawed, false);
	} else if (!is_early) {
		bool is_safe = !thawed || gcr_process_state(thawed) == GCR_STATE_FROZEN;

		if (thawed)
			tell(thawed, "thaw", one->frozen.pid, "; thaw tries again");
		if (frozen && was_frozen_for(frozen, &one->thawed, is_safe)) {
			tell(frozen, "freeze", one->thawed.pid,
			     is_safe ? ": it was frozen for that, and is thawed again"
				     : ": it was frozen for that; thaw brings it back");
			if (is_safe && gcr_operation_start(daemon, &command, &frozen, NULL, 1, NULL,
							   &unused, &error) < 0)
				gcr_process_report(frozen, "thaw", &error);
		}
	}
	gcr_process_unref(thawed);
	gcr_process_unref(frozen);
	return !is_early;
}

static void finish_swaps_locked(struct gcr_daemon *daemon)
{
	struct interrupted **link = &interrupted.list;

	while (*link) {
		struct interrupted *one = *link;

		if (!finish_swap(daemon, one)) {
			link = &one->next;
			continue;
		}
		*link = one->next;
		free(one);
	}
}

void gcr_recover_swaps(struct gcr_daemon *daemon)
{
	pthread_mutex_lock(&interrupted.lock);
	interrupted.may_be_finished = true;
	finish_swaps_locked(daemon);
	pthread_mutex_unlock(&interrupted.lock);
}

void gcr_recover_ended(struct gcr_daemon *daemon)
{
	pthread_mutex_lock(&interrupted.lock);
	if (interrupted.may_be_finished)
		finish_swaps_locked(daemon);
	pthread_mutex_unlock(&interrupted.lock);
}

static int list_one(const struct gcr_record *record, void *data)
{
	struct gcr_daemon *daemon = data;
	struct gcr_process *process;

	if (!gcr_processes_claim(daemon->processes, record->pid, record->start_ticks,
				 gcr_vendor_of_engine(daemon, record->engine), GCR_CLAIM_RECORD,
				 &process))
		gcr_process_unref(process);
	return 0;
}

int gcr_recover_list(struct gcr_daemon *daemon)
{
	int result = gcr_record_prepare(daemon->runtime_fd);

	return result < 0 ? result : gcr_record_each(daemon->runtime_fd, list_one, NULL, daemon);
}

/* May a read that failed with @error succeed later: is it a lack of memory or of descriptors? */
static bool may_pass(int error)
{
	return error == ENOMEM || error == EMFILE || error == ENFILE;
}

static void unreadable(const char *name, int error, void *data)
{
	gcr_log(LOG_ERR, 0, "the record %s cannot be read (%s) and is left where it is", name,
		strerror(error));
	if (may_pass(error))
		atomic_store(&has_missed, true);
}

int gcr_recover(struct gcr_daemon *daemon)
{
	int result = gcr_record_each(daemon->runtime_fd, recover_one, unreadable, daemon);

	atomic_store(&daemon->recovered, true);
	gcr_vendor_keep_spares(daemon);
	if (atomic_load(&has_missed))
		gcr_sampler_wake(daemon->sampler);
	return result;
}

/*
 * Can a recovery of the process begin? 0; -EALREADY: the daemon knows that the process does not
 * run, or recovers it; -EBUSY: a verb or a restore of the process is under way.
 */
static int check_idle(struct gcr_process *process)
{
	GCR_LOCK_SCOPE(&process->lock);
	/* A restore writes the record before it says that the process is frozen. */
	if (process->claims[GCR_CLAIM_VERB] || (process->task && !process->task->recovery))
		return -EBUSY;
	return process->state != GCR_STATE_RUNNING || process->task ? -EALREADY : 0;
}

/*
 * Reads the record of a process whose recovery has been claimed again, and compares it with
 * @before, which was read before that. -EBUSY: a verb or a restore has run since: then the record
 * is not due to an earlier daemon.
 */
static int read_again(struct gcr_process *process, const struct gcr_record *before,
		      struct gcr_record *ret_record)
{
	bool is_restored;
	int result;

	pthread_mutex_lock(&process->lock);
	is_restored = process->state != GCR_STATE_RUNNING || process->claims[GCR_CLAIM_VERB];
	pthread_mutex_unlock(&process->lock);
	if (is_restored)
		return -EBUSY;
	result = gcr_record_read(process->daemon->runtime_fd, process->pid, process->start_ticks,
				 ret_record);
	if (result < 0)
		return result;
	return ret_record->state != before->state || ret_record->since_usec != before->since_usec ||
			       strcmp(ret_record->generation, before->generation) != 0
		       ? -EBUSY
		       : 0;
}

/*
 * Starts the recovery of a process that the daemon takes for running and that has a record. 0, or
 * an error: of check_idle(), gcr_record_read() or gcr_operation_claim_recovery().
 */
static int recover_late(struct gcr_process *process)
{
	struct gcr_daemon *daemon = process->daemon;
	struct gcr_operation *operation;
	struct gcr_record before, record;
	int result = check_idle(process);

	if (!result)
		result = gcr_record_read(daemon->runtime_fd, process->pid, process->start_ticks,
					 &before);
	if (!result)
		result = gcr_operation_claim_recovery(process, interrupted_verb(&before),
						      &operation);
	if (result < 0)
		return result;
	result = read_again(process, &before, &record);
	if (result < 0) {
		gcr_operation_drop_recovery(operation);
		return result;
	}
	note_swaps(&record);
	recover_claimed(process, &record, operation);
	gcr_vendor_keep_spares(daemon);
	return 0;
}

void gcr_recover_late(struct gcr_process *process)
{
	if (atomic_load(&process->daemon->recovered))
		recover_late(process);
}

/* A pass over all records, to recover the missed processes. */
struct pass {
	struct gcr_daemon *daemon;
	bool has_missed; /* again */
};

/*
 * Is the record of an earlier daemon? Otherwise this daemon has written it or has recovered the
 * process.
 */
static bool is_from_before(struct gcr_process *process, const struct gcr_record *record)
{
	GCR_LOCK_SCOPE(&process->lock);
	return strcmp(process->generation, record->generation) != 0;
}

static int recover_missed(const struct gcr_record *record, void *data)
{
	struct pass *pass = data;
	struct gcr_daemon *daemon = pass->daemon;
	struct gcr_process *process;
	int result = gcr_processes_claim(daemon->processes, record->pid, record->start_ticks,
					 gcr_vendor_of_engine(daemon, record->engine),
					 GCR_CLAIM_RECORD, &process);

	if (result == -ESRCH)
		gcr_record_remove(daemon->runtime_fd, record->pid, record->start_ticks);
	else if (result < 0 && result != -ENOENT)
		pass->has_missed = true;
	if (result < 0)
		return 0;
	result = recover_late(process);
	if (may_pass(-result) || (result == -EBUSY && is_from_before(process, record)))
		pass->has_missed = true;
	gcr_process_unclaim(process, GCR_CLAIM_RECORD);
	gcr_process_unref(process);
	return 0;
}

static void still_unreadable(const char *name, int error, void *data)
{
	struct pass *pass = data;

	pass->has_missed |= may_pass(error);
}

/* Releases the claims of list_one() that recover_one() has not: it could not read the record. */
static int unclaim_listed(struct gcr_daemon *daemon)
{
	struct gcr_process **list = NULL;
	size_t count = 0;
	int result = gcr_processes_list(daemon->processes, &list, &count);

	if (result < 0)
		return result;
	for (size_t i = 0; i < count; i++)
		gcr_process_unclaim(list[i], GCR_CLAIM_RECORD);
	gcr_processes_list_free(list, count);
	return 0;
}

bool gcr_recover_missed(struct gcr_daemon *daemon, int64_t *again_usec)
{
	struct pass pass = {.daemon = daemon};

	if (!atomic_load(&has_missed))
		return false;
	if (!atomic_load(&daemon->recovered) || gcr_clock_usec() < *again_usec)
		return true;
	*again_usec = gcr_clock_usec() + MISSED_USEC;
	if (gcr_record_each(daemon->runtime_fd, recover_missed, still_unreadable, &pass) < 0 ||
	    pass.has_missed || unclaim_listed(daemon) < 0)
		return true;
	/* Not before: a recovery that ends meanwhile would finish swaps too early. */
	atomic_store(&has_missed, false);
	gcr_recover_ended(daemon);
	return false;
}

void gcr_recover_returned(struct gcr_process *process)
{
	struct gcr_operation *operation;
	int64_t now_usec = gcr_clock_usec();
	bool is_frozen;

	pthread_mutex_lock(&process->lock);
	is_frozen = process->state == GCR_STATE_FROZEN && !process->task && process->snapshot &&
		    now_usec >= process->recover_again_usec;
	if (is_frozen)
		process->recover_again_usec = now_usec + RETRY_USEC;
	pthread_mutex_unlock(&process->lock);
	if (!is_frozen || !atomic_load(&process->daemon->recovered))
		return;
	/* A verb that begins in between finds the same out. */
	if (!gcr_operation_claim_recovery(process, GCR_VERB_THAW, &operation))
		gcr_operation_recover(operation);
}

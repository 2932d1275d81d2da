/* SPDX-License-Identifier: MIT */
/*
 * State changes of a process, and their events. Guarded by process->lock; pollers of the events are
 * woken with no lock held.
 */
#include "fs/process/process.h"

#include <unistd.h>

#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/base/refusals.h"
#include "fs/process/wanted.h"
#include "lib/clock.h"

void gcr_process_tell(struct gcr_process *process)
{
	gcr_event_log_notify(process->events);
	gcr_event_log_notify(process->daemon->events);
}

/*
 * Changes the state and appends the event, in order; gcr_process_tell() wakes the pollers later.
 * Lock: process.
 */
static void set_state_locked(struct gcr_process *process, enum gcr_state state)
{
	const char *generation = *process->generation ? process->generation : "-";
	enum gcr_state from = process->state;

	if (from == GCR_STATE_GONE || from == state)
		return;
	process->state = state;
	process->state_since_usec = gcr_clock_real_usec();
	if (state == GCR_STATE_RUNNING) {
		process->wanted_usec = 0;
		process->frozen_usec = 0;
		process->was_packed = false;
		process->was_unpacked = false;
		process->pack_again_usec = 0;
		process->pack_wait_usec = 0;
	}
	/* A failed thaw or dump does not restart the time. */
	if (state == GCR_STATE_FROZEN && !process->frozen_usec)
		process->frozen_usec = process->state_since_usec;
	gcr_event_log_put(process->events, "%d %s state %s %s", (int)process->pid, generation,
			  gcr_state_name(from), gcr_state_name(state));
	gcr_event_log_put_of(process->daemon->events, gcr_process_event_owner(process),
			     "%d %s state %s %s", (int)process->pid, generation,
			     gcr_state_name(from), gcr_state_name(state));
}

/*
 * Appends the result to the event logs. All users read the daemon's log, so the message, which may
 * contain paths, goes to the process's own log only. @is_for_all: append to the daemon's log, too.
 * Lock: process.
 */
static void report_locked(struct gcr_process *process, const char *verb,
			  const struct gcr_error *error, bool is_for_all)
{
	const char *generation = *process->generation ? process->generation : "-";
	const char *name = error->number ? gcr_error_name(error->number) : "ok";
	const char *blank = *error->words ? " " : "";

	process->error = *error;
	gcr_event_log_put(process->events, "%d %s verb %s %s%s%s", (int)process->pid, generation,
			  verb, name, blank, error->words);
	if (is_for_all)
		gcr_event_log_put_of(process->daemon->events, gcr_process_event_owner(process),
				     "%d %s verb %s %s", (int)process->pid, generation, verb, name);
}

/* Writes the result to the log; @uid has caused it. */
static void log_report(struct gcr_process *process, uid_t uid, const char *verb,
		       const struct gcr_error *error)
{
	if (error->number)
		gcr_refusals_log(process->daemon->refusals,
				 gcr_quota_owner(process->daemon->quota, uid), process->pid,
				 "%s: %s: %s", verb, gcr_error_name(error->number), error->words);
	else
		gcr_log(LOG_INFO, process->pid, "%s: done", verb);
}

void gcr_process_set_state(struct gcr_process *process, enum gcr_state state)
{
	pthread_mutex_lock(&process->lock);
	set_state_locked(process, state);
	pthread_mutex_unlock(&process->lock);
	gcr_process_tell(process);
}

void gcr_process_end_verb(struct gcr_process *process, enum gcr_verb verb, enum gcr_state state,
			  int64_t duration_usec, const struct gcr_verb_timing *timing,
			  const struct gcr_error *error)
{
	pthread_mutex_lock(&process->lock);
	if (duration_usec && verb == GCR_VERB_FREEZE) {
		process->last_freeze_usec = duration_usec;
		process->last_freeze = *timing;
	} else if (duration_usec && verb == GCR_VERB_THAW) {
		process->last_thaw_usec = duration_usec;
		process->last_thaw = *timing;
	}
	set_state_locked(process, state);
	if (state == GCR_STATE_RUNNING) {
		process->is_restored = false;
		process->moves_count = 0;
		process->moved.count = 0;
		process->may_have_moved = false;
	}
	if (error)
		report_locked(process, gcr_verb_name(verb), error, true);
	/* Before the pollers are woken: a reader of the event may write the next verb at once. */
	process->task = NULL;
	pthread_mutex_unlock(&process->lock);
	gcr_process_tell(process);
	/* A thread may have reached the gate before the process was frozen. */
	gcr_wanted_look(process);
	if (error)
		log_report(process, process->counted, gcr_verb_name(verb), error);
}

enum gcr_state gcr_process_state(struct gcr_process *process)
{
	enum gcr_state state;

	pthread_mutex_lock(&process->lock);
	state = process->state;
	pthread_mutex_unlock(&process->lock);
	return state;
}

void gcr_process_report(struct gcr_process *process, const char *verb,
			const struct gcr_error *error)
{
	pthread_mutex_lock(&process->lock);
	report_locked(process, verb, error, true);
	pthread_mutex_unlock(&process->lock);
	gcr_process_tell(process);
	log_report(process, process->counted, verb, error);
}

void gcr_process_report_refusal(struct gcr_process *process, uid_t uid, const char *verb,
				const struct gcr_error *error)
{
	bool is_for_all = uid == geteuid();

	pthread_mutex_lock(&process->lock);
	report_locked(process, verb, error, is_for_all);
	pthread_mutex_unlock(&process->lock);
	gcr_event_log_notify(process->events);
	if (is_for_all)
		gcr_event_log_notify(process->daemon->events);
	log_report(process, uid, verb, error);
}

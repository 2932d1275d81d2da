/* SPDX-License-Identifier: MIT */
/*
 * The `driver` engine: Lock, Checkpoint, Restore and Unlock through a control helper; the driver
 * keeps the VRAM's contents in the process's own memory.
 *
 * The driver serves the calls for one process one after the other, inside that process: a request
 * for the state while another call runs is answered when that call has ended (measured). So a
 * helper that dies in the middle only has to be replaced: the answer of the new one to GetState
 * says how the call ended. A Restore without enough VRAM must never happen: it cannot be repeated
 * (measured).
 *
 * Points at which the process could be lost, each with a test that fires there: helper killed in
 * Lock, Checkpoint, Restore, Unlock; driver error from each; VRAM taken before a Restore, also that
 * of a roll-back; target killed in each; deadline in each; daemon killed in each.
 */
#include "fs/engine/engine.h"
#include "fs/engine/swap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/driver_session.h"
#include "fs/engine/park.h"
#include "fs/process/library.h"
#include "fs/process/obstacles.h"
#include "fs/process/unseen.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_source.h"

/*
 * Rolls back to running from any state of the driver. Removes the record on success. Errors and
 * *ret_state as of gcr_driver_to_running().
 */
static int back_to_running(struct gcr_driver_session *driver, enum gcr_state *ret_state,
			   struct gcr_error *error)
{
	int result = gcr_driver_to_running(driver, ret_state, error);

	if (!result)
		gcr_driver_remove_record(driver);
	else if (*ret_state == GCR_STATE_FROZEN && result != -ESRCH)
		gcr_error_prefix(error, "it stays frozen, intact");
	return result;
}

/*
 * Rolls back to frozen from any state of the driver, and writes the record FROZEN. If the driver
 * calls the process running, removes the record instead, and *ret_state is running; that is no
 * error either.
 */
static int back_to_frozen(struct gcr_driver_session *driver, enum gcr_state *ret_state,
			  struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int64_t since_usec = gcr_clock_usec();

	gcr_driver_session_set_phase(driver, "rollback");
	driver->rolling_back = true;
	gcr_driver_leave_admission(driver);
	for (;;) {
		struct gcr_result answer = {0};
		int result = gcr_driver_ask_state(driver, &state, error);

		*ret_state = GCR_STATE_FAILED;
		if (!result && state == GCR_CONTROL_CHECKPOINTED) {
			*ret_state = GCR_STATE_FROZEN;
			if (gcr_driver_write_record(driver, GCR_RECORD_FROZEN, error) < 0)
				gcr_log(LOG_WARNING, driver->process->pid, "%s", error->words);
			return 0;
		}
		if (!result && state == GCR_CONTROL_RUNNING) {
			/*
			 * Unpark before the record is removed: without a record no daemon knows
			 * that the library is parked.
			 */
			gcr_unpark(driver->process);
			gcr_driver_remove_record(driver);
			*ret_state = GCR_STATE_RUNNING;
			return 0;
		}
		if (!result)
			result = gcr_driver_call(driver, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
		if (!result && !answer.error)
			continue;
		if (answer.error)
			result = gcr_error_set(error, EIO, "%s", answer.words);
		if (gcr_driver_is_hopeless(driver, result, since_usec))
			return gcr_driver_stuck(state, result, error);
		gcr_driver_session_pause(driver, GCR_DRIVER_RETRY_MSEC);
	}
}

/*
 * Ends a verb that failed with @result: undoes the verb with @back, which sets *ret_state. @error
 * keeps its message; if the roll-back fails too, its message is appended. Returns @result.
 */
static int undo(struct gcr_driver_session *driver, int result,
		int (*back)(struct gcr_driver_session *, enum gcr_state *, struct gcr_error *),
		enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_error back_error = {0};

	if (back(driver, ret_state, &back_error) < 0) {
		char first[GCR_ERROR_WORDS_MAX];

		snprintf(first, sizeof(first), "%s", error->words);
		gcr_error_set(error, -result, "%s%s%s", first, *first ? "; " : "",
			      back_error.words);
		gcr_log(LOG_ERR, driver->process->pid, "roll-back: %s", back_error.words);
	}
	return result;
}

static void set_frozen(struct gcr_driver_session *driver, enum gcr_state *ret_state)
{
	struct gcr_error error;

	/*
	 * If this fails, the record of the intent remains, and leads a next daemon to the same
	 * state.
	 */
	if (gcr_driver_write_record(driver, GCR_RECORD_FROZEN, &error) < 0)
		gcr_log(LOG_WARNING, driver->process->pid, "%s", error.words);
	*ret_state = GCR_STATE_FROZEN;
}

/* Refuses command options that this engine does not support: -EOPNOTSUPP. */
static int check_engine(struct gcr_driver_session *driver, struct gcr_error *error)
{
	const char *reason;

	gcr_engine_choose(driver->process, &reason);
	if (driver->task->command->data)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the driver alone cannot leave the context where it is: %s",
				     reason);
	return 0;
}

/*
 * Checks the facts in the library's page. That also works if the library is not connected: the page
 * is memory that can be read whatever the program's threads do, even if the driver has blocked
 * them. *ret_seen: the process has a library, and no call bypasses it.
 */
static int check_facts(struct gcr_driver_session *driver, bool *ret_seen, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	struct gcr_page_facts facts = {0};
	bool was_handed_over;
	const char *reason;
	int r;

	r = gcr_library_facts(process, &facts);
	if (r == -ENOTCONN)
		r = gcr_library_facts_unconnected(process, &facts);
	if (gcr_proc_is_silent(r))
		return gcr_error_set(error, ETIMEDOUT, "process %d " GCR_PROC_SILENT_WORDS,
				     (int)process->pid);
	if (r < 0 && r != -ENOTCONN)
		return gcr_error_set(error, r == -ESRCH ? ESRCH : EOPNOTSUPP,
				     "its preload library is not connected, and what it has done "
				     "with its memory cannot be seen: %s",
				     strerror(-r));
	*ret_seen = r == 0 && !*facts.incomplete;
	pthread_mutex_lock(&process->lock);
	was_handed_over = process->was_handed_over || facts.flags & GCR_PAGE_IMPORTED;
	pthread_mutex_unlock(&process->lock);
	/*
	 * The driver would checkpoint shared handles and never be able to restore them (measured).
	 */
	if (was_handed_over) {
		gcr_engine_choose(process, &reason);
		return gcr_error_set(error, EOPNOTSUPP,
				     "its memory was handed over before, and now only the vmm "
				     "engine can freeze it, but: %s",
				     reason);
	}
	return gcr_obstacles_check(process, &facts, error);
}

/*
 * Makes the checks whose result can change until the driver has the process locked. *ret_seen as in
 * check_facts().
 */
static int check_sharing(struct gcr_driver_session *driver, bool *ret_seen, struct gcr_error *error)
{
	int result = check_facts(driver, ret_seen, error);

	if (!result && !*ret_seen && !driver->task->command->unseen)
		result = gcr_unseen_check(driver->process, error);
	return result;
}

/*
 * Repeats check_sharing() with the process locked, since the process may have begun to share memory
 * before the lock. @was_seen: *ret_seen of the first check; -EOPNOTSUPP also if the library is no
 * longer seen. A library counts a sharing before it asks the driver for it, so now every sharing is
 * counted.
 */
static int check_locked(struct gcr_driver_session *driver, bool was_seen, struct gcr_error *error)
{
	bool is_seen = false;
	int result = check_sharing(driver, &is_seen, error);

	if (!result && was_seen && !is_seen && !driver->task->command->unseen)
		result = gcr_error_set(error, EOPNOTSUPP,
				       "what it shares can be seen no more: its preload library "
				       "has gone, or something calls the driver past it");
	return result;
}

/* VRAM that a thaw will need, on all GPUs. Lock: process. */
static uint64_t need_of_locked(const struct gcr_process *process)
{
	uint64_t bytes = 0;

	for (unsigned int i = 0; i < process->shares_count; i++)
		bytes += process->shares[i].bytes;
	return bytes;
}

static uint64_t need_of(struct gcr_process *process)
{
	uint64_t bytes;

	pthread_mutex_lock(&process->lock);
	bytes = need_of_locked(process);
	pthread_mutex_unlock(&process->lock);
	return bytes;
}

static int freeze(struct gcr_driver_session *driver, enum gcr_state *ret_state,
		  struct gcr_error *error)
{
	struct gcr_hello hello = {0};
	bool is_seen = false;
	int64_t since_usec;
	int result;

	*ret_state = GCR_STATE_RUNNING;
	gcr_driver_session_set_phase(driver, "preflight");
	result = check_engine(driver, error);
	if (!result)
		result = check_sharing(driver, &is_seen, error);
	if (!result)
		result = gcr_driver_need_helper(driver, error);
	if (result < 0)
		return result;
	gcr_helpers_hello(driver->vendor->helpers, &hello);
	result = gcr_driver_preflight(driver, hello.driver_version, error);
	if (!result)
		result = gcr_driver_take_stock(driver, error);
	if (!result)
		result = gcr_driver_check_host_room(driver, error);
	if (!result)
		result = gcr_driver_check_running(driver, ret_state, error);
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	result = gcr_driver_new_generation(driver, error);
	if (!result)
		result = gcr_driver_write_record(driver, GCR_RECORD_FREEZING, error);
	if (result < 0)
		return result;
	since_usec = gcr_clock_usec();
	result = gcr_driver_lock(driver, error);
	if (!result && gcr_task_stopped(driver->task))
		result = gcr_driver_session_stopped(error);
	if (!result)
		result = check_locked(driver, is_seen, error);
	if (!result)
		result = gcr_driver_checkpoint(driver, error);
	driver->task->timing.control_usec = gcr_clock_usec() - since_usec;
	if (!result)
		result = gcr_driver_measure_freed(driver, error);
	driver->task->timing.bytes = need_of(driver->process);
	if (!result)
		result = gcr_swap_commit(driver->task) < 0 ? gcr_driver_session_stopped(error) : 0;
	if (result < 0)
		return undo(driver, result, back_to_running, ret_state, error);
	set_frozen(driver, ret_state);
	return 0;
}

static int thaw(struct gcr_driver_session *driver, enum gcr_state *ret_state,
		struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int64_t since_usec;
	int result;

	*ret_state = driver->task->from;
	gcr_driver_session_set_phase(driver, "admission");
	result = gcr_driver_check_stopped(driver, error);
	if (!result)
		result = gcr_driver_ask_state(driver, &state, error);
	if (!result)
		gcr_driver_recover_places(driver, state);
	if (!result)
		result = gcr_driver_make_pairs(driver, error);
	if (!result)
		result = gcr_driver_follow_context(driver, state, error);
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	if (state == GCR_CONTROL_CHECKPOINTED) {
		driver->task->timing.bytes = need_of(driver->process);
		gcr_task_set_bytes(driver->task, driver->task->timing.bytes);
		driver->patience_bytes = driver->task->timing.bytes;
		result = gcr_driver_take_admission(driver, error);
		if (result < 0)
			return result == -ECANCELED ? gcr_driver_session_stopped(error) : result;
		if (gcr_task_stopped(driver->task))
			return gcr_driver_session_stopped(error);
		result = gcr_driver_write_record(driver, GCR_RECORD_THAWING, error);
		*ret_state = GCR_STATE_FROZEN;
		since_usec = gcr_clock_usec();
		if (!result)
			result = gcr_driver_restore(driver, ret_state, error);
		driver->task->timing.control_usec = gcr_clock_usec() - since_usec;
		gcr_driver_leave_admission(driver);
		if (*ret_state == GCR_STATE_FAILED)
			return result;
	} else if (state != GCR_CONTROL_LOCKED && state != GCR_CONTROL_RUNNING) {
		*ret_state = GCR_STATE_FAILED;
		return gcr_error_set(error, EIO, "the driver says the process has failed");
	}
	if (!result)
		result = gcr_swap_commit(driver->task) < 0 ? gcr_driver_session_stopped(error) : 0;
	if (!result && state != GCR_CONTROL_RUNNING)
		result = gcr_driver_unlock(driver, error);
	if (result < 0)
		return undo(driver, result, back_to_frozen, ret_state, error);
	gcr_unpark(driver->process);
	gcr_driver_remove_record(driver);
	*ret_state = GCR_STATE_RUNNING;
	return 0;
}

/*
 * The recover() of struct gcr_engine. An earlier daemon died, perhaps in the middle of a verb,
 * whose writer no longer waits. A process that the driver has checkpointed is frozen. A process
 * that the driver has only locked is brought back to running.
 */
static int recover(struct gcr_driver_session *driver, enum gcr_state *ret_state,
		   struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result;

	gcr_driver_session_set_phase(driver, "recovery");
	/* A transitional state must not stay: no verb would apply, but thaw may still help. */
	*ret_state = driver->task->from == GCR_STATE_FROZEN ? GCR_STATE_FROZEN : GCR_STATE_FAILED;
	result = gcr_driver_ask_state(driver, &state, error);
	if (result < 0)
		return result;
	gcr_driver_recover_places(driver, state);
	if (state == GCR_CONTROL_CHECKPOINTED) {
		gcr_driver_assume_need(driver);
		set_frozen(driver, ret_state);
		return 0;
	}
	return back_to_running(driver, ret_state, error);
}

/* Called after every verb: a frozen process holds the VRAM that it used, a running one nothing. */
static void set_held(struct gcr_process *process, enum gcr_state state)
{
	pthread_mutex_lock(&process->lock);
	if (state == GCR_STATE_RUNNING)
		process->shares_count = 0;
	process->held_bytes = need_of_locked(process);
	pthread_mutex_unlock(&process->lock);
}

static int run(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error,
	       int (*verb)(struct gcr_driver_session *, enum gcr_state *, struct gcr_error *))
{
	_cleanup_free_ struct gcr_driver_session *driver = malloc(sizeof(*driver));
	int result;

	*ret_state = gcr_state_is_transition(task->from) ? GCR_STATE_FAILED : task->from;
	if (!driver)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_driver_session_init(driver, task, gcr_engine_driver.name);
	result = verb(driver, ret_state, error);
	if (result < 0)
		result = gcr_driver_explain_end(driver, result, error);
	gcr_driver_let_go(driver, result, ret_state);
	gcr_driver_session_finish(driver);
	set_held(task->process, *ret_state);
	return result;
}

static int driver_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, freeze);
}

static int driver_thaw(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, thaw);
}

static int driver_recover(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, recover);
}

const struct gcr_engine gcr_engine_driver = {
	.name = "driver",
	.freeze = driver_freeze,
	.thaw = driver_thaw,
	.recover = driver_recover,
};

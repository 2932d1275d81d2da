/* SPDX-License-Identifier: MIT */
/*
 * The `driver` engine: Lock, Checkpoint, Restore and Unlock through a control helper; the driver
 * keeps the VRAM's contents in the process's own memory.
 *
 * The driver serves the calls for one target one after the other, inside the target: whoever asks
 * for the state while a call runs gets it when that call has ended (measured). So a helper that
 * dies in the middle costs nothing but a new helper: its answer to GetState says how the call
 * ended. What must never happen is a Restore without enough VRAM: it cannot be repeated (measured).
 *
 * Points at which the process could be lost, each with a test that fires there: helper killed in
 * Lock, Checkpoint, Restore, Unlock; driver error from each; VRAM taken before a Restore, also that
 * of a roll-back; target killed in each; deadline in each; daemon killed in each.
 */
#include "fs/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/drive.h"
#include "fs/log.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* One Lock waits this long at first, then twice as long, so that a cancel soon gets its turn. */
#define LOCK_FIRST_MSEC 500
#define LOCK_MOST_MSEC	8000

/* Pause before a call that failed is tried again on the way back. */
#define RETRY_MSEC    100
/* A way back is tried for so long after its first step failed. */
#define ROLLBACK_USEC (120 * GCR_USEC_PER_SEC)

/*
 * Did a Restore end so that no other can follow? The driver goes on calling the process
 * checkpointed, but answers every later Restore with an error: out of memory, shared handles and
 * legacy IPC all ended so (measured). What the helper refused itself (no driver result), "not in
 * this state" (EBUSY) and "not yours" (EACCES) say that nothing was tried.
 */
static bool is_lost(const struct gcr_drive *drive, const struct gcr_result *answer)
{
	/* With gpu=OLD:NEW it also says that these GPUs cannot take each other's place. */
	if (answer->error == EINVAL && drive->pairs_count)
		return false;
	return answer->driver_result && answer->error != EBUSY && answer->error != EACCES;
}

static int lost(struct gcr_drive *drive, const struct gcr_result *answer, enum gcr_state *ret_state,
		struct gcr_error *error)
{
	struct gcr_error record_error;

	*ret_state = GCR_STATE_FAILED;
	if (gcr_drive_write_record(drive, GCR_RECORD_FAILED, &record_error) < 0)
		gcr_log(LOG_WARNING, drive->process->pid, "%s", record_error.words);
	return gcr_error_set(error, EIO,
			     "the driver could not restore the process and cannot try again (%s); "
			     "all that is left is to end it",
			     answer->words);
}

/*
 * Is a way back to be given up, after a step that ended with @result? It is tried again for as long
 * as there is hope: a process that stays locked is stuck.
 */
static bool is_hopeless(struct gcr_drive *drive, int result, int64_t since_usec)
{
	return result == -ESRCH || result == -ECANCELED || gcr_drive_must_leave(drive) ||
	       gcr_clock_usec() > since_usec + ROLLBACK_USEC;
}

/* The words when a way back was given up. */
static int stuck(enum gcr_control_state state, int result, struct gcr_error *error)
{
	static const char *const names[] = {
		[GCR_CONTROL_UNKNOWN] = "unknown", [GCR_CONTROL_RUNNING] = "running",
		[GCR_CONTROL_LOCKED] = "locked",   [GCR_CONTROL_CHECKPOINTED] = "checkpointed",
		[GCR_CONTROL_FAILED] = "failed",
	};

	if (result == -ESRCH)
		return result;
	gcr_error_prefix(error,
			 "it could not be rolled back; to the driver it is %s; thaw tries again",
			 names[state]);
	return result ? result : -EIO;
}

/* One step towards running from @state; 0 also if the driver said no, with words. */
static int step_to_running(struct gcr_drive *drive, enum gcr_control_state state,
			   enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_result answer = {0};
	int result;

	if (state == GCR_CONTROL_LOCKED)
		result = gcr_drive_call(drive, GCR_MESSAGE_UNLOCK, 0, &answer, error);
	else
		result = gcr_drive_call(drive, GCR_MESSAGE_RESTORE, 0, &answer, error);
	if (result < 0 || !answer.error)
		return result;
	if (state != GCR_CONTROL_LOCKED && is_lost(drive, &answer))
		return lost(drive, &answer, ret_state, error);
	return gcr_error_set(error, EIO, "%s", answer.words);
}

/*
 * Roll back to running from wherever the driver is. It takes as long as it takes; only the end of
 * the process, of the daemon, or a lack of VRAM stops it. On failure *ret_state tells where the
 * process is left, and words why.
 */
static int back_to_running(struct gcr_drive *drive, enum gcr_state *ret_state,
			   struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int64_t since_usec = gcr_clock_usec();

	gcr_drive_set_phase(drive, "rollback");
	drive->rolling_back = true;
	drive->pairs_count = 0;
	for (;;) {
		int result;

		state = GCR_CONTROL_UNKNOWN;
		result = gcr_drive_ask_state(drive, &state, error);
		*ret_state = GCR_STATE_FAILED;
		if (!result && state == GCR_CONTROL_RUNNING) {
			gcr_drive_remove_record(drive);
			*ret_state = GCR_STATE_RUNNING;
			return 0;
		}
		if (!result && state == GCR_CONTROL_CHECKPOINTED) {
			*ret_state = GCR_STATE_FROZEN;
			result = gcr_drive_admit(drive, error);
			if (result == -ENOMEM || result == -ECANCELED) {
				gcr_error_prefix(error, "it could not be rolled back and stays "
							"frozen, intact");
				return result;
			}
		}
		if (!result)
			result = step_to_running(drive, state, ret_state, error);
		if (!result)
			continue;
		if (*ret_state == GCR_STATE_FAILED && state == GCR_CONTROL_CHECKPOINTED)
			return result; /* lost */
		if (is_hopeless(drive, result, since_usec))
			return stuck(state, result, error);
		gcr_drive_pause(drive, RETRY_MSEC);
	}
}

/* Roll back to frozen from wherever the driver is, likewise. */
static int back_to_frozen(struct gcr_drive *drive, enum gcr_state *ret_state,
			  struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int64_t since_usec = gcr_clock_usec();

	gcr_drive_set_phase(drive, "rollback");
	drive->rolling_back = true;
	gcr_drive_leave(drive);
	for (;;) {
		struct gcr_result answer = {0};
		int result = gcr_drive_ask_state(drive, &state, error);

		*ret_state = GCR_STATE_FAILED;
		if (!result && state == GCR_CONTROL_CHECKPOINTED) {
			*ret_state = GCR_STATE_FROZEN;
			if (gcr_drive_write_record(drive, GCR_RECORD_FROZEN, error) < 0)
				gcr_log(LOG_WARNING, drive->process->pid, "%s", error->words);
			return 0;
		}
		if (!result && state == GCR_CONTROL_RUNNING) {
			gcr_drive_remove_record(drive);
			*ret_state = GCR_STATE_RUNNING;
			return 0;
		}
		if (!result)
			result = gcr_drive_call(drive, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
		if (!result && !answer.error)
			continue;
		if (answer.error)
			result = gcr_error_set(error, EIO, "%s", answer.words);
		if (is_hopeless(drive, result, since_usec))
			return stuck(state, result, error);
		gcr_drive_pause(drive, RETRY_MSEC);
	}
}

/*
 * End a verb that failed with @result and words in @error: undo it, keep the first words, add the
 * way back's if that failed too.
 */
static int undo(struct gcr_drive *drive, int result,
		int (*back)(struct gcr_drive *, enum gcr_state *, struct gcr_error *),
		enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_error back_error = {0};

	if (back(drive, ret_state, &back_error) < 0) {
		char first[GCR_ERROR_WORDS_MAX];

		snprintf(first, sizeof(first), "%s", error->words);
		gcr_error_set(error, -result, "%s%s%s", first, *first ? "; " : "",
			      back_error.words);
		gcr_log(LOG_ERR, drive->process->pid, "roll-back: %s", back_error.words);
	}
	return result;
}

/* Words are left empty: who stopped the operation explains it. */
static int stopped(struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	return -ECANCELED;
}

/* Lock in slices until the GPU is idle, the deadline has passed or the operation is to stop. */
static int lock(struct gcr_drive *drive, struct gcr_error *error)
{
	uint32_t slice_msec = LOCK_FIRST_MSEC;

	gcr_drive_set_phase(drive, "lock");
	for (;;) {
		struct gcr_result answer;
		int64_t left_usec;
		int result;

		if (gcr_task_stopped(drive->task))
			return stopped(error);
		left_usec = gcr_task_deadline_usec(drive->task) - gcr_clock_usec();
		if (left_usec < (int64_t)slice_msec * GCR_USEC_PER_MSEC)
			slice_msec = left_usec > 10 * GCR_USEC_PER_MSEC
					     ? (uint32_t)(left_usec / GCR_USEC_PER_MSEC)
					     : 10;
		result = gcr_drive_call(drive, GCR_MESSAGE_LOCK, slice_msec, &answer, error);
		if (result < 0)
			return result == -EPIPE ? -EIO : result;
		if (!answer.error)
			return 0;
		if (answer.error != ETIMEDOUT)
			return gcr_error_set(error, answer.error == EBUSY ? EIO : answer.error,
					     "%s", answer.words);
		if (gcr_task_stopped(drive->task) == ETIMEDOUT)
			return gcr_error_set(
				error, ETIMEDOUT,
				"its GPU work did not come to an end in time: a kernel "
				"that runs on, or a wait on the GPU (timeout=SEC allows "
				"more)");
		if (slice_msec < LOCK_MOST_MSEC)
			slice_msec *= 2;
	}
}

/* Checkpoint; a helper that dies meanwhile is replaced, and the driver asked how it ended. */
static int checkpoint(struct gcr_drive *drive, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_result answer;
	int result;

	gcr_drive_set_phase(drive, "checkpoint");
	result = gcr_drive_call(drive, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
	if (result == -EPIPE) {
		result = gcr_drive_ask_state(drive, &state, error);
		if (!result && state != GCR_CONTROL_CHECKPOINTED)
			result = gcr_error_set(error, EIO,
					       "the control helper died before the "
					       "driver had begun");
		return result;
	}
	if (result < 0)
		return result;
	if (answer.error == EOPNOTSUPP)
		return gcr_error_set(
			error, EOPNOTSUPP,
			"the driver cannot checkpoint this process: it uses managed "
			"memory or something else that the driver does not support (%s)",
			answer.words);
	if (answer.error)
		return gcr_error_set(error, EIO, "%s", answer.words);
	return 0;
}

static void new_generation(struct gcr_process *process)
{
	_cleanup_fclose_ FILE *file = fopen("/proc/sys/kernel/random/uuid", "re");
	char generation[sizeof(process->generation)] = "";

	if (!file || !fgets(generation, sizeof(generation), file))
		return;
	pthread_mutex_lock(&process->lock);
	memcpy(process->generation, generation, sizeof(generation));
	snprintf(process->engine, sizeof(process->engine), "%s", gcr_engine_driver.name);
	pthread_mutex_unlock(&process->lock);
}

/* Where the process is before a freeze: only one that runs can be frozen. */
static int check_before_freeze(struct gcr_drive *drive, enum gcr_state *ret_state,
			       struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result = gcr_drive_ask_state(drive, &state, error);

	if (result < 0)
		return result;
	switch (state) {
	case GCR_CONTROL_RUNNING:
		return 0;
	case GCR_CONTROL_CHECKPOINTED: /* and how much VRAM it needs, nobody can say */
	case GCR_CONTROL_LOCKED:
		return gcr_error_set(error, EBUSY,
				     "another tool has locked or checkpointed the process "
				     "(cuda-checkpoint?); let that tool restore it first");
	default:
		*ret_state = GCR_STATE_FAILED;
		return gcr_error_set(error, EIO, "the driver says the process has failed");
	}
}

static void set_frozen(struct gcr_drive *drive, enum gcr_state *ret_state)
{
	struct gcr_error error;

	/* The record of the intent is there and leads a next daemon to the same end. */
	if (gcr_drive_write_record(drive, GCR_RECORD_FROZEN, &error) < 0)
		gcr_log(LOG_WARNING, drive->process->pid, "%s", error.words);
	*ret_state = GCR_STATE_FROZEN;
}

static int freeze(struct gcr_drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_daemon *daemon = drive->daemon;
	struct gcr_hello hello = {0};
	int result;

	*ret_state = GCR_STATE_RUNNING;
	gcr_drive_set_phase(drive, "preflight");
	result = gcr_drive_need_helper(drive, error);
	if (result < 0)
		return result;
	gcr_helpers_hello(daemon->helpers, &hello);
	result = daemon->backend->preflight(drive->process->pid, daemon->device_directory,
					    hello.driver_version, error);
	if (!result)
		result = gcr_drive_take_stock(drive, error);
	if (!result)
		result = check_before_freeze(drive, ret_state, error);
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	new_generation(drive->process);
	result = gcr_drive_write_record(drive, GCR_RECORD_FREEZING, error);
	if (result < 0)
		return result;
	result = lock(drive, error);
	if (!result && gcr_task_stopped(drive->task))
		result = stopped(error);
	if (!result)
		result = checkpoint(drive, error);
	if (!result)
		result = gcr_drive_measure_freed(drive, error);
	if (!result)
		result = gcr_task_commit(drive->task) < 0 ? stopped(error) : 0;
	if (result < 0)
		return undo(drive, result, back_to_running, ret_state, error);
	set_frozen(drive, ret_state);
	return 0;
}

/* Restore; on success the driver has the process locked, with its VRAM back. */
static int restore(struct gcr_drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_result answer;
	int result;

	gcr_drive_set_phase(drive, "restore");
	result = gcr_drive_call(drive, GCR_MESSAGE_RESTORE, 0, &answer, error);
	/* "Not in this state" (EBUSY): an earlier Restore, whose end nobody heard of, did it. */
	if (result == -EPIPE || (!result && answer.error == EBUSY)) {
		result = gcr_drive_ask_state(drive, &state, error);
		if (!result && state != GCR_CONTROL_LOCKED)
			result = gcr_error_set(error, EIO,
					       "the control helper died before the "
					       "driver had begun");
		return result;
	}
	if (result < 0 || !answer.error)
		return result;
	if (is_lost(drive, &answer))
		return lost(drive, &answer, ret_state, error);
	return gcr_error_set(error, EIO, "%s", answer.words);
}

/* The last step: the program goes on. A helper that dies here is replaced. */
static int unlock(struct gcr_drive *drive, struct gcr_error *error)
{
	gcr_drive_set_phase(drive, "unlock");
	for (int attempt = 0; attempt < 20; attempt++) {
		enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
		struct gcr_result answer = {0};
		int result = gcr_drive_call(drive, GCR_MESSAGE_UNLOCK, 0, &answer, error);

		if (!result && !answer.error)
			return 0;
		if (result < 0 && result != -EPIPE)
			return result;
		if (answer.error)
			gcr_error_set(error, EIO, "%s", answer.words);
		result = gcr_drive_ask_state(drive, &state, error);
		if (result < 0)
			return result;
		if (state == GCR_CONTROL_RUNNING)
			return 0;
		gcr_drive_pause(drive, RETRY_MSEC);
	}
	return -EIO;
}

static int thaw(struct gcr_drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result;

	*ret_state = drive->task->from;
	gcr_drive_set_phase(drive, "admission");
	result = gcr_drive_make_pairs(drive, error);
	if (!result)
		result = gcr_drive_ask_state(drive, &state, error);
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	if (state == GCR_CONTROL_CHECKPOINTED) {
		gcr_task_set_bytes(drive->task, drive->process->held_bytes);
		result = gcr_drive_admit(drive, error);
		if (result < 0)
			return result == -ECANCELED ? stopped(error) : result;
		if (gcr_task_stopped(drive->task))
			return stopped(error);
		result = gcr_drive_write_record(drive, GCR_RECORD_THAWING, error);
		*ret_state = GCR_STATE_FROZEN;
		if (!result)
			result = restore(drive, ret_state, error);
		gcr_drive_leave(drive);
		if (*ret_state == GCR_STATE_FAILED)
			return result;
	} else if (state != GCR_CONTROL_LOCKED && state != GCR_CONTROL_RUNNING) {
		*ret_state = GCR_STATE_FAILED;
		return gcr_error_set(error, EIO, "the driver says the process has failed");
	}
	if (!result)
		result = gcr_task_commit(drive->task) < 0 ? stopped(error) : 0;
	if (!result && state != GCR_CONTROL_RUNNING)
		result = unlock(drive, error);
	if (result < 0)
		return undo(drive, result, back_to_frozen, ret_state, error);
	gcr_drive_remove_record(drive);
	*ret_state = GCR_STATE_RUNNING;
	return 0;
}

/*
 * An earlier daemon died, perhaps in the middle of a verb. Nobody waits for the verb any more:
 * what the driver has checkpointed is frozen, what is merely locked goes on.
 */
static int recover(struct gcr_drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result;

	gcr_drive_set_phase(drive, "recovery");
	/* A verb's state must not stay: then no verb would apply, and thaw may yet help. */
	*ret_state = drive->task->from == GCR_STATE_FROZEN ? GCR_STATE_FROZEN : GCR_STATE_FAILED;
	result = gcr_drive_ask_state(drive, &state, error);
	if (result < 0)
		return result;
	if (state == GCR_CONTROL_CHECKPOINTED) {
		gcr_drive_assume_need(drive);
		set_frozen(drive, ret_state);
		return 0;
	}
	return back_to_running(drive, ret_state, error);
}

/* However the verb ended: a frozen process holds what it used, a running one nothing. */
static void set_held(struct gcr_process *process, enum gcr_state state)
{
	pthread_mutex_lock(&process->lock);
	if (state == GCR_STATE_RUNNING)
		process->shares_count = 0;
	process->held_bytes = 0;
	for (unsigned int i = 0; i < process->shares_count; i++)
		process->held_bytes += process->shares[i].bytes;
	pthread_mutex_unlock(&process->lock);
}

static int run(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error,
	       int (*verb)(struct gcr_drive *, enum gcr_state *, struct gcr_error *))
{
	_cleanup_free_ struct gcr_drive *drive = malloc(sizeof(*drive));
	int result;

	*ret_state = gcr_state_is_transition(task->from) ? GCR_STATE_FAILED : task->from;
	if (!drive)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_drive_init(drive, task);
	result = verb(drive, ret_state, error);
	gcr_drive_finish(drive);
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

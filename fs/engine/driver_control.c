/* SPDX-License-Identifier: MIT */
/*
 * The driver's own steps (Lock, Checkpoint, Restore, Unlock) with the meaning of their failures,
 * and the roll-back to running. A Restore without enough VRAM must never happen: it cannot be
 * repeated (measured).
 */
#include "fs/engine/driver_session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/engine.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/uuid.h"

/*
 * Time limit of the first Lock, and the upper bound of later ones, each of which doubles the limit:
 * so a cancel is soon noticed.
 */
#define LOCK_FIRST_MSEC 500
#define LOCK_MOST_MSEC	8000

/* How long a roll-back is retried after its first step failed. */
#define ROLLBACK_USEC (120 * GCR_USEC_PER_SEC)

/*
 * Did a Restore fail so that no other can follow? The driver still calls the process checkpointed,
 * but answers every later Restore with an error: out of memory, shared handles and legacy IPC all
 * ended so (measured). An error of the helper itself (no driver result), "not in this state"
 * (EBUSY), "not yours" (EACCES) and "not found" (EAGAIN) do not mean that: the driver's state
 * decides.
 */
static bool is_lost(const struct gcr_driver_session *driver, const struct gcr_result *answer)
{
	/* With gpu=OLD:NEW, EINVAL also means that these GPUs cannot replace each other. */
	if (answer->error == EINVAL && driver->asked_moves.count)
		return false;
	return answer->driver_result && answer->error != EBUSY && answer->error != EACCES &&
	       answer->error != EAGAIN;
}

static int lost(struct gcr_driver_session *driver, const struct gcr_result *answer,
		enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_error record_error;

	*ret_state = GCR_STATE_FAILED;
	if (gcr_driver_write_record(driver, GCR_RECORD_FAILED, &record_error) < 0)
		gcr_log(LOG_WARNING, driver->process->pid, "%s", record_error.words);
	return gcr_error_set(error, EIO,
			     "the driver could not restore the process and cannot try again (%s); "
			     "all that is left is to end it",
			     answer->words);
}

bool gcr_driver_is_hopeless(struct gcr_driver_session *driver, int result, int64_t since_usec)
{
	return result == -ESRCH || result == -ECANCELED || gcr_driver_session_must_leave(driver) ||
	       gcr_driver_sees_end(driver) || gcr_clock_usec() > since_usec + ROLLBACK_USEC;
}

int gcr_driver_stuck(enum gcr_control_state state, int result, struct gcr_error *error)
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

/*
 * Takes one step from @state towards running. Returns 0 if the step was taken; -EIO with the
 * driver's message if the driver refused; errors of gcr_driver_call(). If the process can never be
 * restored, *ret_state is failed.
 */
static int step_to_running(struct gcr_driver_session *driver, enum gcr_control_state state,
			   enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_result answer = {0};
	int result;

	if (state == GCR_CONTROL_LOCKED)
		result = gcr_driver_call(driver, GCR_MESSAGE_UNLOCK, 0, &answer, error);
	else
		result = gcr_driver_call(driver, GCR_MESSAGE_RESTORE, 0, &answer, error);
	if (result < 0 || !answer.error)
		return result;
	if (state != GCR_CONTROL_LOCKED && is_lost(driver, &answer))
		return lost(driver, &answer, ret_state, error);
	return gcr_error_set(error, EIO, "%s", answer.words);
}

int gcr_driver_to_running(struct gcr_driver_session *driver, enum gcr_state *ret_state,
			  struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int64_t since_usec = gcr_clock_usec();

	gcr_driver_session_set_phase(driver, "rollback");
	driver->rolling_back = true;
	driver->pairs_count = driver->asked_moves.count = 0;
	for (;;) {
		int result;

		state = GCR_CONTROL_UNKNOWN;
		result = gcr_driver_ask_state(driver, &state, error);
		*ret_state = GCR_STATE_FAILED;
		if (!result && state == GCR_CONTROL_RUNNING) {
			*ret_state = GCR_STATE_RUNNING;
			return 0;
		}
		if (!result && state == GCR_CONTROL_CHECKPOINTED) {
			*ret_state = GCR_STATE_FROZEN;
			result = gcr_driver_take_admission(driver, error);
			if (result == -ENOMEM || result == -ECANCELED) {
				gcr_error_prefix(error,
						 "it could not be rolled back; thaw tries again");
				return result;
			}
		}
		if (!result)
			result = step_to_running(driver, state, ret_state, error);
		if (!result)
			continue;
		if (*ret_state == GCR_STATE_FAILED && state == GCR_CONTROL_CHECKPOINTED)
			return result; /* the process is lost */
		if (gcr_driver_is_hopeless(driver, result, since_usec))
			return gcr_driver_stuck(state, result, error);
		gcr_driver_session_pause(driver, GCR_DRIVER_RETRY_MSEC);
	}
}

int gcr_driver_to_checkpointed(struct gcr_driver_session *driver, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int64_t since_usec = gcr_clock_usec();

	for (;;) {
		struct gcr_result answer = {0};
		int result = gcr_driver_ask_state(driver, &state, error);

		if (!result && state == GCR_CONTROL_CHECKPOINTED)
			return 0;
		if (!result && state == GCR_CONTROL_RUNNING)
			result = gcr_driver_call(driver, GCR_MESSAGE_LOCK, LOCK_MOST_MSEC, &answer,
						 error);
		else if (!result)
			result = gcr_driver_call(driver, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
		if (!result && !answer.error)
			continue;
		if (answer.error)
			result = gcr_error_set(error, EIO, "%s", answer.words);
		/*
		 * Another owner is not waited for. If the process only was not dumpable for a
		 * while, the next thaw brings it back.
		 */
		if (result == -EPERM || gcr_driver_is_hopeless(driver, result, since_usec))
			return gcr_driver_stuck(state, result, error);
		gcr_driver_session_pause(driver, GCR_DRIVER_RETRY_MSEC);
	}
}

int gcr_driver_session_stopped(struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	return -ECANCELED;
}

int gcr_driver_lock(struct gcr_driver_session *driver, struct gcr_error *error)
{
	uint32_t slice_msec = LOCK_FIRST_MSEC;

	if (driver->is_of_another)
		return gcr_driver_of_another(driver, error);
	gcr_driver_session_set_phase(driver, "lock");
	for (;;) {
		struct gcr_result answer;
		int64_t left_usec;
		int result;

		if (gcr_task_stopped(driver->task))
			return gcr_driver_session_stopped(error);
		left_usec = gcr_task_deadline_usec(driver->task) - gcr_clock_usec();
		if (left_usec < (int64_t)slice_msec * GCR_USEC_PER_MSEC)
			slice_msec = left_usec > 10 * GCR_USEC_PER_MSEC
					     ? (uint32_t)(left_usec / GCR_USEC_PER_MSEC)
					     : 10;
		result = gcr_driver_call(driver, GCR_MESSAGE_LOCK, slice_msec, &answer, error);
		if (result < 0)
			return result == -EPIPE ? -EIO : result;
		if (!answer.error)
			return 0;
		if (answer.error != ETIMEDOUT)
			return gcr_error_set(error,
					     answer.error == EBUSY || answer.error == EAGAIN
						     ? EIO
						     : answer.error,
					     "%s", answer.words);
		if (gcr_task_stopped(driver->task) == ETIMEDOUT)
			return gcr_error_set(
				error, ETIMEDOUT,
				"its GPU work did not come to an end in time: a kernel "
				"that runs on, or a wait on the GPU (timeout=SEC allows "
				"more)");
		if (slice_msec < LOCK_MOST_MSEC)
			slice_msec *= 2;
	}
}

int gcr_driver_checkpoint(struct gcr_driver_session *driver, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_result answer;
	bool was_refused;
	int result;

	gcr_driver_session_set_phase(driver, "checkpoint");
	result = gcr_driver_call(driver, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
	if (result == -EPIPE) {
		result = gcr_driver_ask_state(driver, &state, error);
		if (!result && state != GCR_CONTROL_CHECKPOINTED)
			result = gcr_error_set(error, EIO,
					       "the control helper died before the "
					       "driver had begun");
		return result;
	}
	if (result < 0)
		return result;
	pthread_mutex_lock(&process->lock);
	was_refused = process->was_refused;
	process->was_refused = was_refused || answer.error == EOPNOTSUPP;
	pthread_mutex_unlock(&process->lock);
	/* After a refusal the driver says UNKNOWN, also when there is no reason left (measured). */
	if (answer.error && was_refused)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the driver has refused to checkpoint this process before, "
				     "and since then refuses whatever it has (%s)",
				     answer.words);
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

int gcr_driver_new_generation(struct gcr_driver_session *driver, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	char generation[sizeof(process->generation)];
	int result = gcr_uuid_make(generation);

	if (result < 0)
		return gcr_error_set(error, EIO, "the kernel has no random numbers: %s",
				     strerror(-result));
	pthread_mutex_lock(&process->lock);
	memcpy(process->generation, generation, sizeof(generation));
	snprintf(process->engine, sizeof(process->engine), "%s", driver->engine);
	pthread_mutex_unlock(&process->lock);
	return 0;
}

int gcr_driver_check_running(struct gcr_driver_session *driver, enum gcr_state *ret_state,
			     struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result = gcr_driver_ask_state(driver, &state, error);

	if (result < 0)
		return result;
	switch (state) {
	case GCR_CONTROL_RUNNING:
		return 0;
	case GCR_CONTROL_CHECKPOINTED: /* the VRAM that a thaw would need is unknown */
	case GCR_CONTROL_LOCKED:
		return gcr_error_set(error, EBUSY,
				     "another tool has locked or checkpointed the process "
				     "(cuda-checkpoint?); let that tool restore it first");
	default:
		*ret_state = GCR_STATE_FAILED;
		return gcr_error_set(error, EIO, "the driver says the process has failed");
	}
}

int gcr_driver_restore(struct gcr_driver_session *driver, enum gcr_state *ret_state,
		       struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_result answer;
	bool is_ours;
	int result;

	gcr_driver_session_set_phase(driver, "restore");
	result = gcr_driver_call(driver, GCR_MESSAGE_RESTORE, 0, &answer, error);
	/* "Not in this state" (EBUSY): an earlier Restore, whose end was not noticed, succeeded. */
	if (result == -EPIPE || (!result && answer.error == EBUSY)) {
		is_ours = result == -EPIPE;
		result = gcr_driver_ask_state(driver, &state, error);
		if (!result && state != GCR_CONTROL_LOCKED)
			result = gcr_error_set(error, EIO,
					       "the control helper died before the "
					       "driver had begun");
		return result ? result : gcr_driver_note_places(driver, is_ours, error);
	}
	if (!result && !answer.error)
		return gcr_driver_note_places(driver, true, error);
	if (result < 0)
		return result;
	if (is_lost(driver, &answer))
		return lost(driver, &answer, ret_state, error);
	return gcr_error_set(error, EIO, "%s", answer.words);
}

/*
 * After an Unlock, only the gate delays the program's calls. A helper that dies here is replaced.
 */
int gcr_driver_unlock(struct gcr_driver_session *driver, struct gcr_error *error)
{
	gcr_driver_session_set_phase(driver, "unlock");
	for (int attempt = 0; attempt < 20; attempt++) {
		enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
		struct gcr_result answer = {0};
		int result = gcr_driver_call(driver, GCR_MESSAGE_UNLOCK, 0, &answer, error);

		if (!result && !answer.error)
			return 0;
		if (result < 0 && result != -EPIPE)
			return result;
		if (answer.error)
			gcr_error_set(error, EIO, "%s", answer.words);
		result = gcr_driver_ask_state(driver, &state, error);
		if (result < 0)
			return result;
		if (state == GCR_CONTROL_RUNNING)
			return 0;
		gcr_driver_session_pause(driver, GCR_DRIVER_RETRY_MSEC);
	}
	return -EIO;
}

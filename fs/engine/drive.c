/* SPDX-License-Identifier: MIT */
/*
 * The conversation of one task with the driver, through control helpers that may die at any moment.
 */
#include "fs/engine/drive.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/engine.h"
#include "fs/process/gpus.h"
#include "fs/process/link.h"
#include "fs/process/scan.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"

/*
 * How long a daemon that is to stop waits for the driver's answer; the next daemon continues from
 * there.
 */
#define STOPPING_WAIT_USEC (90 * GCR_USEC_PER_SEC)
/* How long a killed process may take to exit, with all its memory to free. */
#define EXIT_WAIT_MSEC	   5000
/*
 * How long to wait for a program that is ending: it may be gone a moment later, or run destructors
 * for long.
 */
#define ENDING_WAIT_MSEC   200
/* How long, and how often, to look for other threads of a process whose main thread has ended. */
#define GOING_WAIT_USEC	   (2 * GCR_USEC_PER_SEC)
#define GOING_LOOK_MSEC	   20
/* CUDA_ERROR_NOT_INITIALIZED: the driver has no state of the process, or no longer has one. */
#define DRIVER_NO_STATE	   3
/* Allowed delay of an answer that is due at the deadline. */
#define LATE_USEC	   (500 * GCR_USEC_PER_MSEC)
/* Number of helpers that are asked for the memory of the GPUs. */
#define QUERY_ATTEMPTS	   2
/* Attempts to get the driver's state if helpers die of the request, and the pause between them. */
#define STATE_ATTEMPTS	   10
#define STATE_RETRY_MSEC   100

void gcr_drive_init(struct gcr_drive *drive, struct gcr_task *task, const char *engine)
{
	*drive = (struct gcr_drive){.task = task,
				    .process = task->process,
				    .daemon = task->process->daemon,
				    .vendor = task->process->vendor,
				    .engine = engine};
}

void gcr_drive_set_phase(struct gcr_drive *drive, const char *phase)
{
	atomic_store(&drive->task->phase, phase);
}

/*
 * Returns true if the process has ended, or when the daemon has been stopping for
 * STOPPING_WAIT_USEC. A cancel does not count.
 */
bool gcr_drive_must_leave(struct gcr_drive *drive)
{
	if (gcr_process_has_ended(drive->process))
		return true;
	if (!atomic_load(&drive->daemon->stopping))
		return false;
	if (!drive->stopping_usec)
		drive->stopping_usec = gcr_clock_usec();
	return gcr_clock_usec() > drive->stopping_usec + STOPPING_WAIT_USEC;
}

void gcr_drive_pause(struct gcr_drive *drive, int msec)
{
	struct pollfd pidfd = {.fd = drive->process->pidfd, .events = POLLIN};

	poll(&pidfd, 1, msec);
}

int gcr_drive_need_helper(struct gcr_drive *drive, struct gcr_error *error)
{
	if (drive->helper)
		return 0;
	return gcr_helpers_take_control(drive->vendor->helpers, GCR_DRIVE_HELPER_WAIT_USEC, -1,
					&drive->helper, error);
}

/* Does the machine have GPUs of other vendors? */
static bool has_others(const struct gcr_drive *drive)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (i != drive->vendor->index && drive->daemon->vendors[i].is_here)
			return true;
	return false;
}

int gcr_drive_preflight(struct gcr_drive *drive, const char *driver_version,
			struct gcr_error *error)
{
	struct gcr_process *process = drive->process;
	struct gcr_scan_holder holder = {0};

	/* Work on the other vendor's GPU would continue, and its memory would stay. */
	if (atomic_load(&process->has_other_vendor) ||
	    (has_others(drive) && gcr_scan_probe(drive->daemon->scan, process->pid, &holder) == 1 &&
	     holder.devices & ~(1u << drive->vendor->index)))
		return gcr_error_set(error, EOPNOTSUPP,
				     "process %d uses GPUs of two vendors, and can be frozen on "
				     "neither",
				     (int)process->pid);
	return drive->vendor->backend->preflight(process->pid, drive->daemon->device_directory,
						 driver_version, error);
}

bool gcr_drive_takes_control(const struct gcr_drive *drive)
{
	return drive->vendor->backend->has_control && !drive->task->command->data;
}

static void drop_helper(struct gcr_drive *drive)
{
	if (!drive->helper)
		return;
	gcr_helper_kill(drive->helper);
	gcr_helper_put(TAKE_PTR(drive->helper));
}

/*
 * Is an error due to the end of the process, which the driver reports as other errors? The driver
 * stops answering as soon as that end has begun, so this function waits (EXIT_WAIT_MSEC at most)
 * until the process has ended.
 */
static bool is_dying(struct gcr_drive *drive, const struct gcr_result *answer)
{
	if (!answer->error)
		return false;
	if (gcr_proc_is_ending(drive->process->pid) > 0)
		gcr_drive_pause(drive, EXIT_WAIT_MSEC);
	return gcr_process_has_ended(drive->process);
}

/*
 * Has the process replaced its program by execve(2)? Each process that was frozen here with a
 * snapshot had the library's page in its memory, and has it in no other program. A page that cannot
 * be looked for may be there: the maps of a process whose main thread has ended are empty, for
 * example.
 */
static bool has_other_program(struct gcr_process *process)
{
	struct gcr_proc_status status;
	struct gcr_page_facts unused;
	bool had_page;

	pthread_mutex_lock(&process->lock);
	had_page = process->snapshot && !process->link && !process->is_restored;
	pthread_mutex_unlock(&process->lock);
	return had_page && gcr_link_facts_unconnected(process, &unused) == -ENOTCONN &&
	       !gcr_proc_status(process->pid, &status) && status.has_memory;
}

/*
 * Has the driver lost its state of a process that still exists? Then the process has deinitialised,
 * or has another program.
 */
static bool has_lost_state(struct gcr_drive *drive, const struct gcr_result *answer)
{
	struct gcr_process *process = drive->process;
	bool had_state;

	if (!answer->error) {
		drive->had_state = true;
		return false;
	}
	if (answer->driver_result != DRIVER_NO_STATE)
		return false;
	drive->lacks_state = true;
	pthread_mutex_lock(&process->lock);
	/* For a frozen process this error alone is no reason to give its bytes up. */
	had_state = drive->had_state ||
		    (drive->task->from == GCR_STATE_RUNNING && *process->generation);
	pthread_mutex_unlock(&process->lock);
	if (!had_state)
		drive->is_replaced = has_other_program(process);
	drive->is_ending |= had_state || drive->is_replaced;
	return had_state || drive->is_replaced;
}

bool gcr_drive_is_ending(struct gcr_drive *drive)
{
	drive->is_ending |= gcr_link_is_ending(drive->process);
	return drive->is_ending;
}

static int say_ending(struct gcr_drive *drive, struct gcr_error *error)
{
	if (drive->is_replaced)
		return gcr_error_set(error, ESRCH,
				     "process %d has replaced its program by execve(2): what was "
				     "frozen of it is of no use any more, and has been removed",
				     (int)drive->process->pid);
	return gcr_error_set(error, ESRCH, "process %d is ending", (int)drive->process->pid);
}

/*
 * Is the process exiting? If only its main thread has ended, the others may keep running. In an
 * exit the others end too, but appear to run after the main thread's end until they have had a
 * processor, which takes long on a busy machine.
 */
static bool is_going(struct gcr_drive *drive)
{
	int64_t until_usec = gcr_clock_usec() + GOING_WAIT_USEC;
	struct gcr_process *process = drive->process;
	struct gcr_proc_stat stat;

	while (!gcr_process_is_going(process)) {
		if (gcr_proc_stat(process->pid, &stat) < 0 || !stat.is_exiting ||
		    gcr_clock_usec() >= until_usec)
			return false;
		gcr_drive_pause(drive, GOING_LOOK_MSEC);
	}
	return true;
}

int gcr_drive_explain_end(struct gcr_drive *drive, int result, struct gcr_error *error)
{
	struct gcr_process *process = drive->process;
	bool is_ending = gcr_drive_is_ending(drive) && result != -ECANCELED;

	if (is_ending)
		gcr_drive_pause(drive, ENDING_WAIT_MSEC);
	/* An exiting process may have lost its library or its driver before the rest. */
	else if ((result == -EIO || result == -EOPNOTSUPP) && is_going(drive))
		gcr_drive_pause(drive, EXIT_WAIT_MSEC);
	/* The process never had a driver state, or is past its driver's exit but not its own. */
	else if (result == -EOPNOTSUPP && drive->lacks_state)
		gcr_drive_pause(drive, ENDING_WAIT_MSEC);
	else
		return result;
	if (!is_ending && drive->lacks_state && !gcr_process_is_going(process))
		return result;
	if (is_ending && !gcr_process_has_ended(process))
		return say_ending(drive, error);
	return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
}

bool gcr_drive_let_go(struct gcr_drive *drive, int result, enum gcr_state *ret_state)
{
	if (result != -ESRCH || !gcr_drive_is_ending(drive))
		return false;
	gcr_drive_remove_record(drive);
	*ret_state = GCR_STATE_RUNNING;
	return true;
}

void gcr_drive_check_deadline(struct gcr_drive *drive)
{
	struct gcr_proc_stat stat;

	if (gcr_clock_usec() < gcr_task_deadline_usec(drive->task))
		return;
	gcr_task_deadline_passed(drive->task);
	/*
	 * A helper that has been stopped by a signal does not answer: kill it; another helper is
	 * asked then how the call ended.
	 */
	if (drive->helper && !gcr_proc_stat(gcr_helper_pid(drive->helper), &stat) &&
	    (stat.state == 'T' || stat.state == 't'))
		gcr_helper_kill(drive->helper);
}

void gcr_drive_check_answer(struct gcr_drive *drive)
{
	if (gcr_clock_usec() >= gcr_task_deadline_usec(drive->task) + LATE_USEC)
		gcr_drive_check_deadline(drive);
}

int gcr_drive_call(struct gcr_drive *drive, uint16_t type, uint32_t timeout_ms,
		   struct gcr_result *ret, struct gcr_error *error)
{
	struct gcr_control_request request = {.pid = drive->process->pid, .timeout_ms = timeout_ms};
	int result;

	if (type == GCR_MESSAGE_RESTORE) {
		request.pairs_count = drive->asked_moves.count;
		memcpy(request.pairs, drive->asked_moves.pairs, sizeof(request.pairs));
	}
	result = gcr_drive_need_helper(drive, error);
	if (result < 0)
		return result;
	result = gcr_helper_request(drive->helper, type, &request, sizeof(request), error);
	gcr_drive_begin_wait(drive);
	while (!result) {
		/*
		 * Also wait for the pidfd: if the process ends in the middle, the call may never
		 * return.
		 */
		result = gcr_helper_result(drive->helper, 250 * GCR_USEC_PER_MSEC,
					   drive->process->pidfd, ret);
		if (!result && is_dying(drive, ret))
			result = -ESRCH;
		if (!result) {
			gcr_drive_end_wait(drive);
			return has_lost_state(drive, ret) ? say_ending(drive, error) : 0;
		}
		if (gcr_drive_must_leave(drive))
			result = gcr_process_has_ended(drive->process) ? -ESRCH : -ECANCELED;
		else if (result == -EINTR)
			result = -ESRCH;
		else if (result == -ETIMEDOUT)
			result = 0;
		/*
		 * A call that waits for GPU work ends by itself at the deadline, with a better
		 * message.
		 */
		if (!result && type == GCR_MESSAGE_LOCK)
			gcr_drive_check_answer(drive);
		else if (!result)
			gcr_drive_check_deadline(drive);
		if (!result)
			gcr_drive_check_stall(drive);
	}
	gcr_drive_end_wait(drive);
	drop_helper(drive);
	if (result == -ESRCH)
		gcr_error_set(error, ESRCH, "process %d has ended", (int)drive->process->pid);
	else if (result == -ECANCELED)
		gcr_error_set(error, EIO, "the daemon stopped before the driver had answered");
	else
		gcr_error_set(error, EIO, "the control helper died in the middle of the call");
	return result;
}

int gcr_drive_ask_state(struct gcr_drive *drive, enum gcr_control_state *ret_state,
			struct gcr_error *error)
{
	struct gcr_result answer;
	int result = -EPIPE;

	if (!drive->vendor->backend->has_control) {
		*ret_state = GCR_CONTROL_RUNNING;
		return 0;
	}
	for (int attempt = 0; attempt < STATE_ATTEMPTS && result == -EPIPE; attempt++) {
		if (attempt)
			gcr_drive_pause(drive, STATE_RETRY_MSEC);
		result = gcr_drive_call(drive, GCR_MESSAGE_STATE, 0, &answer, error);
	}
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	if (answer.error)
		return gcr_error_set(error, answer.error == EAGAIN ? EIO : answer.error, "%s",
				     answer.words);
	*ret_state = answer.state;
	return 0;
}

int gcr_drive_write_record(struct gcr_drive *drive, enum gcr_record_state state,
			   struct gcr_error *error)
{
	struct gcr_process *process = drive->process;
	int result;

	drive->record.pid = process->pid;
	drive->record.start_ticks = process->start_ticks;
	drive->record.state = state;
	drive->record.since_usec = gcr_clock_real_usec();
	pthread_mutex_lock(&process->lock);
	memcpy(drive->record.generation, process->generation, sizeof(drive->record.generation));
	memcpy(drive->record.comm, process->comm, sizeof(drive->record.comm));
	drive->record.frozen_for_pid = process->frozen_for_pid;
	drive->record.frozen_for_start_ticks = process->frozen_for_start_ticks;
	drive->record.gpus_count = process->shares_count;
	for (unsigned int i = 0; i < process->shares_count; i++) {
		memcpy(drive->record.gpus[i].uuid, process->shares[i].uuid, GCR_UUID_BYTES);
		drive->record.gpus[i].bytes = process->shares[i].bytes;
	}
	pthread_mutex_unlock(&process->lock);
	gcr_drive_record_places(drive);
	snprintf(drive->record.engine, sizeof(drive->record.engine), "%s", drive->engine);
	result = gcr_record_write(drive->daemon->runtime_fd, &drive->record);
	if (result < 0)
		return gcr_error_set(error, -result,
				     "cannot write the record that a next daemon would need: %s",
				     strerror(-result));
	return 0;
}

void gcr_drive_remove_record(struct gcr_drive *drive)
{
	struct gcr_process *process = drive->process;

	gcr_record_remove(drive->daemon->runtime_fd, process->pid, process->start_ticks);
	pthread_mutex_lock(&process->lock);
	process->frozen_for_pid = 0;
	pthread_mutex_unlock(&process->lock);
}

/*
 * Asks one control helper for the GPUs. -EINTR: the process has ended; another error: the helper
 * does not answer. The helper is dropped on each error.
 */
static int ask_helper(struct gcr_drive *drive, struct gcr_gpus_reply *reply,
		      struct gcr_error *error)
{
	int result = gcr_helper_request(drive->helper, GCR_MESSAGE_QUERY, NULL, 0, error);

	if (!result)
		result = gcr_helper_gpus(drive->helper, GCR_DRIVE_HELPER_WAIT_USEC,
					 drive->process->pidfd, reply);
	if (result < 0)
		drop_helper(drive);
	return result;
}

int gcr_drive_query(struct gcr_drive *drive, struct gcr_gpus_reply *reply, struct gcr_error *error)
{
	struct gcr_error words = {0};
	int64_t asked_usec = 0;
	int result = -EIO;

	/* A query changes nothing, so another helper may be asked. */
	for (int i = 0; i < QUERY_ATTEMPTS && result < 0 && result != -EINTR; i++) {
		if (i && gcr_drive_must_leave(drive))
			break;
		asked_usec = gcr_clock_usec();
		result = gcr_drive_need_helper(drive, &words);
		if (result < 0)
			return gcr_error_set(error, EIO,
					     "the GPUs cannot be asked for their memory: %s",
					     words.words);
		result = ask_helper(drive, reply, &words);
	}
	if (result < 0)
		return gcr_error_set(error, result == -EINTR ? ESRCH : EIO,
				     "the GPUs cannot be asked for their memory: %s",
				     strerror(-result));
	if (reply->error)
		return gcr_error_set(error, reply->error, "%s", reply->words);
	gcr_gpus_update(drive->daemon->gpus, drive->vendor, reply, asked_usec);
	return 0;
}

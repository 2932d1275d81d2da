/* SPDX-License-Identifier: MIT */
/*
 * The conversation of one task with the driver, through control helpers that may die at any moment.
 */
#include "fs/engine/driver_session.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/engine.h"
#include "fs/process/gpus.h"
#include "fs/process/library.h"
#include "fs/process/scan.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
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

/*
 * Does the process belong to the verb's writer, or is the writer root? The process may have got
 * another user's program since the verb was written. It can hide its program, but not its owner.
 */
static bool is_writers(const struct gcr_driver_session *driver)
{
	uid_t writer = driver->task->command->rights.uid, owner;
	gid_t group;

	return !writer ||
	       (!gcr_process_find_owner(driver->process, &owner, &group) && owner == writer);
}

void gcr_driver_session_init(struct gcr_driver_session *driver, struct gcr_task *task,
			     const char *engine)
{
	gid_t group;

	*driver = (struct gcr_driver_session){.task = task,
					      .process = task->process,
					      .daemon = task->process->daemon,
					      .vendor = task->process->vendor,
					      .engine = engine};
	/*
	 * The program that the writer was found to have the right to, not one that the process has
	 * got since. The owner after it: if the program is still the same later, the owner was its
	 * own.
	 */
	driver->program = task->program;
	if (!driver->program.start_stack)
		gcr_proc_program(task->process->pid, &driver->program);
	if (gcr_process_find_owner(task->process, &driver->owner, &group) < 0)
		driver->owner = (uid_t)-1;
	driver->is_of_another = !is_writers(driver);
}

void gcr_driver_session_set_phase(struct gcr_driver_session *driver, const char *phase)
{
	atomic_store(&driver->task->phase, phase);
}

/*
 * Returns true if the process has ended, or when the daemon has been stopping for
 * STOPPING_WAIT_USEC. A cancel does not count.
 */
bool gcr_driver_session_must_leave(struct gcr_driver_session *driver)
{
	if (gcr_process_has_ended(driver->process))
		return true;
	if (!atomic_load(&driver->daemon->stopping))
		return false;
	if (!driver->stopping_usec)
		driver->stopping_usec = gcr_clock_usec();
	return gcr_clock_usec() > driver->stopping_usec + STOPPING_WAIT_USEC;
}

void gcr_driver_session_pause(struct gcr_driver_session *driver, int msec)
{
	struct pollfd pidfd = {.fd = driver->process->pidfd, .events = POLLIN};

	poll(&pidfd, 1, msec);
}

int gcr_driver_need_helper(struct gcr_driver_session *driver, struct gcr_error *error)
{
	if (driver->helper)
		return 0;
	return gcr_helpers_take_control(driver->vendor->helpers, GCR_DRIVER_HELPER_WAIT_USEC, -1,
					&driver->helper, error);
}

int gcr_driver_of_another(const struct gcr_driver_session *driver, struct gcr_error *error)
{
	return gcr_error_set(error, EPERM, "process %d belongs to another user",
			     (int)driver->process->pid);
}

/* Does the machine have GPUs of other vendors? */
static bool has_others(const struct gcr_driver_session *driver)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (i != driver->vendor->index && driver->daemon->vendors[i].is_here)
			return true;
	return false;
}

int gcr_driver_preflight(struct gcr_driver_session *driver, const char *driver_version,
			 struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	struct gcr_scan_holder holder = {0};

	if (driver->is_of_another)
		return gcr_driver_of_another(driver, error);
	/* Work on the other vendor's GPU would continue, and its memory would stay. */
	if (atomic_load(&process->has_other_vendor) ||
	    (has_others(driver) &&
	     gcr_scan_probe(driver->daemon->scan, process->pid, &holder) == 1 &&
	     holder.devices & ~(1u << driver->vendor->index)))
		return gcr_error_set(error, EOPNOTSUPP,
				     "process %d uses GPUs of two vendors, and can be frozen on "
				     "neither",
				     (int)process->pid);
	return driver->vendor->backend->preflight(process->pid, driver->daemon->device_directory,
						  driver_version, error);
}

bool gcr_driver_takes_control(const struct gcr_driver_session *driver)
{
	return driver->vendor->backend->has_control && !driver->task->command->data;
}

static void drop_helper(struct gcr_driver_session *driver)
{
	if (!driver->helper)
		return;
	gcr_helper_kill(driver->helper);
	gcr_helper_put(TAKE_PTR(driver->helper));
}

/*
 * Is an error due to the end of the process, which the driver reports as other errors? The driver
 * stops answering as soon as that end has begun, so this function waits (EXIT_WAIT_MSEC at most)
 * until the process has ended.
 */
static bool is_dying(struct gcr_driver_session *driver, const struct gcr_result *answer)
{
	if (!answer->error)
		return false;
	if (gcr_proc_is_ending(driver->process->pid) > 0)
		gcr_driver_session_pause(driver, EXIT_WAIT_MSEC);
	return gcr_process_has_ended(driver->process);
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
	had_page = process->snapshot && !process->library && !process->is_restored;
	pthread_mutex_unlock(&process->lock);
	return had_page && gcr_library_facts_unconnected(process, &unused) == -ENOTCONN &&
	       !gcr_proc_status(process->pid, &status) && status.has_memory;
}

bool gcr_driver_sees_other_program(struct gcr_driver_session *driver)
{
	struct gcr_proc_program program;

	driver->is_replaced |= !gcr_proc_program(driver->process->pid, &program) &&
			       gcr_proc_program_differs(&program, &driver->program);
	driver->is_ending |= driver->is_replaced;
	return driver->is_replaced;
}

/*
 * Has the driver lost its state of a process that still exists? Then the process has deinitialised,
 * or has another program.
 */
static bool has_lost_state(struct gcr_driver_session *driver, const struct gcr_result *answer)
{
	struct gcr_process *process = driver->process;
	bool had_state;

	if (!answer->error) {
		driver->had_state = true;
		return false;
	}
	if (answer->driver_result != DRIVER_NO_STATE)
		return false;
	driver->lacks_state = true;
	pthread_mutex_lock(&process->lock);
	/* For a frozen process this error alone is no reason to give its bytes up. */
	had_state = driver->had_state ||
		    (driver->task->from == GCR_STATE_RUNNING && *process->generation);
	pthread_mutex_unlock(&process->lock);
	if (!had_state)
		driver->is_replaced |= has_other_program(process);
	driver->is_ending |= had_state || driver->is_replaced;
	return had_state || driver->is_replaced;
}

bool gcr_driver_sees_end(struct gcr_driver_session *driver)
{
	driver->is_ending |= gcr_library_is_ending(driver->process);
	return gcr_driver_sees_other_program(driver) || driver->is_ending;
}

static int say_ending(struct gcr_driver_session *driver, struct gcr_error *error)
{
	if (driver->is_replaced)
		return gcr_error_set(error, ESRCH,
				     "process %d has replaced its program by execve(2): what was "
				     "frozen of it is of no use any more, and has been removed",
				     (int)driver->process->pid);
	return gcr_error_set(error, ESRCH, "process %d is ending", (int)driver->process->pid);
}

/*
 * Is the process exiting? If only its main thread has ended, the others may keep running. In an
 * exit the others end too, but appear to run after the main thread's end until they have had a
 * processor, which takes long on a busy machine.
 */
static bool is_going(struct gcr_driver_session *driver)
{
	int64_t until_usec = gcr_clock_usec() + GOING_WAIT_USEC;
	struct gcr_process *process = driver->process;
	struct gcr_proc_stat stat;

	while (!gcr_process_is_going(process)) {
		if (gcr_proc_stat(process->pid, &stat) < 0 || !stat.is_exiting ||
		    gcr_clock_usec() >= until_usec)
			return false;
		gcr_driver_session_pause(driver, GOING_LOOK_MSEC);
	}
	return true;
}

int gcr_driver_explain_end(struct gcr_driver_session *driver, int result, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	bool is_ending = gcr_driver_sees_end(driver) && result != -ECANCELED;

	if (is_ending)
		gcr_driver_session_pause(driver, ENDING_WAIT_MSEC);
	/* An exiting process may have lost its library or its driver before the rest. */
	else if ((result == -EIO || result == -EOPNOTSUPP) && is_going(driver))
		gcr_driver_session_pause(driver, EXIT_WAIT_MSEC);
	/* The process never had a driver state, or is past its driver's exit but not its own. */
	else if (result == -EOPNOTSUPP && driver->lacks_state)
		gcr_driver_session_pause(driver, ENDING_WAIT_MSEC);
	else
		return result;
	if (!is_ending && driver->lacks_state && !gcr_process_is_going(process))
		return result;
	if (is_ending && !gcr_process_has_ended(process))
		return say_ending(driver, error);
	return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
}

bool gcr_driver_let_go(struct gcr_driver_session *driver, int result, enum gcr_state *ret_state)
{
	if (result != -ESRCH || !gcr_driver_sees_end(driver))
		return false;
	gcr_driver_remove_record(driver);
	if (driver->is_replaced) {
		GCR_LOCK_SCOPE(&driver->process->lock);
		gcr_process_forget_program_locked(driver->process);
	}
	*ret_state = GCR_STATE_RUNNING;
	return true;
}

void gcr_driver_check_deadline(struct gcr_driver_session *driver)
{
	struct gcr_proc_stat stat;

	if (gcr_clock_usec() < gcr_task_deadline_usec(driver->task))
		return;
	gcr_task_deadline_passed(driver->task);
	/*
	 * A helper that has been stopped by a signal does not answer: kill it; another helper is
	 * asked then how the call ended.
	 */
	if (driver->helper && !gcr_proc_stat(gcr_helper_pid(driver->helper), &stat) &&
	    (stat.state == 'T' || stat.state == 't'))
		gcr_helper_kill(driver->helper);
}

void gcr_driver_check_answer(struct gcr_driver_session *driver)
{
	if (gcr_clock_usec() >= gcr_task_deadline_usec(driver->task) + LATE_USEC)
		gcr_driver_check_deadline(driver);
}

/* Makes one call to the driver, as gcr_driver_call(). */
static int call(struct gcr_driver_session *driver, uint16_t type, uint32_t timeout_ms,
		struct gcr_result *ret, struct gcr_error *error)
{
	struct gcr_control_request request = {.pid = driver->process->pid,
					      .timeout_ms = timeout_ms};
	int result;

	if (type == GCR_MESSAGE_RESTORE) {
		request.pairs_count = driver->asked_moves.count;
		memcpy(request.pairs, driver->asked_moves.pairs, sizeof(request.pairs));
	}
	result = gcr_driver_need_helper(driver, error);
	if (result < 0)
		return result;
	result = gcr_helper_request_fds(driver->helper, type, &request, sizeof(request),
					&driver->process->pidfd, 1, error);
	gcr_driver_begin_wait(driver);
	while (!result) {
		/*
		 * Also wait for the pidfd: if the process ends in the middle, the call may never
		 * return.
		 */
		result = gcr_helper_result(driver->helper, 250 * GCR_USEC_PER_MSEC,
					   driver->process->pidfd, ret);
		if (!result && is_dying(driver, ret))
			result = -ESRCH;
		if (!result) {
			gcr_driver_end_wait(driver);
			return has_lost_state(driver, ret) ? say_ending(driver, error) : 0;
		}
		if (gcr_driver_session_must_leave(driver))
			result = gcr_process_has_ended(driver->process) ? -ESRCH : -ECANCELED;
		else if (result == -EINTR)
			result = -ESRCH;
		else if (result == -ETIMEDOUT)
			result = 0;
		/*
		 * A call that waits for GPU work ends by itself at the deadline, with a better
		 * message.
		 */
		if (!result && type == GCR_MESSAGE_LOCK)
			gcr_driver_check_answer(driver);
		else if (!result)
			gcr_driver_check_deadline(driver);
		if (!result)
			gcr_driver_check_stall(driver);
	}
	gcr_driver_end_wait(driver);
	/* If the lock is another process's, which has got the pid, the helper takes it back. */
	if (type == GCR_MESSAGE_LOCK && result == -ESRCH)
		gcr_helper_put_calling(TAKE_PTR(driver->helper), timeout_ms * GCR_USEC_PER_MSEC);
	drop_helper(driver);
	if (result == -ESRCH)
		gcr_error_set(error, ESRCH, "process %d has ended", (int)driver->process->pid);
	else if (result == -ECANCELED)
		gcr_error_set(error, EIO, "the daemon stopped before the driver had answered");
	else
		gcr_error_set(error, EIO, "the control helper died in the middle of the call");
	return result;
}

/*
 * Does the process have the owner that it had when the session began, and does a running process
 * belong to the writer? The owner is another one if the process has become a set-user-ID program,
 * but also once the process has made itself not dumpable. -ESRCH; -EPERM: another owner; -EIO: the
 * owner could not be read now.
 */
static int check_owner(struct gcr_driver_session *driver, struct gcr_error *error)
{
	uid_t writer = driver->task->command->rights.uid;
	uid_t owner;
	gid_t group;
	int result = gcr_process_find_owner(driver->process, &owner, &group);

	if (result == -ESRCH)
		return say_ending(driver, error);
	if (result < 0)
		return gcr_error_set(error, EIO, "the owner of process %d cannot be read: %s",
				     (int)driver->process->pid, strerror(-result));
	if (owner != driver->owner ||
	    (driver->task->from == GCR_STATE_RUNNING && writer && owner != writer))
		return gcr_driver_of_another(driver, error);
	return 0;
}

int gcr_driver_may_lock(struct gcr_driver_session *driver, struct gcr_error *error)
{
	if (gcr_driver_sees_other_program(driver))
		return say_ending(driver, error);
	return check_owner(driver, error);
}

/*
 * Locks the process. The driver knows only the pid, so the program is checked once more afterwards:
 * if it is the same, the lock is its own, and no other program of the process inherits the lock.
 * Another program is unlocked at once.
 */
static int lock(struct gcr_driver_session *driver, uint32_t timeout_ms, struct gcr_result *ret,
		struct gcr_error *error)
{
	struct gcr_result unlocked;
	struct gcr_error other;
	int result = gcr_driver_may_lock(driver, error);
	int allowed;

	if (!result)
		result = call(driver, GCR_MESSAGE_LOCK, timeout_ms, ret, error);
	if (result < 0 || ret->error)
		return result;
	allowed = gcr_driver_may_lock(driver, &other);
	if (!allowed)
		return 0;
	result = call(driver, GCR_MESSAGE_UNLOCK, 0, &unlocked, error);
	if (result < 0)
		return result;
	*error = other;
	return allowed;
}

int gcr_driver_call(struct gcr_driver_session *driver, uint16_t type, uint32_t timeout_ms,
		    struct gcr_result *ret, struct gcr_error *error)
{
	return type == GCR_MESSAGE_LOCK ? lock(driver, timeout_ms, ret, error)
					: call(driver, type, timeout_ms, ret, error);
}

int gcr_driver_ask_state(struct gcr_driver_session *driver, enum gcr_control_state *ret_state,
			 struct gcr_error *error)
{
	struct gcr_result answer;
	int result = -EPIPE;

	if (!driver->vendor->backend->has_control) {
		*ret_state = GCR_CONTROL_RUNNING;
		return 0;
	}
	for (int attempt = 0; attempt < STATE_ATTEMPTS && result == -EPIPE; attempt++) {
		if (attempt)
			gcr_driver_session_pause(driver, STATE_RETRY_MSEC);
		result = gcr_driver_call(driver, GCR_MESSAGE_STATE, 0, &answer, error);
	}
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	if (answer.error)
		return gcr_error_set(error, answer.error == EAGAIN ? EIO : answer.error, "%s",
				     answer.words);
	*ret_state = answer.state;
	return 0;
}

int gcr_driver_write_record(struct gcr_driver_session *driver, enum gcr_record_state state,
			    struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	int result;

	driver->record.pid = process->pid;
	driver->record.start_ticks = process->start_ticks;
	driver->record.state = state;
	driver->record.since_usec = gcr_clock_real_usec();
	pthread_mutex_lock(&process->lock);
	memcpy(driver->record.generation, process->generation, sizeof(driver->record.generation));
	memcpy(driver->record.comm, process->comm, sizeof(driver->record.comm));
	driver->record.frozen_for_pid = process->frozen_for_pid;
	driver->record.frozen_for_start_ticks = process->frozen_for_start_ticks;
	driver->record.gpus_count = process->shares_count;
	for (unsigned int i = 0; i < process->shares_count; i++) {
		memcpy(driver->record.gpus[i].uuid, process->shares[i].uuid, GCR_UUID_BYTES);
		driver->record.gpus[i].bytes = process->shares[i].bytes;
	}
	pthread_mutex_unlock(&process->lock);
	gcr_driver_record_places(driver);
	snprintf(driver->record.engine, sizeof(driver->record.engine), "%s", driver->engine);
	result = gcr_record_write(driver->daemon->runtime_fd, &driver->record);
	if (result < 0)
		return gcr_error_set(error, -result,
				     "cannot write the record that a next daemon would need: %s",
				     strerror(-result));
	return 0;
}

void gcr_driver_remove_record(struct gcr_driver_session *driver)
{
	struct gcr_process *process = driver->process;

	gcr_record_remove(driver->daemon->runtime_fd, process->pid, process->start_ticks);
	pthread_mutex_lock(&process->lock);
	process->frozen_for_pid = 0;
	pthread_mutex_unlock(&process->lock);
}

/*
 * Asks one control helper for the GPUs. -EINTR: the process has ended; another error: the helper
 * does not answer. The helper is dropped on each error.
 */
static int ask_helper(struct gcr_driver_session *driver, struct gcr_gpus_reply *reply,
		      struct gcr_error *error)
{
	struct gcr_gpus_request request = {.pid = driver->process->pid};
	int result = gcr_helper_request(driver->helper, GCR_MESSAGE_QUERY, &request,
					sizeof(request), error);

	if (!result)
		result = gcr_helper_gpus(driver->helper, GCR_DRIVER_HELPER_WAIT_USEC,
					 driver->process->pidfd, reply);
	if (result < 0)
		drop_helper(driver);
	return result;
}

int gcr_driver_query(struct gcr_driver_session *driver, struct gcr_gpus_reply *reply,
		     struct gcr_error *error)
{
	struct gcr_error words = {0};
	int64_t asked_usec = 0;
	int result = -EIO;

	/* A query changes nothing, so another helper may be asked. */
	for (int i = 0; i < QUERY_ATTEMPTS && result < 0 && result != -EINTR; i++) {
		if (i && gcr_driver_session_must_leave(driver))
			break;
		asked_usec = gcr_clock_usec();
		result = gcr_driver_need_helper(driver, &words);
		if (result < 0)
			return gcr_error_set(error, EIO,
					     "the GPUs cannot be asked for their memory: %s",
					     words.words);
		result = ask_helper(driver, reply, &words);
	}
	if (result < 0)
		return gcr_error_set(error, result == -EINTR ? ESRCH : EIO,
				     "the GPUs cannot be asked for their memory: %s",
				     strerror(-result));
	if (reply->error)
		return gcr_error_set(error, reply->error, "%s", reply->words);
	gcr_gpus_update(driver->daemon->gpus, driver->vendor, reply, asked_usec);
	return 0;
}

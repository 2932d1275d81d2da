/* SPDX-License-Identifier: MIT */
/* Requests of the vmm engine to a preload library, which may die, lie or not answer. */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/helper/halt.h"
#include "fs/process/listed.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/proc_page.h"
#include "lib/proc_source.h"

#define SLICE_USEC	  (250 * GCR_USEC_PER_MSEC)
/*
 * Time limit of the first GATE_CLOSE, and the upper bound of later ones. A short limit lets a
 * cancel be noticed soon.
 */
#define GATE_FIRST_MSEC	  200
#define GATE_MOST_MSEC	  2000
/*
 * The driver's state is shrunk only before copies smaller than this. A larger copy, which runs in
 * parallel to the driver's checkpoint, takes longer than the checkpoint in any case: at 50 GB/s as
 * long as a checkpoint with the stacks of the program's kernels, 0.4 s.
 */
#define SHRINK_MOST_BYTES (20ull << 30)

#define NO_PTRACE                                                                            \
	"it uses managed memory, so its threads have to be stopped for a moment, which the " \
	"daemon may not do: that takes CAP_SYS_PTRACE"
/*
 * How long threads are stopped. While they are stopped, they do not block the library, as far as
 * can be told. If the library does not answer all the same, the threads are released; the library
 * notices that, or is not affected.
 */
#define HALT_USEC	    (20 * GCR_USEC_PER_SEC)
/*
 * The limit by which the threads are released if there is no daemon. A library that takes longer
 * hangs, for a cause that has to be investigated.
 */
#define ORPHAN_USEC	    (60 * GCR_USEC_PER_SEC)
#define HALT_BYTES_PER_USEC 256
#define HALT_SLICE_USEC	    (20 * GCR_USEC_PER_MSEC)
/* Interval between checks whether the program is stopped as a whole. */
#define HALT_LOOK_USEC	    (100 * GCR_USEC_PER_MSEC)
/*
 * Time for a PREPARE with stopped threads. If one of them holds a lock, such as malloc(3)'s, the
 * request takes longer; then the threads are released and stopped again at another moment.
 */
#define PREPARE_USEC	    (100 * GCR_USEC_PER_MSEC)
#define PREPARE_TRIES	    20
/* Limit for all tries of PREPARE together: none takes long, unless the program delays it. */
#define PREPARE_MOST_USEC   (20 * GCR_USEC_PER_SEC)
/* Longer than the helper's own limit for threads that do not stop: see fs/helper/stop.c. */
#define HALT_ANSWER_USEC    (11 * GCR_USEC_PER_SEC)
/* How long a machine can be too busy to read a page. */
#define LOOK_USEC	    GCR_VMM_RECONNECT_USEC

/*
 * Called in a wait for a program that may never answer or connect. At the deadline the writer is
 * answered, and other verbs get the GPUs and the workers (fs/engine/driver_stall.c).
 */
static void keep_no_one(struct gcr_vmm *vmm)
{
	vmm->driver.is_halted = vmm->halt;
	gcr_driver_check_stall(&vmm->driver);
	gcr_driver_check_answer(&vmm->driver);
}

/* Pauses before something is tried again that the program may prevent for ever. */
static void pause_for_retry(struct gcr_vmm *vmm)
{
	gcr_driver_begin_wait(&vmm->driver);
	keep_no_one(vmm);
	gcr_driver_session_pause(&vmm->driver, GCR_DRIVER_RETRY_MSEC);
	gcr_driver_end_wait(&vmm->driver);
}

/*
 * Is a read of the program's memory to be repeated? True, after a pause, if the program or a busy
 * machine has delayed it and @until_usec has not come.
 */
static bool looks_again(struct gcr_vmm *vmm, int result, int64_t until_usec)
{
	if (!gcr_proc_is_silent(result) || gcr_clock_usec() >= until_usec)
		return false;
	pause_for_retry(vmm);
	return true;
}

int gcr_vmm_facts(struct gcr_vmm *vmm, struct gcr_page_facts *ret_facts, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + LOOK_USEC;
	int r;

	do
		r = gcr_library_facts(vmm->driver.process, ret_facts);
	while (looks_again(vmm, r, until_usec));
	if (r == 0)
		return 0;
	if (gcr_proc_is_silent(r))
		return gcr_error_set(
			error, EBUSY,
			"the page of its preload library cannot be read in time: the "
			"machine is too busy, or the program maps that page very often");
	if (r == -ENOTCONN || r == -EPROTO)
		return gcr_error_set(error, EIO, "its preload library is gone");
	return gcr_error_set(error, -r, "the page of its preload library cannot be read: %s",
			     strerror(-r));
}

static void disconnect(struct gcr_vmm *vmm)
{
	gcr_library_put(TAKE_PTR(vmm->library));
}

int gcr_vmm_connect(struct gcr_vmm *vmm, int64_t timeout_usec, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	struct gcr_page_facts facts;
	int result;

	if (vmm->library)
		return 0;
	gcr_driver_begin_wait(&vmm->driver);
	for (;;) {
		int64_t left_usec = until_usec - gcr_clock_usec();

		result = gcr_library_take(vmm->driver.process,
					  left_usec < SLICE_USEC ? left_usec : SLICE_USEC,
					  &vmm->library, error);
		/* The library of another program has nothing to do with this verb. */
		if (gcr_driver_sees_other_program(&vmm->driver)) {
			disconnect(vmm);
			result = gcr_error_set(error, ESRCH,
					       "process %d has replaced its program by execve(2)",
					       (int)vmm->driver.process->pid);
			break;
		}
		if ((result != -EBUSY && result != -ENOTCONN) || gcr_clock_usec() >= until_usec)
			break;
		keep_no_one(vmm);
	}
	gcr_driver_end_wait(&vmm->driver);
	if (result < 0)
		return result;
	result = gcr_vmm_facts(vmm, &facts, error);
	if (result < 0) {
		disconnect(vmm);
		return result == -EBUSY ? result : -ENOTCONN;
	}
	vmm->phase = facts.phase;
	return 0;
}

/*
 * Extends the halt by the time in which the whole program is stopped by a signal: the daemon delays
 * nothing then, and when the program continues, its threads must not see a half-done state.
 */
static void extend_halt(struct gcr_vmm *vmm)
{
	int64_t now_usec = gcr_clock_usec();

	if (now_usec < vmm->halt_looked_usec + HALT_LOOK_USEC)
		return;
	if (gcr_driver_sees_stop(&vmm->driver))
		vmm->halt_ends_usec += now_usec - vmm->halt_looked_usec;
	vmm->halt_looked_usec = now_usec;
}

/*
 * Makes the checks between two waits for an answer. 0: keep waiting; -ECANCELED: the daemon stops.
 */
static int look_around(struct gcr_vmm *vmm, struct gcr_error *error)
{
	keep_no_one(vmm);
	/* Do not leave while threads are stopped: their changes could be lost. */
	if (vmm->halt) {
		extend_halt(vmm);
		if (gcr_clock_usec() >= vmm->halt_ends_usec)
			gcr_halt_end(TAKE_PTR(vmm->halt));
		return 0;
	}
	if (vmm->is_receiving && gcr_task_stopped(vmm->driver.task))
		gcr_vmm_close_sessions(vmm);
	if (gcr_driver_session_must_leave(&vmm->driver))
		return gcr_error_set(error, ECANCELED, "the daemon stopped in the middle");
	return 0;
}

/*
 * Waits for a message. Returns 1 for a message, 0 to keep waiting. @looked_usec is the time of the
 * last look_around(), which is called even if a library sends one message after the other.
 */
static int wait_one(struct gcr_vmm *vmm, struct gcr_message *message, int64_t *looked_usec,
		    struct gcr_error *error)
{
	int64_t slice_usec = vmm->halt ? HALT_SLICE_USEC : SLICE_USEC;
	int result = gcr_library_receive(vmm->library, slice_usec, message);

	if (!result && gcr_clock_usec() - *looked_usec < slice_usec)
		return 1;
	if (!result || result == -ETIMEDOUT) {
		int looked = look_around(vmm, error);

		*looked_usec = gcr_clock_usec();
		if (looked < 0 && !result)
			gcr_message_close_fds(message);
		return looked < 0 ? looked : !result;
	}
	if (result == -EINTR)
		return gcr_error_set(error, ESRCH, "process %d has ended",
				     (int)vmm->driver.process->pid);
	disconnect(vmm);
	return gcr_error_set(error, ENOTCONN, "its preload library is gone");
}

/*
 * Reads the answer @message, and sets vmm->phase from it. 0: the request was carried out; else the
 * library's error.
 */
static int take_answer(struct gcr_vmm *vmm, const struct gcr_message *message,
		       struct gcr_error *error)
{
	uint32_t state;
	int result = gcr_library_answer(message, &state, error);

	if (state >= GCR_PRELOAD_RUNNING && state <= GCR_PRELOAD_LAST)
		vmm->phase = (enum gcr_preload_phase)state;
	return result;
}

/*
 * Sends a request and waits for its answer, which is left in @message (its descriptors are the
 * caller's). HANDLES messages before the answer go to the workers; a failed import is reported only
 * after the answer.
 */
static int swap_messages(struct gcr_vmm *vmm, uint16_t type, const void *payload, size_t bytes,
			 const int *fds, size_t fds_count, struct gcr_message *message,
			 struct gcr_error *error)
{
	struct gcr_error import_error = {0};
	int64_t looked_usec = gcr_clock_usec();
	int import_result = 0;
	int result;

	message->fds_count = 0;
	if (!vmm->library)
		return gcr_error_set(error, ENOTCONN, "its preload library is gone");
	result = gcr_library_request(vmm->library, type, payload, bytes, fds, fds_count, error);
	if (result == -EPIPE) {
		disconnect(vmm);
		return gcr_error_set(error, ENOTCONN, "its preload library is gone");
	}
	if (result < 0)
		return result;
	for (;;) {
		struct gcr_range range;

		result = wait_one(vmm, message, &looked_usec, error);
		if (result < 0)
			return result;
		if (!result)
			continue;
		if (message->header.type == GCR_MESSAGE_RESULT)
			break;
		gcr_message_payload(message, &range, sizeof(range));
		if (message->header.type == GCR_MESSAGE_HANDLES &&
		    range.count == message->fds_count) {
			if (!import_result)
				import_result = gcr_vmm_import(vmm, range.first, range.count,
							       message->fds, &import_error);
		} else if (!import_result) {
			import_result = gcr_error_set(&import_error, EPROTO,
						      "its preload library does not speak our "
						      "protocol");
		}
		gcr_message_close_fds(message);
	}
	result = take_answer(vmm, message, error);
	/* The workers may have been released because of the stop. */
	if (!result && import_result < 0 && gcr_task_stopped(vmm->driver.task))
		return gcr_driver_session_stopped(error);
	if (!result && import_result < 0) {
		*error = import_error;
		result = import_result;
	}
	return result;
}

static int converse(struct gcr_vmm *vmm, uint16_t type, const void *payload, size_t bytes,
		    const int *fds, size_t fds_count, struct gcr_message *message,
		    struct gcr_error *error)
{
	int result;

	gcr_driver_begin_wait(&vmm->driver);
	result = swap_messages(vmm, type, payload, bytes, fds, fds_count, message, error);
	gcr_driver_end_wait(&vmm->driver);
	return result;
}

static int ask_with(struct gcr_vmm *vmm, uint16_t type, const void *payload, size_t bytes,
		    const int *fds, size_t fds_count, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_message *message = malloc(sizeof(*message));
	int result;

	if (!message)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = converse(vmm, type, payload, bytes, fds, fds_count, message, error);
	gcr_message_close_fds(message);
	return result;
}

int gcr_vmm_ask(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error)
{
	return ask_with(vmm, type, NULL, 0, NULL, 0, error);
}

bool gcr_vmm_has_its_memory(const struct gcr_vmm *vmm)
{
	return vmm->phase == GCR_PRELOAD_RUNNING || vmm->phase == GCR_PRELOAD_GATED;
}

/*
 * Is the library in the state that the request leads to, or past that state, by itself or because
 * its answer was lost? Only the phase from a live connection counts: the page's phase may change
 * again while a connection ends.
 */
static bool is_past(const struct gcr_vmm *vmm, uint16_t type)
{
	if (!vmm->library)
		return false;
	switch (type) {
	case GCR_MESSAGE_TAKE_BACK:
		return gcr_vmm_has_its_memory(vmm);
	case GCR_MESSAGE_COMMIT:
	case GCR_MESSAGE_LET_GO:
		return gcr_vmm_has_its_memory(vmm) || vmm->phase == GCR_PRELOAD_OUT;
	default: /* GATE_OPEN: a gate that was closed in vain is closed in the phase `running` */
		return false;
	}
}

int gcr_vmm_request_until_answered(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error)
{
	int64_t since_usec = gcr_clock_usec();

	while (!is_past(vmm, type)) {
		int result = gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);

		if (!result && type == GCR_MESSAGE_TAKE_BACK)
			result = gcr_vmm_bring_in(vmm, type, error);
		else if (!result)
			result = gcr_vmm_ask(vmm, type, error);
		if (!result)
			return 0;
		if (gcr_driver_is_hopeless(&vmm->driver, result, since_usec))
			return result;
		/* Nothing in the program can prevent its gate from opening. */
		if (type != GCR_MESSAGE_GATE_OPEN && result != -ENOTCONN && result != -EBUSY)
			return result;
		pause_for_retry(vmm);
	}
	return 0;
}

int gcr_vmm_took_it_back(struct gcr_error *error)
{
	return gcr_error_set(error, EIO,
			     "its preload library was without a daemon for too long and has taken "
			     "its memory back");
}

int gcr_vmm_check_handed(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_page_facts facts;
	int result = gcr_vmm_facts(vmm, &facts, error);

	if (result < 0)
		return result;
	return facts.phase == GCR_PRELOAD_HANDED ? 0 : gcr_vmm_took_it_back(error);
}

/*
 * Sets the error of a gate that could not be closed in time. @reason: what the library last said;
 * without words: not known. -ETIMEDOUT, or -ECANCELED without a message.
 */
static int give_up_gate(struct gcr_vmm *vmm, const struct gcr_error *reason,
			struct gcr_error *error)
{
	if (gcr_task_stopped(vmm->driver.task) != ETIMEDOUT || !reason->words[0])
		return gcr_driver_session_stopped(error);
	*error = *reason;
	gcr_error_prefix(error, "it did not come to rest in time (timeout=SEC allows more)");
	return -ETIMEDOUT;
}

static int close_gate(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_gate_request request = {.timeout_ms = GATE_FIRST_MSEC};
	struct gcr_driver_session *driver = &vmm->driver;
	struct gcr_error reason = {0};

	for (;;) {
		int64_t asked_usec = gcr_clock_usec();
		int64_t left_msec;
		int result;

		if (gcr_task_stopped(driver->task))
			return give_up_gate(vmm, &reason, error);
		left_msec = (gcr_task_deadline_usec(driver->task) - asked_usec) / GCR_USEC_PER_MSEC;
		if (left_msec < request.timeout_ms)
			request.timeout_ms = left_msec > 10 ? (uint32_t)left_msec : 10;
		result = ask_with(vmm, GCR_MESSAGE_GATE_CLOSE, &request, sizeof(request), NULL, 0,
				  &reason);
		if (result != -ETIMEDOUT) {
			if (result < 0)
				*error = reason;
			return result;
		}
		/* A library that has not tried for that long could answer so without end. */
		if (gcr_clock_usec() < asked_usec + request.timeout_ms * GCR_USEC_PER_MSEC)
			pause_for_retry(vmm);
		if (request.timeout_ms < GATE_MOST_MSEC)
			request.timeout_ms *= 2;
	}
}

int gcr_vmm_close_gate(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result;

	vmm->driver.is_gating = true;
	result = close_gate(vmm, error);
	vmm->driver.is_gating = false;
	return result;
}

/* Reads the answer to LIST into vmm->own_extents. */
static int read_table(struct gcr_vmm *vmm, const struct gcr_message *message, size_t *ret_count,
		      struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + LOOK_USEC;
	int r;

	if (message->fds_count != 1)
		return gcr_error_set(error, EPROTO, "its table of allocations is missing");
	do
		r = gcr_proc_extents(vmm->driver.process->pid, message->fds[0], &vmm->own_extents,
				     ret_count, error);
	while (looks_again(vmm, r, until_usec));
	return r;
}

int gcr_vmm_list(struct gcr_vmm *vmm, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_message *message = malloc(sizeof(*message));
	size_t count = 0;
	int result;

	if (!message)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = converse(vmm, GCR_MESSAGE_LIST, NULL, 0, NULL, 0, message, error);
	if (!result)
		result = read_table(vmm, message, &count, error);
	gcr_message_close_fds(message);
	if (result < 0)
		return result;
	result = gcr_listed_check(vmm->driver.daemon, vmm->own_extents, count, error);
	if (result < 0)
		return result;
	vmm->count = count;
	vmm->extents = vmm->own_extents;
	vmm->device_count = 0;
	while (vmm->device_count < count &&
	       vmm->extents[vmm->device_count].kind == GCR_MEMORY_DEVICE)
		vmm->device_count++;
	return 0;
}

int gcr_vmm_send_files(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = 0;

	for (size_t first = vmm->device_count; vmm->transit && first < vmm->count && !result;
	     first += GCR_MESSAGE_FDS_MAX) {
		struct gcr_range range = {.first = (uint32_t)first};
		int fds[GCR_MESSAGE_FDS_MAX];

		while (range.count < GCR_MESSAGE_FDS_MAX &&
		       range.first + range.count < vmm->count && !result) {
			int fd = gcr_transit_open(vmm->transit, range.first + range.count);

			if (fd < 0)
				result = gcr_error_set(error, -fd,
						       "a file for its managed memory cannot be "
						       "opened: %s",
						       strerror(-fd));
			else
				fds[range.count++] = fd;
		}
		if (!result)
			result = ask_with(vmm, GCR_MESSAGE_FILES, &range, sizeof(range), fds,
					  range.count, error);
		for (uint32_t i = 0; i < range.count; i++)
			close(fds[i]);
	}
	return result;
}

/*
 * Is it worthwhile to shrink the state that the driver checkpoints? True if the driver makes a
 * checkpoint, and the copy of every GPU is short (the GPUs copy at the same time).
 */
static bool shrinking_pays(const struct gcr_vmm *vmm)
{
	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		const struct gcr_vmm_worker *worker = &vmm->workers[i];
		uint64_t bytes = 0;

		/* Of extents with known contents, few bytes will have changed. */
		for (uint32_t j = 0; j < worker->count; j++)
			if (!gcr_snapshot_is_known(vmm->snapshot, worker->first + j))
				bytes += vmm->extents[worker->first + j].bytes;
		if (bytes >= SHRINK_MOST_BYTES)
			return false;
	}
	return gcr_driver_takes_control(&vmm->driver);
}

/*
 * Additional time in microseconds that the threads may be stopped for the program's managed memory.
 */
static int64_t halt_usec(const struct gcr_vmm *vmm)
{
	uint64_t bytes = 0;

	for (size_t i = vmm->device_count; i < vmm->count; i++)
		bytes += vmm->extents[i].bytes;
	return (int64_t)(bytes / HALT_BYTES_PER_USEC);
}

/* The time (monotonic) at which the threads are released at the latest. */
static int64_t halt_end(const struct gcr_vmm *vmm)
{
	return gcr_clock_usec() + HALT_USEC + halt_usec(vmm);
}

/* Must the caller give up? 0, or -ECANCELED. During a roll-back a cancel does not count. */
static int check_leave(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;

	if (gcr_driver_session_must_leave(driver))
		return gcr_error_set(error, ECANCELED, "the daemon stopped in the middle");
	if (!driver->rolling_back && gcr_task_stopped(driver->task))
		return gcr_driver_session_stopped(error);
	return 0;
}

/*
 * Waits until the threads are stopped (0). If that takes long, other verbs get the GPUs. -EBUSY:
 * not stopped in time; -ESRCH, -ECANCELED.
 */
static int wait_halted(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + HALT_ANSWER_USEC;

	for (;;) {
		int result =
			gcr_halt_wait(vmm->halt, SLICE_USEC, vmm->driver.process->pidfd, error);

		if (result == -EINTR)
			return gcr_error_set(error, ESRCH, "process %d has ended",
					     (int)vmm->driver.process->pid);
		if (result != -ETIMEDOUT)
			return result;
		keep_no_one(vmm);
		result = check_leave(vmm, error);
		if (result < 0)
			return result;
		if (gcr_clock_usec() >= until_usec)
			return gcr_error_set(error, EBUSY, "its threads were not stopped in time");
	}
}

static int begin_halt(struct gcr_vmm *vmm, struct gcr_error *error)
{
	const struct gcr_process *process = vmm->driver.process;
	int result = gcr_halt_begin(vmm->driver.vendor->helpers, process->pid, process->pidfd,
				    gcr_library_page_fd(vmm->library),
				    gcr_library_program(vmm->library), ORPHAN_USEC + halt_usec(vmm),
				    &vmm->halt, error);

	if (result < 0)
		return result;
	gcr_driver_begin_wait(&vmm->driver);
	result = wait_halted(vmm, error);
	gcr_driver_end_wait(&vmm->driver);
	if (result < 0)
		gcr_halt_give_up(TAKE_PTR(vmm->halt));
	vmm->halt_looked_usec = gcr_clock_usec();
	return result == -EPERM ? gcr_error_set(error, EOPNOTSUPP, NO_PTRACE) : result;
}

int gcr_vmm_hold(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_process *process = vmm->driver.process;
	int result;

	if (vmm->count == vmm->device_count)
		return 0;
	result = gcr_vmm_ask(vmm, GCR_MESSAGE_SAVE, error);
	if (result < 0)
		return result;
	result = begin_halt(vmm, error);
	if (result < 0)
		return result;
	vmm->halt_ends_usec = halt_end(vmm);
	result = gcr_vmm_ask(vmm, GCR_MESSAGE_HOLD, error);
	gcr_halt_end(TAKE_PTR(vmm->halt));
	/* Threads that were killed during the halt end only when they are released. */
	if (result < 0 && gcr_process_has_ended(process))
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	return result;
}

/*
 * Stops the threads at a moment when none holds a lock that the library and the driver need: the
 * library proves this by taking these locks. -EBUSY: no such moment was found.
 */
static int stop_harmlessly(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + PREPARE_MOST_USEC;

	for (int try = 0; try < PREPARE_TRIES && gcr_clock_usec() < until_usec; try++) {
		int result = gcr_vmm_ask(vmm, GCR_MESSAGE_PREPARE, error);

		if (result < 0)
			return result;
		result = begin_halt(vmm, error);
		if (result == -EBUSY) {
			result = check_leave(vmm, error);
			if (result < 0)
				return result;
			continue;
		}
		if (result < 0)
			return result;
		vmm->halt_ends_usec = gcr_clock_usec() + PREPARE_USEC;
		result = gcr_vmm_ask(vmm, GCR_MESSAGE_PREPARE, error);
		if (result < 0 || vmm->halt)
			return result;
	}
	return gcr_error_set(error, EBUSY,
			     "its threads could not be stopped while its managed memory comes "
			     "back; try again");
}

/*
 * Does the program have managed memory? The library's page tells that even if the files are lost.
 * True if the page cannot be read.
 */
static bool has_managed(struct gcr_vmm *vmm)
{
	struct gcr_page_facts facts;
	struct gcr_error unused;
	int r;

	if (vmm->count > vmm->device_count)
		return true;
	r = gcr_vmm_facts(vmm, &facts, &unused);
	return r < 0 || facts.managed_bytes > 0;
}

int gcr_vmm_bring_in(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error)
{
	int result = 0;

	if (has_managed(vmm))
		result = stop_harmlessly(vmm, error);
	vmm->halt_ends_usec = halt_end(vmm);
	if (!result)
		result = gcr_vmm_ask(vmm, type, error);
	gcr_halt_end(TAKE_PTR(vmm->halt));
	return result;
}

int gcr_vmm_hand_over(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_hand_over request = {0};
	int result;

	if (shrinking_pays(vmm))
		request.flags |= GCR_HAND_OVER_SHRINK;
	pthread_mutex_lock(&process->lock);
	snprintf(request.generation, sizeof(request.generation), "%s", process->generation);
	pthread_mutex_unlock(&process->lock);
	result = ask_with(vmm, GCR_MESSAGE_HAND_OVER, &request, sizeof(request), NULL, 0, error);
	/* The workers have been released because of the stop. */
	if (!result && gcr_task_stopped(vmm->driver.task))
		return gcr_driver_session_stopped(error);
	return result;
}

int gcr_vmm_receive(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_range range = {0};
	int result = 0;

	vmm->is_receiving = true;
	while (range.first < vmm->device_count && !result) {
		size_t left = vmm->device_count - range.first;

		/* Even if no answer comes, the program may have some of the memory from now on. */
		vmm->phase = GCR_PRELOAD_INCOMING;

		range.count = left < GCR_MESSAGE_FDS_MAX ? (uint32_t)left : GCR_MESSAGE_FDS_MAX;
		result = ask_with(vmm, GCR_MESSAGE_RECEIVE, &range, sizeof(range),
				  &vmm->handles[range.first], range.count, error);
		for (uint32_t i = 0; i < range.count; i++) {
			close(vmm->handles[range.first + i]);
			vmm->handles[range.first + i] = -1;
		}
		range.first += range.count;
		if (!result && gcr_task_stopped(vmm->driver.task))
			result = gcr_driver_session_stopped(error);
	}
	vmm->is_receiving = false;
	if (!result)
		gcr_vmm_drop_handles(vmm);
	return result;
}

/* SPDX-License-Identifier: MIT */
/*
 * Closing the gate and opening it again: the agent's side. It only ever polls, so that it can be
 * called away at any time.
 */
#include "backend/preload/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/capture.h"
#include "backend/preload/context.h"
#include "backend/preload/thread.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define YIELDS	       64 /* looks at the slots with nothing between them but sched_yield(2) */
#define PAUSE_USEC     50 /* between looks, at first */
#define PAUSE_MAX_USEC 1000

struct gcr_gate_pass gcr_gate_enter(enum gcr_entry entry)
{
	return (struct gcr_gate_pass){.outermost = gcr_thread_enter(entry)};
}

void gcr_gate_leave(struct gcr_gate_pass *pass)
{
	gcr_thread_leave(pass->outermost);
}

void gcr_gate_submitted(void)
{
	gcr_thread_submitted();
}

void gcr_gate_exempt_thread(void)
{
	gcr_thread.exempt++;
}

/* What is being waited for, and how long that may go on. */
struct patience {
	int64_t deadline_usec;
	int wake_fd;
	unsigned int looks;
	int64_t pause_usec;
};

/* 0: look again; -ETIMEDOUT; -EINTR: the wake descriptor. */
static int pause_a_little(struct patience *patience)
{
	struct pollfd wake = {.fd = patience->wake_fd, .events = POLLIN};
	struct timespec pause = {0};
	int64_t now;

	if (patience->looks++ < YIELDS && patience->looks % 16 != 0) {
		sched_yield();
		return 0;
	}
	now = gcr_clock_usec();
	if (now >= patience->deadline_usec)
		return -ETIMEDOUT;
	if (patience->looks >= YIELDS) {
		if (patience->pause_usec < PAUSE_MAX_USEC)
			patience->pause_usec += PAUSE_USEC;
		pause.tv_nsec = (long)patience->pause_usec * 1000;
	}
	if (ppoll(&wake, 1, &pause, NULL) > 0)
		return -EINTR;
	return 0;
}

void gcr_gate_open(void)
{
	__atomic_store_n(&gcr_gate_closed, 0, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &gcr_gate_closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int close_gate(struct gcr_error *error)
{
	int r;

	__atomic_store_n(&gcr_gate_closed, 1, __ATOMIC_SEQ_CST);
	r = gcr_threads_fence();
	if (r == 0)
		return 0;
	gcr_gate_open();
	return gcr_error_set(error, EOPNOTSUPP, "membarrier(2) does not work any more: %s",
			     gcr_error_name(-r));
}

/* ---- calls and captures ---- */

static const char *name_of(uint32_t inside)
{
	const char *name = NULL;

	if (inside > GCR_ENTRIES)
		name = gcr_unknown_name(inside - 1 - GCR_ENTRIES);
	else if (inside > 0)
		name = gcr_entry_points[inside - 1].symbol;
	return name ? name : "a call of the driver";
}

static bool is_waiting(uint32_t inside)
{
	return inside > 0 && inside <= GCR_ENTRIES &&
	       gcr_entry_points[inside - 1].class == GCR_ENTRY_WAIT;
}

static int say_inside(int r, struct gcr_error *error)
{
	uint32_t inside = 0, tid = 0;

	gcr_threads_inside(&inside, &tid);
	return gcr_error_set(error, -r, "%s has not returned (thread %u)%s", name_of(inside), tid,
			     is_waiting(inside) ? ": the GPU has not finished its work" : "");
}

static bool is_closed(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_RELAXED);
}

static int wait_for_captures(struct patience *patience, struct gcr_error *error)
{
	int r;

	for (;;) {
		gcr_captures_verify();
		if (!gcr_captures_open())
			return 0;
		/* Begun by a call that was inside for long. */
		if (is_closed())
			gcr_gate_open();
		patience->looks = YIELDS;
		r = pause_a_little(patience);
		if (r < 0)
			return gcr_error_set(error, -r,
					     "a stream capture is open (begun by thread %u)",
					     gcr_captures_thread());
	}
}

/*
 * Not while a capture is open: what is asked of the driver then would break it, and whoever has
 * begun it may need other threads to come to its end. If a call that was on its way in begins one,
 * the gate opens again.
 */
static int close_between_captures(struct patience *patience, struct gcr_error *error)
{
	uint32_t inside, tid;
	int r;

	for (;;) {
		r = wait_for_captures(patience, error);
		if (r < 0)
			return r;
		r = close_gate(error);
		if (r < 0)
			return r;
		do {
			if (gcr_captures_open())
				break;
			if (!gcr_threads_inside(&inside, &tid) && !gcr_captures_open())
				return 0;
			r = pause_a_little(patience);
		} while (r == 0);
		if (r == 0) {
			gcr_gate_open();
			continue;
		}
		return say_inside(r, error);
	}
}

/* ---- idleness ---- */

/* What the driver says that it should not. */
static int say_driver(const char *what, CUresult result, struct gcr_error *error)
{
	__typeof__(cuGetErrorName) *get_name = GCR_REAL(cuGetErrorName);
	const char *name = NULL;

	if (!get_name || get_name(result, &name) != CUDA_SUCCESS || !name)
		name = "an error without a name";
	return gcr_error_set(error, EIO, "%s: %s (%d)", what, name, (int)result);
}

static int wait_for_event(CUevent event, CUdevice device, struct patience *patience,
			  struct gcr_error *error)
{
	__typeof__(cuEventQuery) *query = GCR_REAL(cuEventQuery);
	CUresult result;
	int r;

	for (;;) {
		result = query ? query(event) : CUDA_ERROR_NOT_FOUND;
		if (result == CUDA_SUCCESS)
			return 0;
		if (result != CUDA_ERROR_NOT_READY)
			return say_driver("cuEventQuery", result, error);
		r = pause_a_little(patience);
		if (r < 0)
			return gcr_error_set(error, -r, "GPU %d has not finished its work",
					     (int)device);
	}
}

/*
 * The work of every stream of the context, also of those that wait for nobody, of the default ones
 * of all threads, of host functions. cuCtxRecordEvent needs no current context, takes 0.4 us
 * whatever there is (H100, 580.159), and breaks a capture that is open.
 */
static int wait_for_context(CUcontext context, struct patience *patience, struct gcr_error *error)
{
	__typeof__(cuCtxRecordEvent) *record = GCR_REAL(cuCtxRecordEvent);
	__typeof__(cuEventCreate) *create = GCR_REAL(cuEventCreate);
	__typeof__(cuEventDestroy_v2) *destroy = GCR_REAL(cuEventDestroy_v2);
	__typeof__(cuCtxGetDevice) *get_device = GCR_REAL(cuCtxGetDevice);
	CUdevice device = CU_DEVICE_INVALID;
	CUevent event;
	CUresult result;
	int r;

	if (!record || !create || !destroy || !get_device)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the driver is too old to say whether a context is idle");
	get_device(&device);
	result = create(&event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS)
		return say_driver("cuEventCreate", result, error);
	result = record(context, event);
	if (result == CUDA_SUCCESS)
		r = wait_for_event(event, device, patience, error);
	else if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		r = gcr_error_set(error, EOPNOTSUPP,
				  "a stream of GPU %d is in a capture whose beginning was not seen",
				  (int)device);
	else
		r = say_driver("cuCtxRecordEvent", result, error);
	destroy(event);
	return r;
}

static int wait_for_contexts(struct patience *patience, struct gcr_error *error)
{
	__typeof__(cuCtxPushCurrent_v2) *push = GCR_REAL(cuCtxPushCurrent_v2);
	__typeof__(cuCtxPopCurrent_v2) *pop = GCR_REAL(cuCtxPopCurrent_v2);
	size_t count = gcr_contexts_alive(NULL, 0);
	_cleanup_free_ CUcontext *contexts = calloc(count + 1, sizeof(CUcontext));
	CUcontext popped;
	CUresult result;
	int r = 0;

	if (!contexts)
		return gcr_error_set(error, ENOMEM, "no memory to list the contexts");
	if (count && (!push || !pop))
		return gcr_error_set(error, EOPNOTSUPP, "the driver is too old");
	/* Nobody makes or destroys one now. */
	gcr_contexts_alive(contexts, count);
	for (size_t i = 0; i < count && r == 0; i++) {
		result = push(contexts[i]);
		if (result != CUDA_SUCCESS)
			return say_driver("cuCtxPushCurrent", result, error);
		r = wait_for_context(contexts[i], patience, error);
		pop(&popped);
	}
	return r;
}

/* ---- the gate ---- */

int gcr_gate_close(int64_t timeout_usec, int wake_fd, struct gcr_error *error)
{
	struct patience patience = {
		.deadline_usec = gcr_clock_usec() + timeout_usec,
		.wake_fd = wake_fd,
	};
	int r = close_between_captures(&patience, error);

	return r < 0 ? r : wait_for_contexts(&patience, error);
}

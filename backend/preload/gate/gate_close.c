/* SPDX-License-Identifier: MIT */
/*
 * The agent's side of the gate: closing and opening. All waits poll, so that they can be
 * interrupted at any time.
 */
#include "backend/preload/gate/gate_close.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/preload/gate/capture.h"
#include "backend/preload/gate/context.h"
#include "backend/preload/gate/ending.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/thread.h"
#include "backend/preload/gate/unknown_names.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define YIELDS	       64 /* first looks at the slots, with only sched_yield(2) in between */
#define PAUSE_USEC     50 /* first pause between looks */
#define PAUSE_MAX_USEC 1000

#define VERIFY_USEC	  1000 /* for calls to return, before the driver is asked about captures */
#define VERIFY_AGAIN_USEC (256 * GCR_USEC_PER_MSEC)
#define RETREAT_USEC	  1000 /* first limit for blocking threads that may be the driver's */

/* The limits of a wait, and its progress. Times in microseconds, monotonic. */
struct patience {
	int64_t deadline_usec;
	int wake_fd;
	int64_t retreat_usec; /* when to give up if the driver may be blocked; 0: never */
	unsigned int looks;
	int64_t pause_usec;
};

/*
 * One step of a wait. 0: look again; -ETIMEDOUT; -EINTR: @wake_fd is readable; -EAGAIN: a thread
 * that may be the driver's is blocked at the gate; -ESRCH: the program is ending.
 */
static int pause_a_little(void *argument)
{
	struct patience *patience = argument;
	struct pollfd wake = {.fd = patience->wake_fd, .events = POLLIN};
	struct timespec pause = {0};
	int64_t now;

	if (patience->looks++ < YIELDS && patience->looks % 16 != 0) {
		sched_yield();
		return 0;
	}
	if (gcr_is_ending())
		return -ESRCH;
	now = gcr_clock_usec();
	if (now >= patience->deadline_usec)
		return -ETIMEDOUT;
	if (patience->retreat_usec && now >= patience->retreat_usec && gcr_threads_held())
		return -EAGAIN;
	if (patience->looks >= YIELDS) {
		if (patience->pause_usec < PAUSE_MAX_USEC)
			patience->pause_usec += PAUSE_USEC;
		pause.tv_nsec = (long)patience->pause_usec * 1000;
	}
	if (ppoll(&wake, 1, &pause, NULL) > 0)
		return -EINTR;
	return 0;
}

static void set_level(enum gcr_gate_level level)
{
	uint32_t before = __atomic_exchange_n(&gcr_gate_closed, (uint32_t)level, __ATOMIC_SEQ_CST);

	if (before > (uint32_t)level)
		syscall(SYS_futex, &gcr_gate_closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void gcr_gate_open(void)
{
	set_level(GCR_GATE_LEVEL_OPEN);
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

/*
 * Closes the gate and waits until no thread is inside. Without @despite_captures also returns 0
 * when a capture is open: a thread that is inside may wait for others, which must pass the gate to
 * end it. Errors, with a message: those of pause_a_little(); -EOPNOTSUPP: membarrier(2) does not
 * work, and the gate is open again.
 */
static int close_and_drain(struct patience *patience, bool despite_captures,
			   struct gcr_error *error)
{
	uint32_t inside, tid;
	int r;

	for (;;) {
		set_level(GCR_GATE_LEVEL_CLOSED);
		while (gcr_threads_inside(&inside, &tid)) {
			if (!despite_captures && gcr_captures_open())
				return 0;
			r = pause_a_little(patience);
			if (r < 0)
				return say_inside(r, error);
		}
		set_level(GCR_GATE_LEVEL_DRAINED);
		r = gcr_threads_fence();
		if (r < 0) {
			gcr_gate_open();
			return gcr_error_set(error, EOPNOTSUPP,
					     "membarrier(2) does not work any more: %s",
					     gcr_error_name(-r));
		}
		if (!gcr_threads_inside(&inside, &tid))
			return 0;
	}
}

/*
 * Asks the driver about captures that may have ended without the library's knowledge. A thread that
 * ends a capture may destroy its stream and context next, so no thread may be inside during the
 * queries. Leaves the gate open. 0, or -EOPNOTSUPP.
 */
static int verify_captures(const struct patience *patience, struct gcr_error *error)
{
	struct patience brief = {
		.deadline_usec = gcr_clock_usec() + VERIFY_USEC,
		.wake_fd = patience->wake_fd,
	};
	int r = close_and_drain(&brief, true, error);

	if (r == 0)
		gcr_captures_verify();
	gcr_gate_open();
	return r == -EOPNOTSUPP ? r : 0;
}

/* Waits with the gate open, since the thread that began a capture may need others to end it. */
static int wait_for_captures(struct patience *patience, struct gcr_error *error)
{
	int64_t rest_usec = VERIFY_USEC, verify_usec = 0;
	int r;

	while (gcr_captures_open()) {
		if (gcr_gate_is_closing())
			gcr_gate_open();
		if (gcr_clock_usec() >= verify_usec) {
			r = verify_captures(patience, error);
			if (r < 0)
				return r;
			verify_usec = gcr_clock_usec() + rest_usec;
			if (rest_usec < VERIFY_AGAIN_USEC)
				rest_usec *= 2;
			continue;
		}
		patience->looks = YIELDS;
		r = pause_a_little(patience);
		if (r < 0)
			return gcr_error_set(error, -r,
					     "a stream capture is open (begun by thread %u)",
					     gcr_captures_thread());
	}
	return 0;
}

/* ---- the gate ---- */

/*
 * Closes the gate while no capture is open: checking whether a context is idle would break a
 * capture. If a call that was still inside begins a capture, the gate opens again.
 */
static int close_between_captures(struct patience *patience, struct gcr_error *error)
{
	int r;

	do {
		r = wait_for_captures(patience, error);
		if (r == 0)
			r = close_and_drain(patience, false, error);
	} while (r == 0 && gcr_captures_open());
	return r;
}

/* Lets threads pass that may be the driver's, for @usec. */
static int let_through(struct patience *patience, int64_t usec, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + usec;
	int r = 0;

	patience->retreat_usec = 0;
	set_level(GCR_GATE_LEVEL_CLOSING);
	while (r == 0 && gcr_clock_usec() < until_usec)
		r = pause_a_little(patience);
	/* @error keeps the last message, which names the work that needs the threads. */
	if (r < 0 && error)
		error->number = -r;
	return r;
}

/*
 * The GPU work that the agent waits for may need a host function of the program, which the driver
 * runs and whose calls wait at the gate. Whether a thread is the driver's can only be guessed, and
 * while such threads may pass, the GPU cannot be known to be idle. So closing is tried alternately
 * with and without these threads, for intervals that double.
 */
static int close_gate(int64_t timeout_usec, int wake_fd, struct gcr_error *error)
{
	struct patience patience = {
		.deadline_usec = gcr_clock_usec() + timeout_usec,
		.wake_fd = wake_fd,
	};
	int64_t retreat_usec = RETREAT_USEC;
	int r;

	for (;;) {
		patience.retreat_usec = gcr_clock_usec() + retreat_usec;
		r = close_between_captures(&patience, error);
		if (r == 0)
			r = gcr_contexts_wait(pause_a_little, &patience, error);
		if (r != -EAGAIN)
			return r;
		r = let_through(&patience, retreat_usec, error);
		if (r < 0)
			return r;
		retreat_usec *= 2;
	}
}

int gcr_gate_close(int64_t timeout_usec, int wake_fd, struct gcr_error *error)
{
	int r = gcr_is_ending() ? -ESRCH : close_gate(timeout_usec, wake_fd, error);

	/* The thread that runs the exit handler was inside: the flag is final now. */
	if (!gcr_is_ending())
		return r;
	gcr_gate_open();
	return gcr_error_set(error, ESRCH, "the program is ending");
}

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
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/preload/capture.h"
#include "backend/preload/context.h"
#include "backend/preload/ending.h"
#include "backend/preload/thread.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define YIELDS	       64 /* looks at the slots with nothing between them but sched_yield(2) */
#define PAUSE_USEC     50 /* between looks, at first */
#define PAUSE_MAX_USEC 1000

#define VERIFY_USEC	  1000 /* for calls to return, so that captures can be asked after */
#define VERIFY_AGAIN_USEC (256 * GCR_USEC_PER_MSEC)
#define RETREAT_USEC	  1000 /* a closed gate holds up what may be the driver's, at first */

struct gcr_gate_pass gcr_gate_enter(enum gcr_entry entry)
{
	return (struct gcr_gate_pass){.outermost = gcr_thread_enter(entry)};
}

void gcr_gate_leave(struct gcr_gate_pass *pass)
{
	gcr_thread_leave(pass->outermost);
}

int gcr_gate_stop_cancel(void)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

void gcr_gate_let_cancel(const int *before)
{
	pthread_setcancelstate(*before, NULL);
}

bool gcr_gate_is_closing(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_RELAXED);
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
	int64_t retreat_usec; /* when to leave off if a thread is held, 0: never */
	unsigned int looks;
	int64_t pause_usec;
};

/*
 * 0: look again; -ETIMEDOUT; -EINTR: the wake descriptor; -EAGAIN: a thread is held; -ESRCH: the
 * program is ending.
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
 * Close the gate, to the end that nobody is inside. 0 also if there is a capture, unless
 * @despite_captures: whoever is inside may wait for others who have to come to its end.
 */
static int settle(struct patience *patience, bool despite_captures, struct gcr_error *error)
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
		set_level(GCR_GATE_LEVEL_SETTLED);
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
 * Ask the driver about captures that may have ended without our knowledge. Whoever ends one may
 * destroy its stream and its context next: so nobody may be inside, for a moment.
 */
static int verify_captures(const struct patience *patience, struct gcr_error *error)
{
	struct patience brief = {
		.deadline_usec = gcr_clock_usec() + VERIFY_USEC,
		.wake_fd = patience->wake_fd,
	};
	int r = settle(&brief, true, error);

	if (r == 0)
		gcr_captures_verify();
	gcr_gate_open();
	return r == -EOPNOTSUPP ? r : 0;
}

/* With the gate open, as whoever has begun one may need other threads to come to its end. */
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
 * Not while a capture is open: to ask whether a context is idle would break it. If a call that was
 * on its way in begins one, the gate opens again.
 */
static int close_between_captures(struct patience *patience, struct gcr_error *error)
{
	int r;

	do {
		r = wait_for_captures(patience, error);
		if (r == 0)
			r = settle(patience, false, error);
	} while (r == 0 && gcr_captures_open());
	return r;
}

/* What may be the driver's gets through for a while. */
static int let_through(struct patience *patience, int64_t usec, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + usec;
	int r = 0;

	patience->retreat_usec = 0;
	set_level(GCR_GATE_LEVEL_CLOSING);
	while (r == 0 && gcr_clock_usec() < until_usec)
		r = pause_a_little(patience);
	/* The words say what it was that needed them. */
	if (r < 0 && error)
		error->number = -r;
	return r;
}

/*
 * The work that is to end may need a function of the program that the driver runs, and that waits
 * at the gate. Whether a thread is the driver's can only be guessed, so with those that may be let
 * through nothing is certain: it is tried with and without them, for longer and longer.
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

	/* Who notices the exit is inside meanwhile: after a close the flag says how it is. */
	if (!gcr_is_ending())
		return r;
	gcr_gate_open();
	return gcr_error_set(error, ESRCH, "the program is ending");
}

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
#include <sys/syscall.h>
#include <unistd.h>

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

static void set_closed(uint32_t closed)
{
	__atomic_store_n(&gcr_gate_closed, closed, __ATOMIC_SEQ_CST);
	if (closed)
		gcr_threads_fence();
	else
		syscall(SYS_futex, &gcr_gate_closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int wait_for_calls(struct patience *patience, struct gcr_error *error)
{
	enum gcr_entry entry = GCR_ENTRIES;
	uint32_t tid = 0;
	int r;

	while (gcr_threads_inside(&entry, &tid)) {
		r = pause_a_little(patience);
		if (r < 0)
			return gcr_error_set(error, -r, "%s has not returned (thread %u)",
					     entry < GCR_ENTRIES ? gcr_entry_points[entry].symbol
								 : "a call of the driver",
					     tid);
	}
	return 0;
}

int gcr_gate_close(int64_t timeout_usec, int wake_fd, struct gcr_error *error)
{
	struct patience patience = {
		.deadline_usec = gcr_clock_usec() + timeout_usec,
		.wake_fd = wake_fd,
	};

	set_closed(1);
	return wait_for_calls(&patience, error);
}

void gcr_gate_open(void)
{
	set_closed(0);
}

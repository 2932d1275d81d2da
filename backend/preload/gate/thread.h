/* SPDX-License-Identifier: MIT */
/*
 * The fast path through the gate that every call of the driver takes, inlined into its wrapper. The
 * page's slot of a thread says what the thread is doing; the slow paths are in thread.c.
 *
 * An open gate costs 1.6 ns a call, 2.7 ns for cuLaunchKernel and its 11 arguments: wrapper and
 * all, around an empty function (AMD EPYC, gcc 12 -O2; median of 21 times 5 million calls).
 */
#ifndef GCR_PRELOAD_THREAD_H
#define GCR_PRELOAD_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/preload/driver/entry_points.h"
#include "lib/protocol.h"

struct gcr_thread {
	struct gcr_page_slot *slot; /* NULL: the thread has none (yet), and is counted instead */
	uint32_t exempt;	    /* not 0: passes a closed gate (the agent) */
	uint32_t counted;	    /* 1: inside without a slot */
	uint32_t is_drivers;	    /* 1: has run a function that was given to the driver */
	uint32_t wanting;	    /* number of its calls that count in the page's `wanting` */
	uint64_t answered; /* submissions in its slot when it last learned that work has ended */
};

extern _Thread_local struct gcr_thread gcr_thread __attribute__((tls_model("initial-exec")));

/*
 * Threads that wait at the gate sleep on this variable (futex(2)). A closing gate still lets
 * through, and counts as inside, threads that may be the driver's: the work that must end may
 * depend on them. When no thread was seen inside, the gate is drained: then not even a nested call
 * gets through. Its outer call is then only just entering, and was interrupted by a signal handler.
 */
enum gcr_gate_level {
	GCR_GATE_LEVEL_OPEN = 0,
	GCR_GATE_LEVEL_CLOSING = 1,
	GCR_GATE_LEVEL_CLOSED = 2,
	GCR_GATE_LEVEL_DRAINED = 3,
};
extern uint32_t gcr_gate_closed; /* enum gcr_gate_level */

/*
 * gcr_thread_enter() in all but the ordinary case: no slot, a nested call, a closed gate. Keeps
 * errno.
 */
bool gcr_thread_enter_slowly(enum gcr_entry entry);
/* gcr_thread_leave() and gcr_thread_submitted() for a thread without a slot. */
void gcr_thread_leave_counted(void);
void gcr_thread_submitted_counted(void);

/*
 * For the thread that closes the gate. After gcr_threads_fence(), gcr_threads_inside() sees every
 * thread that did not see the gate closed. -errno: no such fence is available.
 * gcr_threads_inside(): is any thread inside a driver call? *ret_inside is the call of one such
 * thread, as in its slot, and *ret_tid the thread's id (0: not known).
 */
int gcr_threads_fence(void);
bool gcr_threads_inside(uint32_t *ret_inside, uint32_t *ret_tid);

/*
 * Does a thread that may be the driver's wait at the closed gate? A gate that is only closing lets
 * such a thread through.
 */
bool gcr_threads_held(void);

#define gcr_likely(condition) __builtin_expect(!!(condition), 1)

/*
 * Enters the gate. Returns whether this is the outermost call of the thread. The processor may
 * reorder the store to `inside` and the load of the gate: the thread that closes the gate orders
 * them, for all threads, by membarrier(2). If that is not available for a thread, the thread has no
 * slot.
 */
static inline __attribute__((always_inline)) bool gcr_thread_enter(enum gcr_entry entry)
{
	struct gcr_page_slot *slot = gcr_thread.slot;

	if (gcr_likely(slot) && gcr_likely(!__atomic_load_n(&slot->inside, __ATOMIC_RELAXED))) {
		__atomic_store_n(&slot->inside, 1 + (uint32_t)entry, __ATOMIC_RELAXED);
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		if (gcr_likely(!__atomic_load_n(&gcr_gate_closed, __ATOMIC_ACQUIRE)))
			return true;
		__atomic_store_n(&slot->inside, 0, __ATOMIC_RELEASE);
	}
	return gcr_thread_enter_slowly(entry);
}

static inline __attribute__((always_inline)) void gcr_thread_leave(bool outermost)
{
	struct gcr_page_slot *slot = gcr_thread.slot;

	if (!gcr_likely(outermost))
		return;
	if (gcr_likely(slot))
		__atomic_store_n(&slot->inside, 0, __ATOMIC_RELEASE);
	else
		gcr_thread_leave_counted();
}

/* Records that the call submits work to the GPU. */
static inline __attribute__((always_inline)) void gcr_thread_submitted(void)
{
	struct gcr_page_slot *slot = gcr_thread.slot;

	if (gcr_likely(slot))
		__atomic_store_n(&slot->submissions,
				 __atomic_load_n(&slot->submissions, __ATOMIC_RELAXED) + 1,
				 __ATOMIC_RELAXED);
	else
		gcr_thread_submitted_counted();
}

/*
 * Records that the call asked whether work has ended, and that it has. A thread that asks again,
 * and has submitted none since, may only be polling now and then: it is not reported as wanting the
 * GPU.
 */
static inline __attribute__((always_inline)) void gcr_thread_answered(void)
{
	struct gcr_page_slot *slot = gcr_thread.slot;

	if (gcr_likely(slot))
		gcr_thread.answered = __atomic_load_n(&slot->submissions, __ATOMIC_RELAXED);
}

#endif

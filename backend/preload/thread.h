/* SPDX-License-Identifier: MIT */
/*
 * The way through the gate that every call of the driver takes, inlined into its wrapper. What a
 * thread is doing stands in its slot of the page; the rest is in thread.c.
 *
 * An open gate costs 1.6 ns a call, 2.7 ns for cuLaunchKernel and its 11 arguments: wrapper and
 * all, around an empty function (AMD EPYC, gcc 12 -O2; median of 21 times 5 million calls).
 */
#ifndef GCR_PRELOAD_THREAD_H
#define GCR_PRELOAD_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/preload/entry_points.h"
#include "lib/protocol.h"

struct gcr_thread {
	struct gcr_page_slot *slot; /* NULL: it has none (yet), and is counted instead */
	uint32_t exempt;	    /* not 0: passes a closed gate, the agent's */
	uint32_t counted;	    /* 1: inside without a slot */
	uint32_t is_drivers;	    /* 1: has run a function that the driver was given */
	uint32_t wanting;	    /* its calls that count in the page's `wanting` */
	uint64_t answered;	    /* submissions in its slot when it last learned of an end */
};

extern _Thread_local struct gcr_thread gcr_thread __attribute__((tls_model("initial-exec")));

/*
 * Threads that wait sleep on it (futex(2)). One that is closing lets through, and counts as inside,
 * what may be threads of the driver's: the work that is to end may need what they do. Once nobody
 * was seen inside it is settled: then not even a nested call gets through. The one that it seems to
 * be nested in is just on its way in, and the handler of a signal has come in between.
 */
enum gcr_gate_level {
	GCR_GATE_LEVEL_OPEN = 0,
	GCR_GATE_LEVEL_CLOSING = 1,
	GCR_GATE_LEVEL_CLOSED = 2,
	GCR_GATE_LEVEL_SETTLED = 3,
};
extern uint32_t gcr_gate_closed; /* enum gcr_gate_level */

/* All but the ordinary: no slot, a nested call, a closed gate. Keeps errno. */
bool gcr_thread_enter_slowly(enum gcr_entry entry);
void gcr_thread_leave_counted(void);
void gcr_thread_submitted_counted(void);

/*
 * For who closes the gate. After gcr_threads_fence() a thread that did not see the gate closed is
 * seen by gcr_threads_inside(), which says of one of those that are inside what it is in, as in
 * its slot, and its id (0: not known). -errno: there is no such fence.
 */
int gcr_threads_fence(void);
bool gcr_threads_inside(uint32_t *ret_inside, uint32_t *ret_tid);

/* Does a thread wait at the closed gate that would get through one that is closing? */
bool gcr_threads_held(void);

#define gcr_likely(condition) __builtin_expect(!!(condition), 1)

/*
 * Is this the outermost call of the thread? The store to `inside` and the load of the gate may
 * change places in the processor: who closes the gate orders them, for all threads, by
 * membarrier(2). A thread for which that is not to be had has no slot.
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

/* The call gives the GPU work. */
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
 * The call has asked whether work has come to an end, and it has. A thread that asks again, and has
 * given none since, may only be looking now and then: it is not said to want the GPU.
 */
static inline __attribute__((always_inline)) void gcr_thread_answered(void)
{
	struct gcr_page_slot *slot = gcr_thread.slot;

	if (gcr_likely(slot))
		gcr_thread.answered = __atomic_load_n(&slot->submissions, __ATOMIC_RELAXED);
}

#endif

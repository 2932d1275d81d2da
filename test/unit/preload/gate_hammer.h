/* SPDX-License-Identifier: MIT */
/* For tests in which threads call the driver all the time while the gate closes and opens. */
#ifndef GPUCR_GATE_HAMMER_H
#define GPUCR_GATE_HAMMER_H

#include "test/unit/preload/test_gate.h"

static _Atomic(bool) acknowledged; /* the gate is closed: no call may run */
static _Atomic(bool) stop;	   /* the threads are to end */
static _Atomic(unsigned int) broken_in;
static _Atomic(uint64_t) calls;

/* Stands in for the driver's function, and checks that it may run now. */
static CUresult checked_query(CUstream stream)
{
	bool before = atomic_load(&acknowledged);

	for (volatile int i = 0; i < 50; i++)
		;
	if (before || atomic_load(&acknowledged))
		atomic_fetch_add(&broken_in, 1);
	atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
	return CUDA_SUCCESS;
}

/*
 * Closes and opens the gate @rounds times while @threads, which end when @stop is set, call the
 * driver: none of their calls runs while the gate is closed.
 */
static inline void hammer_gate(const pthread_t *threads, int threads_count, int rounds)
{
	for (int round = 0; round < rounds; round++) {
		uint64_t before = atomic_load(&calls);

		CLOSES();
		atomic_store(&acknowledged, true);
		for (int i = 0; i < round % 5; i++)
			sched_yield();
		atomic_store(&acknowledged, false);
		gcr_gate_open();
		while (round % 50 == 0 && atomic_load(&calls) == before)
			sched_yield();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < threads_count; i++)
		end(threads[i]);
	CHECK(atomic_load(&broken_in) == 0 && atomic_load(&calls) > 0);
}

#endif

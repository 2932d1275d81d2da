/* SPDX-License-Identifier: MIT */
/* A mutex held until the end of the scope, and the wait for a condition with a deadline. */
#ifndef GCR_LOCK_H
#define GCR_LOCK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/clock.h"

/* Locks @mutex and returns it; NULL: does nothing. */
static inline pthread_mutex_t *gcr_lock(pthread_mutex_t *mutex)
{
	if (mutex)
		pthread_mutex_lock(mutex);
	return mutex;
}

static inline void gcr_lock_cleanup(pthread_mutex_t **mutex)
{
	if (*mutex)
		pthread_mutex_unlock(*mutex);
}

#define GCR_LOCK_SCOPE(mutex)                               \
	_cleanup_(gcr_lock_cleanup) __attribute__((unused)) \
	pthread_mutex_t *lock_scope_ = gcr_lock(mutex)

/*
 * Waits for @condition, with @mutex locked, until the monotonic clock is at @deadline_usec. Returns
 * 0 if woken, which can happen without a cause, or -ETIMEDOUT.
 */
static inline int gcr_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex,
				      int64_t deadline_usec)
{
	struct timespec deadline = gcr_clock_timespec(deadline_usec);

	return -pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &deadline);
}

#endif

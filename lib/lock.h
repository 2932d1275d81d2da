/* SPDX-License-Identifier: MIT */
/* A mutex held until the end of the scope. */
#ifndef GCR_LOCK_H
#define GCR_LOCK_H

#include <pthread.h>
#include <stddef.h>

#include "lib/cleanup.h"

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

#endif

/* SPDX-License-Identifier: MIT */
/* For tests of the ids of threads: a thread of this process that does nothing. */
#ifndef GCR_TEST_IDLE_THREAD_H
#define GCR_TEST_IDLE_THREAD_H

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/unit/test.h"

struct idle_thread {
	pthread_t handle;
	pthread_mutex_t stay;
	pthread_barrier_t ready;
	pid_t id;
};

static inline void *idle_thread_main(void *data)
{
	struct idle_thread *thread = data;

	thread->id = (pid_t)syscall(SYS_gettid);
	pthread_barrier_wait(&thread->ready);
	pthread_mutex_lock(&thread->stay);
	pthread_mutex_unlock(&thread->stay);
	return NULL;
}

/* The thread runs, and @thread has its id, when this returns. */
static inline void idle_thread_start(struct idle_thread *thread)
{
	pthread_mutex_init(&thread->stay, NULL);
	pthread_barrier_init(&thread->ready, NULL, 2);
	pthread_mutex_lock(&thread->stay);
	CHECK(pthread_create(&thread->handle, NULL, idle_thread_main, thread) == 0);
	pthread_barrier_wait(&thread->ready);
}

static inline void idle_thread_end(struct idle_thread *thread)
{
	pthread_mutex_unlock(&thread->stay);
	pthread_join(thread->handle, NULL);
	pthread_barrier_destroy(&thread->ready);
}

#endif

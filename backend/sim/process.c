/* SPDX-License-Identifier: MIT */
/*
 * The state of the simulated process, how far its driver has come (initialized, deinitialized, gone
 * with a fork), and the driver's threads.
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <signal.h>

struct sim_process sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.map_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
	.lock_fd = -1,
	.control_fd = -1,
	.compute_fd = -1,
};

static atomic_bool initialized;
static atomic_bool forked;
static atomic_bool deinitialized;
static __thread bool callback_thread;

bool process_is_initialized(void)
{
	return atomic_load(&initialized);
}

void process_set_initialized(void)
{
	atomic_store(&initialized, true);
}

bool process_is_forked(void)
{
	return atomic_load(&forked);
}

void process_set_forked(void)
{
	atomic_store(&forked, true);
}

bool process_is_deinitialized(void)
{
	return atomic_load(&deinitialized);
}

void process_set_deinitialized(void)
{
	atomic_store(&deinitialized, true);
}

CUresult sim_error_of(int error)
{
	switch (error) {
	case 0:
		return CUDA_SUCCESS;
	case -ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

/* The driver's own threads block all signals. */
int sim_thread_start(pthread_t *ret_thread, void *(*function)(void *), void *argument)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(ret_thread, NULL, function, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

void sim_thread_name(const char *name)
{
	pthread_setname_np(pthread_self(), name);
}

bool sim_on_callback_thread(void)
{
	return callback_thread;
}

void sim_set_callback_thread(void)
{
	callback_thread = true;
}

/* SPDX-License-Identifier: MIT */
/*
 * Waiting for the work of all GPUs on HIP. No call of it says whether all streams are idle, those
 * of threads and those that wait for nobody too, but hipDeviceSynchronize, which cannot be left
 * before that is so. So a thread of ours makes that call, and the agent looks whether it is back:
 * one thread at a time, as it comes to its end when the work does.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>

#include "backend/preload/context.h"
#include "backend/preload/driver_error.h"
#include "backend/preload/entry_points.h"
#include "backend/preload/gate.h"
#include "backend/preload/hip_idle.h"
#include "lib/thread_name.h"

enum state {
	STATE_NONE,
	STATE_WAITS,
	STATE_IS_BACK,
};

static struct {
	_Atomic(enum state) state;
	/* The thread's, until it is back. */
	_Atomic(int) device;
	CUresult result;
} idle;

/* To wait for a GPU that the program has not used might make queues for it there. */
static bool is_used(int device)
{
	__typeof__(cuDevicePrimaryCtxGetState) *get_state = GCR_REAL(cuDevicePrimaryCtxGetState);
	unsigned int flags;
	int active;

	return !get_state || get_state(device, &flags, &active) != CUDA_SUCCESS || active;
}

static void *synchronize(void *nothing)
{
	__typeof__(cuDeviceGetCount) *get_count = GCR_REAL(cuDeviceGetCount);
	__typeof__(cuCtxSetCurrent) *set_current = GCR_REAL(cuCtxSetCurrent);
	__typeof__(cuCtxSynchronize) *wait = GCR_REAL(cuCtxSynchronize);
	CUresult result = CUDA_ERROR_NOT_FOUND;
	int count = 0;

	prctl(PR_SET_NAME, GCR_THREAD_IDLE);
	gcr_gate_exempt_thread();
	if (get_count && set_current && wait)
		result = get_count(&count);
	for (int i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (!is_used(i))
			continue;
		atomic_store(&idle.device, i);
		result = set_current(gcr_hip_context(i));
		if (result == CUDA_SUCCESS)
			result = wait();
	}
	idle.result = result;
	atomic_store(&idle.state, STATE_IS_BACK);
	return NULL;
}

static int start(struct gcr_error *error)
{
	sigset_t all, before;
	pthread_t thread;
	int r;

	atomic_store(&idle.device, 0);
	atomic_store(&idle.state, STATE_WAITS);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, NULL, synchronize, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r) {
		atomic_store(&idle.state, STATE_NONE);
		return gcr_error_set(error, r, "cannot start a thread that waits for the GPU");
	}
	pthread_detach(thread);
	return 0;
}

static int wait_for_thread(gcr_pause *pause, void *patience, struct gcr_error *error)
{
	int r;

	while (atomic_load(&idle.state) == STATE_WAITS) {
		r = pause(patience);
		if (r < 0)
			return gcr_error_set(error, -r, "GPU %d has not finished its work",
					     atomic_load(&idle.device));
	}
	return 0;
}

int gcr_contexts_wait(gcr_pause *pause, void *patience, struct gcr_error *error)
{
	/* One that was left behind may have begun before the last of the work was given. */
	int r = wait_for_thread(pause, patience, error);

	if (r == 0)
		r = start(error);
	if (r == 0)
		r = wait_for_thread(pause, patience, error);
	if (r < 0)
		return r;
	atomic_store(&idle.state, STATE_NONE);
	if (idle.result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		return gcr_error_set(
			error, EOPNOTSUPP,
			"a stream of GPU %d is in a capture whose beginning was not seen",
			atomic_load(&idle.device));
	return idle.result ? gcr_driver_failed(error, "cuCtxSynchronize", idle.result) : 0;
}

void gcr_hip_idle_forget(void)
{
	atomic_store(&idle.state, STATE_NONE);
}

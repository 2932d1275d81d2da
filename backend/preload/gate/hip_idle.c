/* SPDX-License-Identifier: MIT */
/*
 * Waiting for the work of all GPUs in HIP. Only hipDeviceSynchronize tells whether all streams are
 * idle, including those of threads and non-blocking ones, and that call cannot be interrupted. So a
 * thread of the library makes the call, and the agent polls whether the thread is back. There is
 * one such thread at a time; an abandoned one ends when the GPU's work does.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "backend/preload/gate/context.h"
#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/hip_idle.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/gate/thread.h"
#include "lib/cleanup.h"
#include "lib/thread_name.h"

#define STACK_BYTES (1u << 20) /* minimum; programs may have a tiny default */

#define PASS_PAUSE_NSEC 200000
#define PASS_PAUSES	100

enum state {
	STATE_NONE,
	STATE_WAITS,
	STATE_IS_BACK,
};

static struct {
	_Atomic(enum state) state;
	/* The agent has given up and the gate opens: the thread must not go to another GPU. */
	_Atomic(bool) abandoned;
	/* Written by the thread until it is back. */
	_Atomic(bool) calls;
	_Atomic(pid_t) thread;
	_Atomic(int) device;
	CUresult result;
} idle;

/* Has the program used the GPU? Waiting for an unused one might create queues there. */
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
	atomic_store(&idle.thread, gettid());
	if (get_count && set_current && wait)
		result = get_count(&count);
	for (int i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (!is_used(i))
			continue;
		atomic_store(&idle.device, i);
		result = set_current(gcr_hip_context(i));
		atomic_store(&idle.calls, true);
		/* Either the thread sees `abandoned`, or gcr_hip_idle_let_pass() sees `calls`. */
		if (atomic_load(&idle.abandoned))
			break;
		if (result == CUDA_SUCCESS)
			result = wait();
		atomic_store(&idle.calls, false);
	}
	atomic_store(&idle.calls, false);
	idle.result = result;
	atomic_store(&idle.state, STATE_IS_BACK);
	return NULL;
}

static int start(struct gcr_error *error)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	size_t stack_bytes = 0;
	pthread_t thread;
	int r;

	r = pthread_attr_init(&attributes);
	if (r)
		return gcr_error_set(error, r, "cannot start a thread that waits for the GPU");
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_attr_getstacksize(&attributes, &stack_bytes) == 0 && stack_bytes < STACK_BYTES)
		pthread_attr_setstacksize(&attributes, STACK_BYTES);
	atomic_store(&idle.abandoned, false);
	atomic_store(&idle.thread, 0);
	atomic_store(&idle.device, 0);
	atomic_store(&idle.state, STATE_WAITS);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, &attributes, synchronize, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (r) {
		atomic_store(&idle.state, STATE_NONE);
		return gcr_error_set(error, r, "cannot start a thread that waits for the GPU");
	}
	return 0;
}

static int wait_for_thread(gcr_pause *pause, void *patience, struct gcr_error *error)
{
	int r;

	while (atomic_load(&idle.state) == STATE_WAITS) {
		r = pause(patience);
		if (r < 0)
			atomic_store(&idle.abandoned, true);
		if (r < 0)
			return gcr_error_set(error, -r, "GPU %d has not finished its work",
					     atomic_load(&idle.device));
	}
	return 0;
}

int gcr_contexts_wait(gcr_pause *pause, void *patience, struct gcr_error *error)
{
	/* An abandoned thread may have started before the last work was given: wait twice. */
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

/* Does the thread wait for the GPU inside its call? Assumed if the thread sleeps. */
static bool thread_sleeps(void)
{
	char path[64], text[512];
	_cleanup_close_ int fd = -1;
	const char *state;
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&idle.thread));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (length <= 0)
		return true; /* the thread has ended */
	text[length] = '\0';
	state = strrchr(text, ')');
	return !state || strncmp(state, ") R", 3) != 0;
}

/*
 * hipDeviceSynchronize invalidates every capture that is open when the call begins. An abandoned
 * thread may be about to make that call and cannot be stopped. So before a capture begins, waits
 * until the thread is inside the call: until it sleeps, or for as long as a busy machine may need.
 */
void gcr_hip_idle_let_pass(void)
{
	const struct timespec pause = {.tv_nsec = PASS_PAUSE_NSEC};
	int saved_errno = errno;

	if (gcr_likely(!atomic_load(&idle.abandoned)) || !atomic_load(&idle.calls))
		return;
	for (int i = 0; i < PASS_PAUSES && atomic_load(&idle.calls); i++) {
		nanosleep(&pause, NULL);
		if (thread_sleeps())
			break;
	}
	/* Later captures need not wait. */
	atomic_store(&idle.calls, false);
	errno = saved_errno;
}

static void forget(void)
{
	atomic_store(&idle.abandoned, false);
	atomic_store(&idle.calls, false);
	atomic_store(&idle.state, STATE_NONE);
}

GCR_LISTEN(fork, forget);

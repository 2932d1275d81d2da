/* SPDX-License-Identifier: MIT */
/* The gate that every driver call passes. It is closed while the process is locked: calls wait. */
#include "backend/sim/sim.h"

#include <errno.h>

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned inside;
	bool closed;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static __thread bool inside; /* inside the gate; nested calls do not pass it again */

struct sim_call sim_enter(const char *name, int flags)
{
	struct sim_call call = {.result = CUDA_SUCCESS};

	if (process_is_deinitialized())
		call.result = CUDA_ERROR_DEINITIALIZED;
	else if (process_is_forked() ||
		 (!(flags & SIM_CALL_BEFORE_INIT) && !process_is_initialized()))
		call.result = CUDA_ERROR_NOT_INITIALIZED;
	else if (sim_on_callback_thread())
		call.result = CUDA_ERROR_NOT_PERMITTED;
	if (call.result)
		return call;

	if (flags == SIM_CALL_GATED && !inside) {
		pthread_mutex_lock(&gate.lock);
		while (gate.closed)
			pthread_cond_wait(&gate.changed, &gate.lock);
		gate.inside++;
		pthread_mutex_unlock(&gate.lock);
		call.entered = inside = true;
	}
	/* Inside the gate, so that Lock has to wait for a call that hangs. */
	call.result = fault_check(name, FAULT_CALLER, &call.after);
	if (call.result)
		sim_leave(&call);
	return call;
}

void sim_leave(struct sim_call *call)
{
	if (!call->after.late)
		fault_act(&call->after);
	if (!call->entered)
		return;
	call->entered = inside = false;
	pthread_mutex_lock(&gate.lock);
	if (--gate.inside == 0)
		pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
	if (call->after.late)
		fault_act(&call->after);
}

CUresult gate_close(uint64_t deadline_ns)
{
	struct timespec deadline = {(time_t)(deadline_ns / 1000000000ull),
				    (long)(deadline_ns % 1000000000ull)};
	int r = 0;

	pthread_mutex_lock(&gate.lock);
	gate.closed = true;
	while (gate.inside && r != ETIMEDOUT) {
		if (deadline_ns)
			r = pthread_cond_clockwait(&gate.changed, &gate.lock, CLOCK_MONOTONIC,
						   &deadline);
		else
			pthread_cond_wait(&gate.changed, &gate.lock);
	}
	r = gate.inside != 0;
	pthread_mutex_unlock(&gate.lock);
	if (r)
		gate_open();
	return r ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

void gate_open(void)
{
	pthread_mutex_lock(&gate.lock);
	gate.closed = false;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

void gate_deinitialize(void)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.closed)
		pthread_cond_wait(&gate.changed, &gate.lock);
	process_set_deinitialized();
	pthread_mutex_unlock(&gate.lock);
}

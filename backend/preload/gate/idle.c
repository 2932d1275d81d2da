/* SPDX-License-Identifier: MIT */
/* Waits for the work of all contexts, with the gate closed and without uninterruptible calls. */
#include <errno.h>
#include <stdlib.h>

#include "backend/preload/gate/context.h"
#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/event_wait.h"
#include "backend/preload/gate/green.h"
#include "lib/cleanup.h"

/*
 * Waits for the work of every stream of the context, including non-blocking streams, the default
 * streams of all threads, and host functions. cuCtxRecordEvent needs no current context, takes 0.4
 * us in any case (H100, 580.159), and breaks an open capture. For a primary context the work of its
 * green contexts is included, as documented; they are still checked one by one.
 */
static int wait_for_context(CUcontext context, gcr_pause *pause, void *patience,
			    struct gcr_error *error)
{
	__typeof__(cuCtxRecordEvent) *record = GCR_REAL(cuCtxRecordEvent);
	__typeof__(cuEventCreate) *create = GCR_REAL(cuEventCreate);
	__typeof__(cuEventDestroy_v2) *destroy = GCR_REAL(cuEventDestroy_v2);
	__typeof__(cuCtxGetDevice) *get_device = GCR_REAL(cuCtxGetDevice);
	CUdevice device = CU_DEVICE_INVALID;
	CUevent event;
	CUresult result;
	int r;

	if (!record || !create || !destroy || !get_device)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the driver is too old to say whether a context is idle");
	get_device(&device);
	result = create(&event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS)
		return gcr_driver_failed(error, "cuEventCreate", result);
	result = record(context, event);
	if (result == CUDA_SUCCESS)
		r = gcr_event_wait(event, "", device, pause, patience, error);
	else if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		r = gcr_error_set(error, EOPNOTSUPP,
				  "a stream of GPU %d is in a capture whose beginning was not seen",
				  (int)device);
	else
		r = gcr_driver_failed(error, "cuCtxRecordEvent", result);
	destroy(event);
	return r;
}

int gcr_contexts_wait(gcr_pause *pause, void *patience, struct gcr_error *error)
{
	__typeof__(cuCtxPushCurrent_v2) *push = GCR_REAL(cuCtxPushCurrent_v2);
	__typeof__(cuCtxPopCurrent_v2) *pop = GCR_REAL(cuCtxPopCurrent_v2);
	size_t count = gcr_contexts_alive(NULL, 0);
	_cleanup_free_ CUcontext *contexts = calloc(count + 1, sizeof(CUcontext));
	CUcontext popped;
	CUresult result;
	int r = 0;

	if (!contexts)
		return gcr_error_set(error, ENOMEM, "no memory to list the contexts");
	if (count && (!push || !pop))
		return gcr_error_set(error, EOPNOTSUPP, "the driver is too old");
	/* With the gate closed no thread makes or destroys a context. */
	gcr_contexts_alive(contexts, count);
	for (size_t i = 0; i < count && r == 0; i++) {
		result = push(contexts[i]);
		if (result != CUDA_SUCCESS)
			return gcr_driver_failed(error, "cuCtxPushCurrent", result);
		r = wait_for_context(contexts[i], pause, patience, error);
		pop(&popped);
	}
	return r < 0 ? r : gcr_greens_wait(pause, patience, error);
}

/* SPDX-License-Identifier: MIT */
/*
 * The list of green contexts, and waiting for their work. cuGreenCtxRecordEvent covers all streams
 * of a green context, made by cuGreenCtxStreamCreate or while the context was current. It works
 * without making the green context current, which the driver allows to one thread at a time. The
 * event belongs to the primary context. `lock` guards the list; no driver call is made with it
 * held.
 */
#include "backend/preload/gate/green.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/gate/ending.h"
#include "backend/preload/gate/event_wait.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

/* Not declared in cuda_api.h. */
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx);
CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
			  unsigned int flags);
CUresult cuGreenCtxDestroy(CUgreenCtx hCtx);
CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent);

struct green {
	CUgreenCtx handle; /* NULL: the green context is destroyed */
	CUcontext context; /* the handle as a CUcontext */
	CUcontext owner;   /* the primary context of the device */
	CUdevice device;
	CUevent last; /* if destroyed: an event behind all its work, which may still be running */
};

static struct {
	pthread_mutex_t lock;
	struct green *list;
	size_t count, room;
} greens = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the list ---- */

static size_t count_all(void)
{
	return __atomic_load_n(&greens.count, __ATOMIC_ACQUIRE);
}

/* Removes entry @i from the list. Lock: greens. */
static void remove_at(size_t i)
{
	greens.list[i] = greens.list[greens.count - 1];
	__atomic_store_n(&greens.count, greens.count - 1, __ATOMIC_RELEASE);
}

static void insert(const struct green *green)
{
	GCR_LOCK_SCOPE(&greens.lock);

	if (greens.count == greens.room) {
		size_t room = greens.room ? 2 * greens.room : 16;
		struct green *list = realloc(greens.list, room * sizeof(*list));

		/* The agent cannot wait for the work of this green context. */
		if (!list) {
			gcr_gate_incomplete("a green context that is not known");
			return;
		}
		greens.list = list;
		greens.room = room;
	}
	greens.list[greens.count] = *green;
	__atomic_store_n(&greens.count, greens.count + 1, __ATOMIC_RELEASE);
}

/* Removes the green context @handle from the list. False: there is none. */
static bool take_out(CUgreenCtx handle, struct green *ret_green)
{
	GCR_LOCK_SCOPE(&greens.lock);

	for (size_t i = 0; handle && i < greens.count; i++) {
		if (greens.list[i].handle != handle)
			continue;
		*ret_green = greens.list[i];
		remove_at(i);
		return true;
	}
	return false;
}

static bool get(size_t i, struct green *ret_green)
{
	GCR_LOCK_SCOPE(&greens.lock);

	if (i >= greens.count)
		return false;
	*ret_green = greens.list[i];
	return true;
}

/*
 * Removes the entry at @i if its green context is destroyed; the context's work may still be
 * running. False: no such entry, or the context is not destroyed.
 */
static bool take_destroyed(size_t i, struct green *ret_green)
{
	GCR_LOCK_SCOPE(&greens.lock);

	if (i >= greens.count || greens.list[i].handle)
		return false;
	*ret_green = greens.list[i];
	remove_at(i);
	return true;
}

CUcontext gcr_green_owner(CUcontext context)
{
	if (!context || count_all() == 0)
		return context;
	GCR_LOCK_SCOPE(&greens.lock);
	for (size_t i = 0; i < greens.count; i++)
		if (greens.list[i].handle && greens.list[i].context == context)
			return greens.list[i].owner;
	return context;
}

bool gcr_green_is_owner(CUcontext context)
{
	GCR_LOCK_SCOPE(&greens.lock);

	for (size_t i = 0; i < greens.count; i++)
		if (greens.list[i].handle && greens.list[i].owner == context)
			return true;
	return false;
}

/*
 * Called when the primary context of @device is gone: removes its green contexts from the list. If
 * the program has not destroyed one of them before, the process can only be frozen by the engine
 * `driver` from now on: the documentation does not say whether the driver still knows that one.
 */
static void primary_gone(CUdevice device)
{
	bool is_left = false;

	{
		GCR_LOCK_SCOPE(&greens.lock);
		for (size_t i = greens.count; i-- > 0;) {
			if (greens.list[i].device != device)
				continue;
			/* The driver destroys an event with its context. */
			is_left = is_left || greens.list[i].handle;
			remove_at(i);
		}
	}
	if (is_left)
		gcr_gate_incomplete("a green context whose primary context was reset");
}

GCR_LISTEN(primary_gone, primary_gone);

static void forget(void)
{
	/* A thread of the parent may have held the lock at the fork; the list is the parent's. */
	greens.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	greens.list = NULL;
	greens.count = greens.room = 0;
}

GCR_LISTEN(fork, forget);

/* ---- an event behind all work of a green context ---- */

static CUresult push_owner(const struct green *green)
{
	__typeof__(cuCtxPushCurrent_v2) *push = GCR_REAL(cuCtxPushCurrent_v2);

	if (!push || !GCR_REAL(cuCtxPopCurrent_v2))
		return CUDA_ERROR_NOT_FOUND;
	return push(green->owner);
}

static void pop_owner(void)
{
	CUcontext popped;

	GCR_REAL(cuCtxPopCurrent_v2)(&popped);
}

static void destroy_event(CUevent event)
{
	__typeof__(cuEventDestroy_v2) *destroy = GCR_REAL(cuEventDestroy_v2);

	if (destroy)
		destroy(event);
}

/*
 * Makes an event behind all work of the green context. The caller has made the owner current and
 * destroys *ret_event.
 */
static CUresult record(const struct green *green, CUevent *ret_event)
{
	__typeof__(cuEventCreate) *create = GCR_REAL(cuEventCreate);
	__typeof__(cuGreenCtxRecordEvent) *real = GCR_REAL(cuGreenCtxRecordEvent);
	CUresult result;
	CUevent event;

	if (!create || !real)
		return CUDA_ERROR_NOT_FOUND;
	result = create(&event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS)
		return result;
	result = real(green->handle, event);
	if (result == CUDA_SUCCESS)
		*ret_event = event;
	else
		destroy_event(event);
	return result;
}

/* ---- for the agent ---- */

/*
 * Waits for an event of the green context. The caller has made the owner current, here and in the
 * next functions. Returns as gcr_event_wait().
 */
static int wait_for_event(const struct green *green, CUevent event, gcr_pause *pause,
			  void *patience, struct gcr_error *error)
{
	return gcr_event_wait(event, "a green context of ", green->device, pause, patience, error);
}

static int wait_for_living(const struct green *green, gcr_pause *pause, void *patience,
			   struct gcr_error *error)
{
	CUevent event;
	CUresult result = record(green, &event);
	int r;

	if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		return gcr_error_set(error, EOPNOTSUPP,
				     "a stream of a green context of GPU %d is in a capture whose "
				     "beginning was not seen",
				     (int)green->device);
	if (result != CUDA_SUCCESS)
		return gcr_driver_failed(error, "cuGreenCtxRecordEvent", result);
	r = wait_for_event(green, event, pause, patience, error);
	destroy_event(event);
	return r;
}

static int wait_for_destroyed(const struct green *green, gcr_pause *pause, void *patience,
			      struct gcr_error *error)
{
	int r = wait_for_event(green, green->last, pause, patience, error);

	if (r == 0)
		destroy_event(green->last);
	return r;
}

int gcr_greens_wait(gcr_pause *pause, void *patience, struct gcr_error *error)
{
	struct green green;
	CUresult result;
	int r = 0;

	/* The gate is closed: no thread makes or destroys a green context. */
	for (size_t i = count_all(); i-- > 0 && r == 0 && get(i, &green);) {
		result = push_owner(&green);
		if (result != CUDA_SUCCESS)
			return gcr_driver_failed(error, "cuCtxPushCurrent", result);
		if (green.handle)
			r = wait_for_living(&green, pause, patience, error);
		else
			r = wait_for_destroyed(&green, pause, patience, error);
		pop_owner();
		if (r == 0 && !green.handle) {
			GCR_LOCK_SCOPE(&greens.lock);

			remove_at(i);
		}
	}
	return r;
}

/* ---- the program's calls ---- */

static bool has_ended(const struct green *green)
{
	__typeof__(cuEventQuery) *query = GCR_REAL(cuEventQuery);
	bool ended;

	if (!query || push_owner(green) != CUDA_SUCCESS)
		return false;
	ended = query(green->last) == CUDA_SUCCESS;
	if (ended)
		destroy_event(green->last);
	pop_owner();
	return ended;
}

/*
 * Drops destroyed green contexts whose work has ended. Uses the relaxed mode, as querying an event
 * would otherwise break captures of other threads.
 */
static void sweep(void)
{
	__typeof__(cuThreadExchangeStreamCaptureMode) *exchange =
		GCR_REAL(cuThreadExchangeStreamCaptureMode);
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct green green;

	if (!exchange || exchange(&mode) != CUDA_SUCCESS)
		return;
	/* Backwards: the entries behind @i have been checked, and entries are put back there. */
	for (size_t i = count_all(); i-- > 0;)
		if (take_destroyed(i, &green) && !has_ended(&green))
			insert(&green);
	exchange(&mode);
}

static void note(CUgreenCtx handle, CUdevice device)
{
	__typeof__(cuCtxFromGreenCtx) *convert = GCR_REAL(cuCtxFromGreenCtx);
	struct green green = {.handle = handle, .device = device};

	green.owner = gcr_context_primary(device);
	if (!green.owner || !convert || convert(&green.context, handle) != CUDA_SUCCESS) {
		gcr_gate_incomplete("a green context that is not known");
		return;
	}
	insert(&green);
}

GCR_OWN(cuGreenCtxCreate);
CUresult gcr_own_cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc resources, CUdevice device,
				  unsigned int flags)
{
	__typeof__(cuGreenCtxCreate) *real = GCR_REAL(cuGreenCtxCreate);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuGreenCtxCreate);
	GCR_LOCK_SCOPE(gcr_context_primary_lock(device));
	result = real(handle, resources, device, flags);
	if (result == CUDA_SUCCESS) {
		gcr_ending_expect_context();
		note(*handle, device);
	}
	return result;
}

/*
 * Destroys a green context that the caller has taken out of the list, since another thread may get
 * the same handle right after the driver's call. As far as is documented, the driver does not wait
 * for the work of its streams, so the list keeps an event until that work has ended.
 */
static CUresult destroy(__typeof__(cuGreenCtxDestroy) *real, struct green *green)
{
	CUresult recorded = push_owner(green), result;

	if (recorded == CUDA_SUCCESS) {
		recorded = record(green, &green->last);
		pop_owner();
	}
	GCR_TELL(green_going, green->context);
	result = real(green->handle);
	if (result != CUDA_SUCCESS) {
		if (recorded == CUDA_SUCCESS)
			destroy_event(green->last);
		green->last = NULL;
		insert(green);
		return result;
	}
	GCR_TELL(green_gone, green->context);
	green->handle = NULL;
	if (recorded == CUDA_SUCCESS)
		insert(green);
	else
		gcr_gate_incomplete("work left by a green context");
	sweep();
	gcr_context_primary_released(green->device);
	return result;
}

GCR_OWN(cuGreenCtxDestroy);
CUresult gcr_own_cuGreenCtxDestroy(CUgreenCtx handle)
{
	__typeof__(cuGreenCtxDestroy) *real = GCR_REAL(cuGreenCtxDestroy);
	struct green green;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuGreenCtxDestroy);
	if (!take_out(handle, &green))
		return real(handle);
	GCR_LOCK_SCOPE(gcr_context_primary_lock(green.device));
	return destroy(real, &green);
}

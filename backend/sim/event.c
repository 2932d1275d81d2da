/* SPDX-License-Identifier: MIT */
/*
 * Events: an event is the fence of the operation that was recorded last. Interprocess events are
 * pairs of counters in the shared state.
 */
#include "backend/sim/sim.h"

static struct CUevent_st *events; /* sim.lock */

static bool event_listed(CUevent event)
{
	for (CUevent other = events; other; other = other->next)
		if (other == event)
			return true;
	return false;
}

bool event_valid(CUevent event)
{
	GCR_LOCK_SCOPE(&sim.lock);

	return event && event_listed(event);
}

CUevent event_make(CUcontext context, unsigned flags)
{
	CUevent event = calloc(1, sizeof(*event));
	GCR_LOCK_SCOPE(&sim.lock);

	if (!event)
		return NULL;
	event->magic = EVENT_MAGIC;
	event->context = context;
	event->flags = flags;
	event->ipc_slot = -1;
	event->next = events;
	events = event;
	return event;
}

/* Returns true if an interprocess event is open here and in another process. sim.lock is held. */
bool events_shared_with_others(void)
{
	bool found = false;

	shared_lock();
	for (CUevent event = events; event && !found; event = event->next)
		for (unsigned i = 0; event->ipc_slot >= 0 && i < SIM_MAX_PROCESSES; i++)
			if (i != sim.index &&
			    holder_test(shared->events[event->ipc_slot].holders, i))
				found = true;
	shared_unlock();
	return found;
}

void events_enter_again(void)
{
	shared_lock();
	for (CUevent event = events; event; event = event->next) {
		const struct shared_event *record;

		if (event->ipc_slot < 0)
			continue;
		record = &shared->events[event->ipc_slot];
		if (record->id == event->ipc_id && holder_test(record->holders, sim.index))
			continue;
		event->ipc_slot = shared_event_add(sim.index);
		if (event->ipc_slot >= 0)
			event->ipc_id = shared->events[event->ipc_slot].id;
	}
	shared_unlock();
}

CUresult cuEventCreate(CUevent *phEvent, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	CUevent event;

	if (!phEvent || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	event = event_make(context, flags);
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (flags & CU_EVENT_INTERPROCESS) {
		shared_lock();
		event->ipc_slot = shared_event_add(sim.index);
		if (event->ipc_slot >= 0)
			event->ipc_id = shared->events[event->ipc_slot].id;
		shared_unlock();
	}
	*phEvent = event;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	for (struct CUevent_st **link = &events; *link; link = &(*link)->next)
		if (*link == event) {
			*link = event->next;
			if (event->ipc_slot >= 0) {
				struct shared_event *record = &shared->events[event->ipc_slot];

				shared_lock();
				holder_clear(record->holders, sim.index);
				if (!holder_any(record->holders))
					record->id = 0;
				shared_unlock();
			}
			fence_unref(event->fence);
			if (event->capture)
				capture_unref(event->capture);
			free(event);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

static CUresult event_record(CUevent event, CUstream stream)
{
	struct work item = {.kind = WORK_NOTHING};
	struct fence *fence = NULL;
	struct capture *capture = NULL;
	CUresult result;

	if (!event_valid(event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capture) {
		capture = capture_ref(stream->capture);
	} else {
		if (event->ipc_slot >= 0) {
			item.kind = WORK_IPC_RECORD;
			item.ipc.slot = (unsigned)event->ipc_slot;
			shared_lock();
			item.ipc.number = ++shared->events[event->ipc_slot].recorded;
			shared_unlock();
		}
		result = stream_submit(stream, &item, NULL, &fence);
		if (result)
			return result;
	}
	GCR_LOCK_SCOPE(&sim.lock);
	fence_unref(event->fence);
	event->fence = fence;
	if (event->capture)
		capture_unref(event->capture);
	event->capture = capture;
	event->capture_stream = stream;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	return event_record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
	SIM_ENTER_STREAM(stream, handle);
	if (flags)
		return CUDA_ERROR_NOT_SUPPORTED;
	return event_record(event, stream);
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
	SIM_ENTER();
	struct fence *fence = NULL;
	CUresult result = context_check(context);

	if (result)
		return result;
	if (!event_valid(event) || event->context != context_owner(context) || event->ipc_slot >= 0)
		return CUDA_ERROR_INVALID_HANDLE;
	result = context_fence(context, &fence);
	if (result)
		return result;
	GCR_LOCK_SCOPE(&sim.lock);
	fence_unref(event->fence);
	event->fence = fence;
	if (event->capture)
		capture_unref(event->capture);
	event->capture = NULL;
	return CUDA_SUCCESS;
}

static struct fence *event_fence(CUevent event)
{
	GCR_LOCK_SCOPE(&sim.lock);

	return fence_ref(event->fence);
}

static bool ipc_reached(const struct CUevent_st *event, uint64_t number)
{
	bool reached;

	shared_lock();
	reached = shared->events[event->ipc_slot].completed >= number;
	shared_unlock();
	return reached;
}

static uint64_t ipc_recorded(const struct CUevent_st *event)
{
	uint64_t recorded;

	shared_lock();
	recorded = shared->events[event->ipc_slot].recorded;
	shared_unlock();
	return recorded;
}

/*
 * Returns 0 if the event may be queried, else the error. Measured: querying any event, however old,
 * is among the calls that captures forbid.
 */
static CUresult event_usable(CUevent event)
{
	CUresult result;

	if (!event_valid(event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	result = capture_forbids(NULL);
	if (result)
		return result;
	return (CUresult)atomic_load(&event->context->failure);
}

CUresult cuEventQuery(CUevent event)
{
	SIM_ENTER();
	CUresult result = event_usable(event);
	struct fence *fence;

	if (result)
		return result;
	if (event->ipc_slot >= 0)
		return ipc_reached(event, ipc_recorded(event)) ? CUDA_SUCCESS
							       : CUDA_ERROR_NOT_READY;
	fence = event_fence(event);
	if (fence && !fence_done(fence))
		result = CUDA_ERROR_NOT_READY;
	fence_unref(fence);
	return result;
}

CUresult cuEventSynchronize(CUevent event)
{
	SIM_ENTER();
	CUresult result = event_usable(event);
	struct fence *fence;

	if (result)
		return result;
	if (event->ipc_slot >= 0) {
		uint64_t number = ipc_recorded(event);

		while (!ipc_reached(event, number))
			usleep(1000);
		return CUDA_SUCCESS;
	}
	fence = event_fence(event);
	if (fence)
		fence_wait(fence);
	fence_unref(fence);
	pools_trim();
	return (CUresult)atomic_load(&event->context->failure);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	SIM_ENTER();
	CUresult result;
	GCR_LOCK_SCOPE(&sim.lock);

	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if (!event_listed(start) || !event_listed(end) || !start->fence || !end->fence ||
	    (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	result = fence_done(start->fence) && fence_done(end->fence) ? CUDA_SUCCESS
								    : CUDA_ERROR_NOT_READY;
	if (!result)
		*milliseconds =
			(float)((double)(int64_t)(end->fence->time_ns - start->fence->time_ns) /
				1e6);
	return result;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	return cuEventElapsedTime_v2(milliseconds, start, end);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	SIM_ENTER_STREAM(stream, handle);
	struct work item = {.kind = WORK_NOTHING};
	struct fence *fence;
	CUresult result;

	if (!event_valid(event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture || stream->capture)
		return stream_capture_join(stream, event);
	if (event->ipc_slot >= 0) {
		item.kind = WORK_IPC_WAIT;
		item.ipc.slot = (unsigned)event->ipc_slot;
		item.ipc.number = ipc_recorded(event);
		return stream_submit(stream, &item, NULL, NULL);
	}
	fence = event_fence(event);
	if (!fence)
		return CUDA_SUCCESS;
	result = stream_submit(stream, &item, fence, NULL);
	fence_unref(fence);
	return result;
}

CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
	SIM_ENTER();
	CUresult result = context_check(context);
	struct fence *fence;

	if (result)
		return result;
	if (!event_valid(event) || event->ipc_slot >= 0)
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture) {
		event->capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	fence = event_fence(event);
	if (!fence)
		return CUDA_SUCCESS;
	result = context_wait_fence(context, fence);
	fence_unref(fence);
	return result;
}

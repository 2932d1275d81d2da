/* SPDX-License-Identifier: MIT */
/*
 * Legacy inter-process memory and events: handles of 64 bytes that identify objects in the shared
 * state.
 */
#include "backend/sim/sim.h"

struct memory_handle {
	uint64_t magic, id, offset, size_bytes;
	int pid;
};

struct event_handle {
	uint64_t magic, id;
	unsigned slot;
	int pid;
};

#define MEMORY_HANDLE_MAGIC 0x6770756d656d6970ull
#define EVENT_HANDLE_MAGIC  0x677075657674ull

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	SIM_ENTER_CONTEXT(context);
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find(pointer);
	struct memory_handle content = {.magic = MEMORY_HANDLE_MAGIC};
	const struct mapping *mapping;

	if (!handle || !allocation || allocation->kind != ALLOCATION_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	mapping = span_find(&mappings, pointer)->object;
	shared_lock();
	shared->allocations[mapping->phys->slot].legacy_ipc = 1;
	content.id = shared->allocations[mapping->phys->slot].id;
	shared_unlock();
	content.offset = allocation->start - mapping->start;
	content.size_bytes = allocation->size_bytes;
	content.pid = getpid();
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &content, sizeof(content));
	return CUDA_SUCCESS;
}

static CUresult memory_open(CUcontext context, const struct memory_handle *content,
			    CUdeviceptr *ret_pointer)
{
	struct allocation *allocation;
	struct phys *phys = NULL;
	CUdeviceptr start;
	CUresult result;
	int device = -1, slot;

	shared_lock();
	slot = shared_allocation_find(content->id);
	for (unsigned i = 0; slot >= 0 && i < sim.device_count; i++)
		if (sim.gpu_of_device[i] == shared->allocations[slot].gpu)
			device = (int)i;
	if (device >= 0)
		phys = phys_adopt((unsigned)slot, device);
	shared_unlock();
	if (!phys)
		return slot < 0 || device < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	phys->ipc_opened = true;
	start = range_reserve(phys->size_bytes, 0, 0);
	result = start ? mapping_add(start, phys->size_bytes, phys, 0, ACCESS_PEERS)
		       : CUDA_ERROR_OUT_OF_MEMORY;
	phys_unref(phys);
	if (result) {
		if (start)
			range_release(start);
		return result;
	}
	/* The whole block is mapped, but the allocation has the exporter's range. */
	allocation = allocation_add(start + content->offset, content->size_bytes, ALLOCATION_IPC,
				    device);
	if (!allocation) {
		mapping_remove(start);
		range_release(start);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (device != context->device)
		context->peers |= 1u << device; /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
	allocation->context = context;
	allocation->references = 1;
	allocation->ipc_id = content->id;
	allocation->ipc_offset = content->offset;
	*ret_pointer = allocation->start;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	GCR_LOCK_SCOPE(&sim.lock);
	struct memory_handle content;

	memcpy(&content, &handle, sizeof(content));
	if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
	    content.magic != MEMORY_HANDLE_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	/* The exporter itself cannot open its handle. */
	if (content.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	for (size_t i = 0; i < allocations.count; i++) {
		struct allocation *allocation = allocations.items[i].object;

		if (allocation->kind == ALLOCATION_IPC && allocation->ipc_id == content.id &&
		    allocation->ipc_offset == content.offset) {
			allocation->references++;
			*pointer = allocation->start;
			return CUDA_SUCCESS;
		}
	}
	return memory_open(context, &content, pointer);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
	return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	SIM_ENTER_CONTEXT(context);
	struct allocation *allocation;

	context_wait(context);
	GCR_LOCK_SCOPE(&sim.lock);
	allocation = allocation_find(pointer);
	if (!allocation || allocation->start != pointer || allocation->kind != ALLOCATION_IPC)
		return CUDA_ERROR_INVALID_VALUE;
	if (--allocation->references)
		return CUDA_SUCCESS;
	return device_memory_free(allocation);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	SIM_ENTER();
	struct event_handle content = {.magic = EVENT_HANDLE_MAGIC};

	if (!handle || !event_valid(event) || event->ipc_slot < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	content.slot = (unsigned)event->ipc_slot;
	content.id = event->ipc_id;
	content.pid = getpid();
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &content, sizeof(content));
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	SIM_ENTER_CONTEXT(context);
	struct event_handle content;
	bool live;

	memcpy(&content, &handle, sizeof(content));
	if (!event || content.magic != EVENT_HANDLE_MAGIC || content.slot >= SIM_MAX_IPC_EVENTS)
		return CUDA_ERROR_INVALID_HANDLE;
	if (content.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	shared_lock();
	live = shared->events[content.slot].id == content.id;
	if (live)
		holder_set(shared->events[content.slot].holders, sim.index);
	shared_unlock();
	if (!live)
		return CUDA_ERROR_MAP_FAILED;
	*event = event_make(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
	if (!*event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*event)->ipc_slot = (int)content.slot;
	(*event)->ipc_id = content.id;
	return CUDA_SUCCESS;
}

/*
 * Returns true if this process has opened another process's memory, or another process this one's,
 * or if an event is shared.
 */
bool ipc_live(void)
{
	bool live = false;

	shared_lock();
	for (struct phys *phys = physes; phys && !live; phys = phys->next)
		live = phys->ipc_opened || (shared->allocations[phys->slot].legacy_ipc &&
					    shared_allocation_shared(phys->slot, sim.index));
	shared_unlock();
	return live || events_shared_with_others();
}

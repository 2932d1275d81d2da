/* SPDX-License-Identifier: MIT */
/*
 * cuMemAlloc. As with the real driver, allocations below 2 MiB share a block; larger ones start on
 * a 2 MiB boundary.
 */
#include "backend/sim/sim.h"

static struct block *small_blocks[SIM_MAX_GPUS]; /* sim.lock */
static struct block *large_blocks[SIM_MAX_GPUS];

CUresult device_memory_alloc(CUcontext context, size_t size_bytes, CUdeviceptr *ret_pointer)
{
	int device = context->device;
	struct block **blocks = size_bytes < SIM_BLOCK_BYTES ? &small_blocks[device]
							     : &large_blocks[device];
	/* A large allocation has its own block. */
	struct block *own = NULL, *block = NULL;
	struct allocation *allocation;
	CUresult result = CUDA_SUCCESS;
	CUdeviceptr start;

	if (!size_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (size_bytes > SIM_VA_END - SIM_VA_START)
		return CUDA_ERROR_OUT_OF_MEMORY;
	start = block_take(size_bytes < SIM_BLOCK_BYTES ? blocks : &own, device, size_bytes,
			   ACCESS_PEERS, &block, &result);
	if (!start)
		return result;
	if (own) {
		own->next = *blocks;
		*blocks = own;
	}
	allocation = allocation_add(start, size_bytes, ALLOCATION_DEVICE, device);
	if (!allocation) {
		block_give(block, start);
		blocks_trim(blocks, 0);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->block = block;
	allocation->context = context;
	*ret_pointer = start;
	return CUDA_SUCCESS;
}

CUresult device_memory_free(struct allocation *allocation)
{
	CUdeviceptr start = allocation->start;
	int device = allocation->device;

	switch (allocation->kind) {
	case ALLOCATION_DEVICE:
		block_give(allocation->block, start);
		allocation_remove(allocation);
		blocks_trim(&small_blocks[device], 0);
		blocks_trim(&large_blocks[device], 0);
		return CUDA_SUCCESS;
	case ALLOCATION_MANAGED:
		managed_memory_free(allocation);
		return CUDA_SUCCESS;
	case ALLOCATION_IPC:
		start -= allocation->ipc_offset;
		allocation_remove(allocation);
		mapping_remove(start);
		range_release(start);
		return CUDA_SUCCESS;
	case ALLOCATION_POOL:
		return pool_free(allocation) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

void context_memory_free(CUcontext context)
{
	GCR_LOCK_SCOPE(&sim.lock);

	for (size_t i = 0; i < allocations.count;) {
		struct allocation *allocation = allocations.items[i].object;
		bool mine = allocation->context == context;

		if (mine &&
		    (allocation->kind == ALLOCATION_DEVICE ||
		     allocation->kind == ALLOCATION_MANAGED || allocation->kind == ALLOCATION_IPC))
			device_memory_free(allocation);
		else
			i++;
	}
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	SIM_ENTER_CONTEXT(context);
	unsigned gpu = sim.gpu_of_device[context->device];
	uint64_t used;

	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	shared_lock();
	shared_reclaim();
	used = shared_gpu_used_bytes(gpu);
	*total = shared->gpus[gpu].capacity_bytes;
	shared_unlock();
	*free_bytes = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);
	GCR_LOCK_SCOPE(&sim.lock);

	if (result)
		return result;
	if (!pointer)
		return CUDA_ERROR_INVALID_VALUE;
	return device_memory_alloc(context, bytes, pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
			    unsigned element_bytes)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);
	GCR_LOCK_SCOPE(&sim.lock);

	if (result)
		return result;
	if (!pointer || !pitch || !width || !height ||
	    (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = round_up(width, SIM_SUBALLOCATION_BYTES);
	return device_memory_alloc(context, *pitch * height, pointer);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	SIM_ENTER_CONTEXT(current);
	struct allocation *allocation;
	CUcontext context = current;
	CUresult result = capture_forbids(NULL);

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	allocation = allocation_find(pointer);
	if (!allocation || allocation->start != pointer || allocation->module_owned ||
	    (allocation->kind != ALLOCATION_DEVICE && allocation->kind != ALLOCATION_MANAGED &&
	     allocation->kind != ALLOCATION_POOL)) {
		pthread_mutex_unlock(&sim.lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (allocation->context)
		context = allocation->context;
	pthread_mutex_unlock(&sim.lock);
	/* Wait for work submitted before that may use the memory. */
	context_wait(context);
	GCR_LOCK_SCOPE(&sim.lock);
	allocation = allocation_find(pointer);
	return allocation && allocation->start == pointer ? device_memory_free(allocation)
							  : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size_bytes, CUdeviceptr pointer)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find(pointer);

	if (!allocation)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = allocation->start;
	if (size_bytes)
		*size_bytes = allocation->size_bytes;
	return CUDA_SUCCESS;
}

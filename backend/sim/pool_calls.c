/* SPDX-License-Identifier: MIT */
/* The entry points of the stream-ordered allocator, and the current pool of each GPU. */
#include "backend/sim/sim.h"

static struct CUmemPoolHandle_st *current_pool[SIM_MAX_GPUS]; /* sim.lock */

/*
 * Returns the error if a capture forbids a pool's allocation or free in this stream, else 0. Memory
 * nodes in graphs are not simulated. Elsewhere the mode of an open capture decides.
 */
static CUresult pool_forbidden(CUstream stream)
{
	return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture_forbids(NULL);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	CUresult result = pool_forbidden(stream);
	GCR_LOCK_SCOPE(&sim.lock);
	CUmemoryPool pool;
	int device = stream->context->device;

	if (result)
		return result;
	pool = current_pool[device] ? current_pool[device] : pool_default(device);
	return pool ? pool_alloc(pool, context_owner(stream->context), bytes, pointer)
		    : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
				 CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	CUresult result = pool_forbidden(stream);
	GCR_LOCK_SCOPE(&sim.lock);

	if (result)
		return result;
	if (!pool_valid(pool))
		return CUDA_ERROR_INVALID_VALUE;
	return pool_alloc(pool, context_owner(stream->context), bytes, pointer);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	struct work item = {.kind = WORK_POOL_FREE};
	CUresult result = pool_forbidden(stream);
	struct allocation *allocation;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	allocation = allocation_find(pointer);
	if (!allocation || allocation->start != pointer || allocation->kind != ALLOCATION_POOL ||
	    allocation->freeing) {
		pthread_mutex_unlock(&sim.lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	allocation->freeing = true;
	pthread_mutex_unlock(&sim.lock);
	item.pool_free.start = pointer;
	return stream_submit(stream, &item, NULL, NULL);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	bool is_on_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

	if (!pool || !props ||
	    (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
	     props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED) ||
	    props->location.type == CU_MEM_LOCATION_TYPE_INVALID)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_on_device && !device_valid(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
		return CUDA_ERROR_NOT_SUPPORTED;
	*pool = pool_new(is_on_device ? props->location.id : 0);
	if (!*pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*pool)->props = *props;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	SIM_ENTER();

	pthread_mutex_lock(&sim.lock);
	if (!pool_valid(pool) || pool->is_default) {
		pthread_mutex_unlock(&sim.lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* The pool lives until all of its pieces are freed. */
	pool->destroyed = true;
	if (current_pool[pool->device] == pool)
		current_pool[pool->device] = NULL;
	pthread_mutex_unlock(&sim.lock);
	pools_trim();
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool_valid(pool))
		return CUDA_ERROR_INVALID_VALUE;
	pool_trim(pool, keep_bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool_valid(pool) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->attributes[attribute] = (uint64_t)(*(int *)value != 0);
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->release_threshold = *(uint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(uint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
			pool->used_high = pool->used_bytes;
		else
			pool->reserved_high = pool->reserved_bytes;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool_valid(pool) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = (int)pool->attributes[attribute];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(uint64_t *)value = pool->release_threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(uint64_t *)value = pool->reserved_bytes;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(uint64_t *)value = pool->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(uint64_t *)value = pool->used_bytes;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(uint64_t *)value = pool->used_high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool_valid(pool) || !map || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    (map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		     map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			return CUDA_ERROR_INVALID_VALUE;
		if (!device_valid(map[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		/* The GPU that holds the memory always has access. */
		if (map[i].location.id == pool->device && !map[i].flags)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < count; i++)
		pool->access[map[i].location.id] = map[i].flags;
	for (struct block *block = pool->blocks; block; block = block->next)
		pool_apply_access(pool, block);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!flags || !location || !pool_valid(pool) ||
	    location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = location->id == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
					      : pool->access[location->id];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = pool_default(device);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
				CUmemAllocationType type)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool || !location || location->type == CU_MEM_LOCATION_TYPE_INVALID ||
	    (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = pool_standing(&(CUmemPoolProps){.allocType = type, .location = *location});
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The current pool can be changed for GPUs only (cuDeviceSetMemPool). */
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	if (location && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    type == CU_MEM_ALLOCATION_TYPE_PINNED)
		return cuDeviceGetMemPool(pool, location->id);
	return cuMemGetDefaultMemPool(pool, location, type);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = current_pool[device] ? current_pool[device] : pool_default(device);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pool_valid(pool) || pool->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	current_pool[device] = pool;
	return CUDA_SUCCESS;
}

/* The attribute MEMPOOL_SUPPORTED_HANDLE_TYPES says that pools cannot be shared. */

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
					  CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
					    CUmemAllocationHandleType type,
					    unsigned long long flags)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
				CUmemPoolPtrExportData *data)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* SPDX-License-Identifier: MIT */
/*
 * The stream-ordered allocator. Pools own blocks that are divided into pieces; a freed piece can be
 * used again once its stream has reached the free. Blocks are released to the GPU when the program
 * synchronizes, down to the pool's release threshold.
 */
#include "backend/sim/sim.h"

static struct CUmemPoolHandle_st *pools; /* sim.lock */
static struct CUmemPoolHandle_st *current_pool[SIM_MAX_GPUS];

static CUmemoryPool pool_new(int device)
{
	CUmemoryPool pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->magic = POOL_MAGIC;
	pool->device = device;
	pool->attributes[CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = 1;
	pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = 1;
	pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = 1;
	pool->next = pools;
	pools = pool;
	return pool;
}

/*
 * Returns false for memory other than plain memory of a GPU; such a pool is simulated with plain
 * memory of the first GPU.
 */
static bool is_plain(const CUmemPoolProps *props)
{
	return props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED &&
	       (!props->location.type || props->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
}

CUmemoryPool pool_default(int device)
{
	for (CUmemoryPool pool = pools; pool; pool = pool->next)
		if (pool->is_default && pool->device == device && is_plain(&pool->props))
			return pool;
	CUmemoryPool pool = pool_new(device);

	if (pool)
		pool->is_default = true;
	return pool;
}

/* Returns the default pool of a location and a kind of memory, for cuMemGetDefaultMemPool. */
static CUmemoryPool pool_standing(const CUmemPoolProps *props)
{
	CUmemoryPool pool;

	if (is_plain(props))
		return pool_default(props->location.id);
	for (pool = pools; pool; pool = pool->next)
		if (pool->is_default && pool->props.allocType == props->allocType &&
		    pool->props.location.type == props->location.type)
			return pool;
	pool = pool_new(0);
	if (pool) {
		pool->is_default = true;
		pool->props = *props;
	}
	return pool;
}

static bool pool_valid(CUmemoryPool pool)
{
	for (CUmemoryPool other = pools; other; other = other->next)
		if (other == pool)
			return !pool->destroyed;
	return false;
}

static void pool_trim(CUmemoryPool pool, uint64_t keep_bytes)
{
	pool->reserved_bytes = blocks_trim(&pool->blocks, keep_bytes);
}

void pools_trim(void)
{
	GCR_LOCK_SCOPE(&sim.lock);

	for (struct CUmemPoolHandle_st **link = &pools; *link;) {
		CUmemoryPool pool = *link;

		pool_trim(pool, pool->destroyed ? 0 : pool->release_threshold);
		if (pool->destroyed && !pool->blocks) {
			*link = pool->next;
			free(pool);
			continue;
		}
		link = &pool->next;
	}
}

bool pool_free(struct allocation *allocation)
{
	CUmemoryPool pool = allocation->pool;

	pool->used_bytes -= allocation->size_bytes;
	block_give(allocation->block, allocation->start);
	allocation_remove(allocation);
	return true;
}

void pool_free_finished(CUdeviceptr start)
{
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find(start);

	if (allocation && allocation->start == start && allocation->kind == ALLOCATION_POOL)
		pool_free(allocation);
}

static void pool_apply_access(const struct CUmemPoolHandle_st *pool, const struct block *block)
{
	struct mapping *mapping;

	pthread_rwlock_wrlock(&sim.map_lock);
	mapping = span_find(&mappings, block->start)->object;
	for (unsigned i = 0; i < sim.device_count; i++)
		if ((int)i != pool->device)
			mapping->protection[i] = (int)pool->access[i];
	pthread_rwlock_unlock(&sim.map_lock);
}

static CUresult pool_alloc(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	struct allocation *allocation;
	struct block *block = NULL;
	CUresult result = CUDA_SUCCESS;
	CUdeviceptr start;

	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	start = block_take(&pool->blocks, pool->device, bytes, ACCESS_OWNER, &block, &result);
	if (!start && result == CUDA_ERROR_OUT_OF_MEMORY) {
		for (CUmemoryPool other = pools; other; other = other->next)
			pool_trim(other, 0);
		start = block_take(&pool->blocks, pool->device, bytes, ACCESS_OWNER, &block,
				   &result);
	}
	if (!start)
		return result;
	pool_apply_access(pool, block);
	allocation = allocation_add(start, bytes, ALLOCATION_POOL, pool->device);
	if (!allocation) {
		block_give(block, start);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->block = block;
	allocation->pool = pool;
	allocation->context = context;
	pool->used_bytes += bytes;
	if (pool->used_bytes > pool->used_high)
		pool->used_high = pool->used_bytes;
	pool->reserved_bytes = 0;
	for (struct block *b = pool->blocks; b; b = b->next)
		pool->reserved_bytes += b->size_bytes;
	if (pool->reserved_bytes > pool->reserved_high)
		pool->reserved_high = pool->reserved_bytes;
	*pointer = start;
	return CUDA_SUCCESS;
}

/* Memory nodes in graphs are not simulated. Elsewhere the mode of an open capture decides. */
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

/* SPDX-License-Identifier: MIT */
/*
 * The pools of the stream-ordered allocator. They own blocks that are divided into pieces; a freed
 * piece can be used again once its stream has reached the free. Blocks are released to the GPU when
 * the program synchronizes, down to the pool's release threshold.
 */
#include "backend/sim/sim.h"

static struct CUmemPoolHandle_st *pools; /* sim.lock */

CUmemoryPool pool_new(int device)
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

CUmemoryPool pool_standing(const CUmemPoolProps *props)
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

bool pool_valid(CUmemoryPool pool)
{
	for (CUmemoryPool other = pools; other; other = other->next)
		if (other == pool)
			return !pool->destroyed;
	return false;
}

void pool_trim(CUmemoryPool pool, uint64_t keep_bytes)
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

void pool_apply_access(const struct CUmemPoolHandle_st *pool, const struct block *block)
{
	struct mapping *mapping;

	pthread_rwlock_wrlock(&sim.map_lock);
	mapping = span_find(&mappings, block->start)->object;
	for (unsigned i = 0; i < sim.device_count; i++)
		if ((int)i != pool->device)
			mapping->protection[i] = (int)pool->access[i];
	pthread_rwlock_unlock(&sim.map_lock);
}

CUresult pool_alloc(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *pointer)
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

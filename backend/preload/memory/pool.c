/* SPDX-License-Identifier: MIT */
/*
 * Pools in host memory, pools of managed memory, and pools shared with other processes. Each is an
 * obstacle from its creation until it has been destroyed and all memory allocated from it is free,
 * since the driver keeps a pool that long. The default pools of such kinds always exist, so they
 * are obstacles only from their first allocation on. Pools of plain device memory are left to the
 * driver.
 *
 * `lock` guards the list; no thread holds it across a call of the driver.
 */
#include "backend/preload/memory/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/memory/obstacle.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

struct gcr_pool {
	CUmemoryPool handle;
	/* NONE: plain memory of an exportable pool that is not exported yet. */
	enum gcr_obstacle obstacle;
	bool is_counted; /* counted as that obstacle */
	bool is_gone;	 /* destroyed: another pool may have the same handle */
	size_t pieces;
	struct gcr_pool *next;
};

struct piece {
	CUdeviceptr pointer;
	struct gcr_pool *pool;
};

static struct {
	pthread_mutex_t lock;
	struct gcr_pool *list;
	struct piece *pieces; /* by address */
	size_t count, room;
} pools = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the list: pools.lock is held ---- */

static struct gcr_pool *find(CUmemoryPool handle)
{
	struct gcr_pool *pool = pools.list;

	while (pool && (pool->handle != handle || pool->is_gone))
		pool = pool->next;
	return pool;
}

static void count(struct gcr_pool *pool)
{
	if (pool->obstacle && !pool->is_counted) {
		gcr_obstacle_add(pool->obstacle, 1);
		pool->is_counted = true;
	}
}

static void drop_if_done(struct gcr_pool *pool)
{
	struct gcr_pool **link = &pools.list;

	if (!pool->is_gone || pool->pieces)
		return;
	while (*link && *link != pool)
		link = &(*link)->next;
	if (*link)
		*link = pool->next;
	if (pool->is_counted)
		gcr_obstacle_add(pool->obstacle, -1);
	free(pool);
}

/* Returns the index of @pointer, or the one where it would be inserted. */
static size_t piece_index(CUdeviceptr pointer)
{
	size_t low = 0, high = pools.count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (pools.pieces[middle].pointer < pointer)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool add_piece(struct gcr_pool *pool, CUdeviceptr pointer)
{
	size_t i = piece_index(pointer);

	if (pools.count == pools.room) {
		size_t room = pools.room ? 2 * pools.room : 64;
		struct piece *pieces = realloc(pools.pieces, room * sizeof(*pieces));

		if (!pieces)
			return false;
		pools.pieces = pieces;
		pools.room = room;
	}
	memmove(&pools.pieces[i + 1], &pools.pieces[i],
		(pools.count - i) * sizeof(pools.pieces[0]));
	pools.pieces[i] = (struct piece){.pointer = pointer, .pool = pool};
	__atomic_store_n(&pools.count, pools.count + 1, __ATOMIC_RELAXED);
	return true;
}

/* ---- the list: pools.lock is taken ---- */

/*
 * Adds a pool to the list; @counts: counts its obstacle at once. A pool that cannot be recorded is
 * an obstacle for good.
 */
static void add(CUmemoryPool handle, enum gcr_obstacle obstacle, bool counts)
{
	GCR_LOCK_SCOPE(&pools.lock);
	struct gcr_pool *pool;

	if (find(handle))
		return;
	pool = calloc(1, sizeof(*pool));
	if (!pool) {
		gcr_obstacle_add(obstacle ? obstacle : GCR_OBSTACLE_POOL, 1);
		return;
	}
	pool->handle = handle;
	pool->obstacle = obstacle;
	pool->next = pools.list;
	pools.list = pool;
	if (counts)
		count(pool);
}

static void note_piece(CUmemoryPool handle, CUdeviceptr pointer)
{
	GCR_LOCK_SCOPE(&pools.lock);
	struct gcr_pool *pool = find(handle);

	if (!pool)
		return;
	count(pool);
	/* If the piece cannot be recorded, its free is never seen: the pool stays. */
	pool->pieces++;
	add_piece(pool, pointer);
}

/*
 * Begins to destroy a pool: its handle is no longer found. The caller's reference, which counts as
 * a piece, keeps the structure while other threads free the last pieces. NULL: unknown pool.
 */
static struct gcr_pool *begin_destroy(CUmemoryPool handle)
{
	GCR_LOCK_SCOPE(&pools.lock);
	struct gcr_pool *pool = find(handle);

	if (!pool)
		return NULL;
	pool->is_gone = true;
	pool->pieces++;
	return pool;
}

static void finish_destroy(struct gcr_pool *pool, bool is_gone)
{
	GCR_LOCK_SCOPE(&pools.lock);

	pool->is_gone = is_gone;
	pool->pieces--;
	drop_if_done(pool);
}

static void set_shared(CUmemoryPool handle)
{
	GCR_LOCK_SCOPE(&pools.lock);
	struct gcr_pool *pool = find(handle);

	if (pool && !pool->obstacle)
		pool->obstacle = GCR_OBSTACLE_POOL;
	if (pool)
		count(pool);
	else
		gcr_obstacle_add(GCR_OBSTACLE_POOL, 1);
}

/*
 * Notes that the pool becomes current. Allocations from it are not seen from here on
 * (cuMemAllocAsync), so the pool stays in the list, and an obstacle counts for good.
 */
static void set_current(CUmemoryPool handle)
{
	GCR_LOCK_SCOPE(&pools.lock);
	struct gcr_pool *pool = find(handle);

	if (pool)
		pool->pieces++;
}

struct gcr_pool *gcr_pool_take(CUdeviceptr pointer)
{
	struct gcr_pool *pool;
	size_t i;

	/* A program without such pools pays nothing. */
	if (!__atomic_load_n(&pools.count, __ATOMIC_RELAXED))
		return NULL;
	GCR_LOCK_SCOPE(&pools.lock);
	i = piece_index(pointer);
	if (i == pools.count || pools.pieces[i].pointer != pointer)
		return NULL;
	pool = pools.pieces[i].pool;
	__atomic_store_n(&pools.count, pools.count - 1, __ATOMIC_RELAXED);
	memmove(&pools.pieces[i], &pools.pieces[i + 1],
		(pools.count - i) * sizeof(pools.pieces[0]));
	return pool;
}

void gcr_pool_freed(struct gcr_pool *pool, CUdeviceptr pointer, CUresult result)
{
	if (!pool)
		return;
	GCR_LOCK_SCOPE(&pools.lock);
	if (result != CUDA_SUCCESS) {
		add_piece(pool, pointer);
		return;
	}
	pool->pieces--;
	drop_if_done(pool);
}

static void forget(void)
{
	/* The memory is the parent's. */
	pools.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	pools.list = NULL;
	pools.pieces = NULL;
	pools.count = pools.room = 0;
}

GCR_LISTEN(fork, forget);

/* ---- the driver's functions ---- */

static enum gcr_obstacle obstacle_of(CUmemAllocationType type, CUmemLocationType location)
{
	if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
		return GCR_OBSTACLE_MANAGED_POOL;
	switch (location) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return GCR_OBSTACLE_NONE;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return GCR_OBSTACLE_HOST_POOL;
	default:
		return GCR_OBSTACLE_SOME_POOL;
	}
}

GCR_OWN(cuMemPoolCreate);
CUresult gcr_own_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	__typeof__(cuMemPoolCreate) *real = GCR_WRAPPED(cuMemPoolCreate);
	enum gcr_obstacle obstacle;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemPoolCreate);
	obstacle = props ? obstacle_of(props->allocType, props->location.type) : GCR_OBSTACLE_NONE;
	GCR_OBSTACLE_PENDING(obstacle);
	result = real(pool, props);
	if (result != CUDA_SUCCESS)
		return result;
	if (obstacle || props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
		add(*pool, obstacle, true);
	return result;
}

GCR_OWN(cuMemPoolDestroy);
CUresult gcr_own_cuMemPoolDestroy(CUmemoryPool handle)
{
	__typeof__(cuMemPoolDestroy) *real = GCR_WRAPPED(cuMemPoolDestroy);
	struct gcr_pool *pool;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemPoolDestroy);
	/* Before the call: another thread may get a new pool of the same handle at once. */
	pool = begin_destroy(handle);
	result = real(handle);
	if (pool)
		finish_destroy(pool, result == CUDA_SUCCESS);
	return result;
}

/* The default pools, one for each location and kind, and the pools that are current instead. */
#define GET(symbol)                                                              \
	GCR_OWN(symbol);                                                         \
	CUresult gcr_own_##symbol(CUmemoryPool *pool, CUmemLocation *location,   \
				  CUmemAllocationType type)                      \
	{                                                                        \
		__typeof__(symbol) *real = GCR_WRAPPED(symbol);                  \
		CUresult result;                                                 \
                                                                                 \
		if (!real)                                                       \
			return CUDA_ERROR_NOT_FOUND;                             \
		GCR_GATE_WHOLE(symbol);                                          \
		result = real(pool, location, type);                             \
		if (result == CUDA_SUCCESS && obstacle_of(type, location->type)) \
			add(*pool, obstacle_of(type, location->type), false);    \
		return result;                                                   \
	}

GET(cuMemGetDefaultMemPool)
GET(cuMemGetMemPool)

GCR_OWN(cuDeviceSetMemPool);
CUresult gcr_own_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	__typeof__(cuDeviceSetMemPool) *real = GCR_WRAPPED(cuDeviceSetMemPool);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuDeviceSetMemPool);
	result = real(device, pool);
	if (result == CUDA_SUCCESS)
		set_current(pool);
	return result;
}

/* Not in cuda_api.h. */
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);

GCR_OWN(cuMemSetMemPool);
CUresult gcr_own_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
				 CUmemoryPool pool)
{
	__typeof__(cuMemSetMemPool) *real = GCR_WRAPPED(cuMemSetMemPool);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemSetMemPool);
	result = real(location, type, pool);
	if (result == CUDA_SUCCESS)
		set_current(pool);
	return result;
}

#define ALLOC(symbol)                                                                    \
	GCR_OWN_AS(symbol, cuMemAllocFromPoolAsync);                                     \
	CUresult gcr_own_##symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, \
				  CUstream stream)                                       \
	{                                                                                \
		__typeof__(cuMemAllocFromPoolAsync) *real =                              \
			GCR_WRAPPED_AS(symbol, cuMemAllocFromPoolAsync);                 \
		CUresult result;                                                         \
                                                                                         \
		if (!real)                                                               \
			return CUDA_ERROR_NOT_FOUND;                                     \
		GCR_GATE_WHOLE(symbol);                                                  \
		gcr_gate_submitted();                                                    \
		result = real(pointer, bytes, pool, stream);                             \
		if (result == CUDA_SUCCESS)                                              \
			note_piece(pool, *pointer);                                      \
		return result;                                                           \
	}

ALLOC(cuMemAllocFromPoolAsync)
ALLOC(cuMemAllocFromPoolAsync_ptsz)

/* ---- pools in other processes ---- */

GCR_OWN(cuMemPoolExportToShareableHandle);
CUresult gcr_own_cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
						  CUmemAllocationHandleType type,
						  unsigned long long flags)
{
	__typeof__(cuMemPoolExportToShareableHandle) *real =
		GCR_WRAPPED(cuMemPoolExportToShareableHandle);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemPoolExportToShareableHandle);
	GCR_OBSTACLE_PENDING(GCR_OBSTACLE_POOL);
	result = real(handle, pool, type, flags);
	if (result == CUDA_SUCCESS)
		set_shared(pool);
	return result;
}

GCR_OWN(cuMemPoolImportFromShareableHandle);
CUresult gcr_own_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
						    CUmemAllocationHandleType type,
						    unsigned long long flags)
{
	__typeof__(cuMemPoolImportFromShareableHandle) *real =
		GCR_WRAPPED(cuMemPoolImportFromShareableHandle);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemPoolImportFromShareableHandle);
	GCR_OBSTACLE_PENDING(GCR_OBSTACLE_POOL);
	result = real(pool, handle, type, flags);
	if (result == CUDA_SUCCESS)
		add(*pool, GCR_OBSTACLE_POOL, true);
	return result;
}

GCR_OWN(cuMemPoolImportPointer);
CUresult gcr_own_cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
					CUmemPoolPtrExportData *data)
{
	__typeof__(cuMemPoolImportPointer) *real = GCR_WRAPPED(cuMemPoolImportPointer);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemPoolImportPointer);
	GCR_OBSTACLE_PENDING(GCR_OBSTACLE_POOL);
	result = real(pointer, pool, data);
	if (result == CUDA_SUCCESS)
		note_piece(pool, *pointer);
	return result;
}

/* SPDX-License-Identifier: MIT */
/*
 * Memory pools that are not plain device memory: each allocation from one is counted as an obstacle
 * until it is freed.
 */
#ifndef GCR_PRELOAD_POOL_H
#define GCR_PRELOAD_POOL_H

#include <stddef.h>

#include "backend/cuda/cuda_api.h"

struct gcr_pool;

#ifdef GCR_HIP

/* HIP's pools are always located on a GPU; sharing.c handles those that are shared. */
static inline struct gcr_pool *gcr_pool_take(CUdeviceptr pointer)
{
	return NULL;
}

static inline void gcr_pool_freed(struct gcr_pool *pool, CUdeviceptr pointer, CUresult result)
{
}

#else

/*
 * @pointer is about to be freed: returns the pool that it was allocated from if pool.c tracks that
 * pool, else NULL. Call before the free: after it the driver may have given the address to another
 * thread.
 */
struct gcr_pool *gcr_pool_take(CUdeviceptr pointer);
/* Called after the driver's free of @pointer, with its @result. @pool may be NULL. */
void gcr_pool_freed(struct gcr_pool *pool, CUdeviceptr pointer, CUresult result);

#endif
#endif

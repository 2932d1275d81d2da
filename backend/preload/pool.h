/* SPDX-License-Identifier: MIT */
/* Memory pools that are no plain device memory: what is cut from one is counted until it is freed.
 */
#ifndef GCR_PRELOAD_POOL_H
#define GCR_PRELOAD_POOL_H

#include <stddef.h>

#include "backend/cuda/cuda_api.h"

struct gcr_pool;

#ifdef GCR_HIP

/* HIP's pools have no location but a GPU; sharing.c sees those that are shared. */
static inline struct gcr_pool *gcr_pool_take(CUdeviceptr pointer)
{
	return NULL;
}

static inline void gcr_pool_freed(struct gcr_pool *pool, CUdeviceptr pointer, CUresult result)
{
}

#else

/*
 * @pointer is about to be freed: the pool that it was cut from, if that is one of those, else NULL.
 * Not after the free: the driver may have cut it for another thread by then.
 */
struct gcr_pool *gcr_pool_take(CUdeviceptr pointer);
/* It has been, or the driver has refused it. @pool may be NULL. */
void gcr_pool_freed(struct gcr_pool *pool, CUdeviceptr pointer, CUresult result);

/* In the child of a fork. */
void gcr_pools_forget(void);

#endif
#endif

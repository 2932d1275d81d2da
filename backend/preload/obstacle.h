/* SPDX-License-Identifier: MIT */
/* What forbids a freeze, shown in the page: memory shared with others, and things that stay put. */
#ifndef GCR_PRELOAD_OBSTACLE_H
#define GCR_PRELOAD_OBSTACLE_H

enum gcr_obstacle {
	GCR_OBSTACLE_NONE = 0,
	GCR_OBSTACLE_DMA_BUF,
	GCR_OBSTACLE_MULTICAST,
	GCR_OBSTACLE_LOGICAL_ENDPOINT,
	GCR_OBSTACLE_FABRIC,
	GCR_OBSTACLE_HOST_MEMORY,
	GCR_OBSTACLE_COMPRESSIBLE,
	GCR_OBSTACLE_SPECIAL_USE,
	GCR_OBSTACLE_SPARSE_ARRAY,
	GCR_OBSTACLE_POOL,
	GCR_OBSTACLE_HOST_POOL,
	GCR_OBSTACLE_MANAGED_POOL,
	GCR_OBSTACLE_SOME_POOL,
	GCR_OBSTACLE_EVENT,
	GCR_OBSTACLE_EXTERNAL_MEMORY,
	GCR_OBSTACLE_EXTERNAL_SEMAPHORE,
	GCR_OBSTACLE_GRAPHICS,
	GCR_OBSTACLE_MANAGED,
	GCR_OBSTACLE_GREEN_CONTEXT,
	GCR_OBSTACLE_HIP_VERSION,
	GCR_OBSTACLE_COUNT
};

/* So many more of them are there (or fewer); the page's words follow. Any thread, any time. */
void gcr_obstacle_add(enum gcr_obstacle obstacle, int count);

/* So many more pieces of memory are shared with other processes now (or fewer). */
void gcr_sharing_add(int count);

/* In the child of a fork. */
void gcr_obstacle_forget(void);

#endif

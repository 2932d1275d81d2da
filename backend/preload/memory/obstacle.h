/* SPDX-License-Identifier: MIT */
/*
 * Obstacles to a freeze, shown in the page: memory shared with other processes, and objects that
 * cannot be moved.
 */
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
	GCR_OBSTACLE_HIP_VERSION,
	GCR_OBSTACLE_COUNT
};

/*
 * Changes the number of such objects by @count (may be negative) and updates the page's message.
 * Any thread, any time.
 */
void gcr_obstacle_add(enum gcr_obstacle obstacle, int count);

/* Changes the number of pieces of memory that are shared with other processes now by @count. */
void gcr_sharing_add(int count);

/*
 * For a function that is inside the gate and makes a driver call that shares memory or creates an
 * obstacle: counts one from here to the end of the block, by which time the function has counted
 * the actual result. So a reader of the page misses none once no driver call can complete any more.
 */
#define GCR_SHARING_PENDING() \
	_cleanup_(gcr_sharing_end) int sharing_ __attribute__((unused)) = gcr_sharing_begin()
#define GCR_OBSTACLE_PENDING(obstacle)                          \
	_cleanup_(gcr_obstacle_end) enum gcr_obstacle obstacle_ \
		__attribute__((unused)) = gcr_obstacle_begin(obstacle)

static inline int gcr_sharing_begin(void)
{
	gcr_sharing_add(1);
	return 1;
}

static inline void gcr_sharing_end(int *unused)
{
	gcr_sharing_add(-1);
}

static inline enum gcr_obstacle gcr_obstacle_begin(enum gcr_obstacle obstacle)
{
	gcr_obstacle_add(obstacle, 1);
	return obstacle;
}

static inline void gcr_obstacle_end(const enum gcr_obstacle *obstacle)
{
	gcr_obstacle_add(*obstacle, -1);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Obstacles to a freeze, counted by kind. The page shows the message of the first kind that is
 * present. A reader may see a mix of two messages while the page changes, and has to read again.
 */
#include "backend/preload/memory/obstacle.h"

#include <pthread.h>
#include <string.h>

#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"

#ifdef GCR_HIP
#define CREATE "hipMemCreate"
#else
#define CREATE "cuMemCreate"
#endif

/* Each at most 127 bytes, the room in the page. */
static const char *const words[GCR_OBSTACLE_COUNT] = {
	[GCR_OBSTACLE_NONE] = "",
	[GCR_OBSTACLE_DMA_BUF] =
		"a dma-buf export of GPU memory: a device would go on writing to its old pages",
	[GCR_OBSTACLE_MULTICAST] = "a multicast object: it cannot be taken apart and made again",
	[GCR_OBSTACLE_LOGICAL_ENDPOINT] =
		"a logical endpoint: other GPUs would go on writing to its old pages",
	[GCR_OBSTACLE_FABRIC] = "memory with a fabric handle: other machines may have it mapped",
	[GCR_OBSTACLE_HOST_MEMORY] = "host memory made by " CREATE
				     ": the driver does not bring it back",
	[GCR_OBSTACLE_COMPRESSIBLE] =
		"compressible memory: it would come back as memory of another kind",
	[GCR_OBSTACLE_SPECIAL_USE] = "memory made by " CREATE
				     " for a special use: it would come back without it",
	[GCR_OBSTACLE_SPARSE_ARRAY] = "memory mapped into a sparse array: it cannot be unmapped",
	[GCR_OBSTACLE_POOL] = "a memory pool shared with another process",
	[GCR_OBSTACLE_HOST_POOL] = "a memory pool in host memory: the driver does not bring host "
				   "memory of its own back",
	[GCR_OBSTACLE_MANAGED_POOL] =
		"a pool of managed memory: what is in it cannot be taken out piece by piece",
	[GCR_OBSTACLE_SOME_POOL] =
		"a memory pool at a location of a kind that came after this library",
	[GCR_OBSTACLE_EVENT] = "an event shared with another process",
	[GCR_OBSTACLE_EXTERNAL_MEMORY] = "memory imported from a graphics API",
	[GCR_OBSTACLE_EXTERNAL_SEMAPHORE] = "a semaphore imported from a graphics API",
	[GCR_OBSTACLE_GRAPHICS] = "a resource of a graphics API",
	[GCR_OBSTACLE_MANAGED] = "managed memory that could not be noted",
	[GCR_OBSTACLE_HIP_VERSION] =
		"this version of HIP: it cannot hand memory over and free it, as ROCm 6.3.2, "
		"6.4.2 and newer do (but not 7.14)",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int counts[GCR_OBSTACLE_COUNT];

void gcr_obstacle_add(enum gcr_obstacle obstacle, int count)
{
	struct gcr_page *page = gcr_gate_page();
	enum gcr_obstacle first = GCR_OBSTACLE_NONE;

	if (obstacle == GCR_OBSTACLE_NONE)
		return;
	pthread_mutex_lock(&lock);
	counts[obstacle] += count;
	for (int i = GCR_OBSTACLE_COUNT - 1; i > GCR_OBSTACLE_NONE; i--)
		if (counts[i] > 0)
			first = (enum gcr_obstacle)i;
	if (page)
		strncpy(page->obstacle, words[first], sizeof(page->obstacle) - 1);
	pthread_mutex_unlock(&lock);
}

void gcr_sharing_add(int count)
{
	struct gcr_page *page = gcr_gate_page();

	if (page)
		__atomic_add_fetch(&page->sharings, (uint32_t)count, __ATOMIC_SEQ_CST);
}

static void forget(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(counts, 0, sizeof(counts));
}

GCR_LISTEN(fork, forget);

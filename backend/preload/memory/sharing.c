/* SPDX-License-Identifier: MIT */
/*
 * Calls that make an object which a freeze would break, and calls that destroy one. They call the
 * driver and update the page. For some objects no end is seen here: only the driver knows whether a
 * process still has a descriptor, or whether a device has registered a dma-buf. Such an object
 * counts until the program has given up the memory.
 *
 * Types that are not in cuda_api.h are treated as pointers or numbers: cuda.h, cudaGL.h, cudaEGL.h
 * and cudaVDPAU.h define them.
 */
#include <stdint.h>
#include <stdlib.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/memory/obstacle.h"
#include "backend/preload/memory/shared_object.h"
#include "backend/preload/memory/table.h"
#include "lib/cleanup.h"

/* Wrapper that runs @after if the call has succeeded. @obstacle counts during the call. */
#define SHARE(symbol, parameters, arguments, obstacle, after)   \
	GCR_OWN(symbol);                                        \
	CUresult gcr_own_##symbol parameters                    \
	{                                                       \
		__typeof__(symbol) *real = GCR_WRAPPED(symbol); \
		CUresult result;                                \
                                                                \
		if (!real)                                      \
			return CUDA_ERROR_NOT_FOUND;            \
		GCR_GATE_WHOLE(symbol);                         \
		GCR_OBSTACLE_PENDING(obstacle);                 \
		result = real arguments;                        \
		if (result == CUDA_SUCCESS)                     \
			after;                                  \
		return result;                                  \
	}

/* Wrapper of a call that ends the sharing of @value, an object of @kind. */
#define END(symbol, type, value, kind)                              \
	GCR_OWN(symbol);                                            \
	CUresult gcr_own_##symbol(type value)                       \
	{                                                           \
		__typeof__(symbol) *real = GCR_WRAPPED(symbol);     \
		struct gcr_shared_end end;                          \
		CUresult result;                                    \
                                                                    \
		if (!real)                                          \
			return CUDA_ERROR_NOT_FOUND;                \
		GCR_GATE_WHOLE(symbol);                             \
		end = gcr_shared_begin_end(kind, number_of(value)); \
		result = real(value);                               \
		gcr_shared_finish_end(&end, result);                \
		return result;                                      \
	}

/* Wrapper that changes the number of @obstacle by @count if the call has succeeded. */
#define NOTE_AS(symbol, like, parameters, arguments, before, obstacle, count)                   \
	GCR_OWN_AS(symbol, like);                                                               \
	CUresult gcr_own_##symbol parameters                                                    \
	{                                                                                       \
		__typeof__(like) *real = (__typeof__(like) *)gcr_entry_real(GCR_ENTRY(symbol)); \
		CUresult result;                                                                \
                                                                                                \
		if (!real)                                                                      \
			return CUDA_ERROR_NOT_FOUND;                                            \
		GCR_GATE(symbol);                                                               \
		GCR_OBSTACLE_PENDING((count) > 0 ? (obstacle) : GCR_OBSTACLE_NONE);             \
		before;                                                                         \
		result = real arguments;                                                        \
		if (result == CUDA_SUCCESS)                                                     \
			gcr_obstacle_add(obstacle, count);                                      \
		return result;                                                                  \
	}
#define NOTE(symbol, parameters, arguments, obstacle, count) \
	NOTE_AS(symbol, symbol, parameters, arguments, (void)0, obstacle, count)
#define DECLARE(symbol, parameters, arguments, obstacle, count) \
	CUresult symbol parameters;                             \
	NOTE(symbol, parameters, arguments, obstacle, count)

static uint64_t number_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

static CUcontext current_context(void)
{
	CUcontext context = NULL;

	gcr_green_current_owner(&context);
	return context;
}

/* ---- dma-bufs ---- */

/*
 * Counts the memory of the range as shared, until it is freed: all memory of the table, and one
 * piece of the driver's own. The driver makes no dma-buf of more than one piece of its own memory.
 */
static void note_range(CUdeviceptr start, size_t bytes)
{
	CUdeviceptr at = start, base = start;

	gcr_table_lock();
	for (struct gcr_mapping *mapping; at < start + bytes;
	     at = mapping->start + mapping->bytes) {
		mapping = gcr_table_find_mapping(at);
		if (!mapping)
			break;
		gcr_table_obstruct(mapping->memory, GCR_OBSTACLE_DMA_BUF);
	}
	gcr_table_unlock();
	if (at >= start + bytes)
		return;
	if (GCR_REAL(cuMemGetAddressRange_v2))
		GCR_REAL(cuMemGetAddressRange_v2)(&base, NULL, at);
	gcr_shared_note(GCR_SHARED_RANGE, base, current_context());
}

SHARE(cuMemGetHandleForAddressRange,
      (void *handle, CUdeviceptr pointer, size_t bytes, CUmemRangeHandleType type,
       unsigned long long flags),
      (handle, pointer, bytes, type, flags), GCR_OBSTACLE_DMA_BUF, note_range(pointer, bytes))

#ifdef GCR_HIP /* pool.c handles those of CUDA */

/* ---- pools: their memory can outlive them ---- */

SHARE(cuMemPoolExportToShareableHandle,
      (void *handle, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
      (handle, pool, type, flags), GCR_OBSTACLE_POOL,
      gcr_shared_note(GCR_SHARED_POOL, number_of(pool), NULL))
SHARE(cuMemPoolImportFromShareableHandle,
      (CUmemoryPool * pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags),
      (pool, handle, type, flags), GCR_OBSTACLE_POOL,
      gcr_shared_note(GCR_SHARED_POOL, number_of(*pool), NULL))
END(cuMemPoolDestroy, CUmemoryPool, pool, GCR_SHARED_POOL)

SHARE(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer), (data, pointer),
      GCR_OBSTACLE_POOL, gcr_shared_note(GCR_SHARED_POOL_MEMORY, pointer, NULL))
SHARE(cuMemPoolImportPointer,
      (CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data),
      (pointer, pool, data), GCR_OBSTACLE_POOL,
      gcr_shared_note(GCR_SHARED_POOL_MEMORY, *pointer, NULL))

#endif

/* ---- events ---- */

SHARE(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), (handle, event),
      GCR_OBSTACLE_EVENT, gcr_shared_note(GCR_SHARED_EVENT, number_of(event), current_context()))
SHARE(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), (event, handle),
      GCR_OBSTACLE_EVENT, gcr_shared_note(GCR_SHARED_EVENT, number_of(*event), current_context()))
END(cuEventDestroy_v2, CUevent, event, GCR_SHARED_EVENT)
#ifndef GCR_HIP
CUresult cuEventDestroy(CUevent event);
END(cuEventDestroy, CUevent, event, GCR_SHARED_EVENT)
#endif

/* ---- memory behind arrays ---- */

struct CUarrayMapInfo;
CUresult cuMemMapArrayAsync(struct CUarrayMapInfo *list, unsigned int count, CUstream stream);
#ifdef GCR_HIP
NOTE_AS(cuMemMapArrayAsync, cuMemMapArrayAsync,
	(struct CUarrayMapInfo * list, unsigned int count, CUstream stream), (list, count, stream),
	gcr_gate_submitted(), GCR_OBSTACLE_SPARSE_ARRAY, 1)
#else

/* CUarrayMapInfo of cuda.h, as far as needed here: its handle names the memory. */
struct CUarrayMapInfo {
	uint64_t what[8];
	uint64_t handle;
	uint64_t where[3];
};

/*
 * Returns a copy of the list with the driver's handles; the caller frees it. NULL: the list is
 * empty, or out of memory.
 */
static struct CUarrayMapInfo *with_real_handles(const struct CUarrayMapInfo *list,
						unsigned int count)
{
	struct CUarrayMapInfo *real = list && count ? calloc(count, sizeof(*list)) : NULL;

	for (unsigned int i = 0; real && i < count; i++) {
		real[i] = list[i];
		gcr_table_translate(&real[i].handle, 1);
	}
	return real;
}

#define MAP_ARRAY(symbol)                                                          \
	GCR_OWN_AS(symbol, cuMemMapArrayAsync);                                    \
	CUresult gcr_own_##symbol(struct CUarrayMapInfo *list, unsigned int count, \
				  CUstream stream)                                 \
	{                                                                          \
		__typeof__(cuMemMapArrayAsync) *real =                             \
			(__typeof__(real))gcr_entry_real(GCR_ENTRY(symbol));       \
		_cleanup_free_ struct CUarrayMapInfo *real_list = NULL;            \
		CUresult result;                                                   \
                                                                                   \
		if (!real)                                                         \
			return CUDA_ERROR_NOT_FOUND;                               \
		GCR_GATE_WHOLE(symbol);                                            \
		gcr_gate_submitted();                                              \
		real_list = with_real_handles(list, count);                        \
		if (!real_list && list && count)                                   \
			return CUDA_ERROR_OUT_OF_MEMORY;                           \
		result = real(real_list, count, stream);                           \
		if (result == CUDA_SUCCESS)                                        \
			gcr_obstacle_add(GCR_OBSTACLE_SPARSE_ARRAY, 1);            \
		return result;                                                     \
	}

MAP_ARRAY(cuMemMapArrayAsync)
MAP_ARRAY(cuMemMapArrayAsync_ptsz)

#endif

/* ---- other APIs ---- */

DECLARE(cuImportExternalMemory, (void **memory, const void *description), (memory, description),
	GCR_OBSTACLE_EXTERNAL_MEMORY, 1)
DECLARE(cuDestroyExternalMemory, (void *memory), (memory), GCR_OBSTACLE_EXTERNAL_MEMORY, -1)
DECLARE(cuImportExternalSemaphore, (void **semaphore, const void *description),
	(semaphore, description), GCR_OBSTACLE_EXTERNAL_SEMAPHORE, 1)
DECLARE(cuDestroyExternalSemaphore, (void *semaphore), (semaphore), GCR_OBSTACLE_EXTERNAL_SEMAPHORE,
	-1)

DECLARE(cuGraphicsGLRegisterBuffer, (void **resource, unsigned int buffer, unsigned int flags),
	(resource, buffer, flags), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuGraphicsGLRegisterImage,
	(void **resource, unsigned int image, unsigned int target, unsigned int flags),
	(resource, image, target, flags), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuGraphicsUnregisterResource, (void *resource), (resource), GCR_OBSTACLE_GRAPHICS, -1)

#ifndef GCR_HIP

DECLARE(cuGraphicsEGLRegisterImage, (void **resource, void *image, unsigned int flags),
	(resource, image, flags), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuGraphicsVDPAURegisterVideoSurface,
	(void **resource, uint32_t surface, unsigned int flags), (resource, surface, flags),
	GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuGraphicsVDPAURegisterOutputSurface,
	(void **resource, uint32_t surface, unsigned int flags), (resource, surface, flags),
	GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuEGLStreamConsumerConnect, (void **connection, void *stream), (connection, stream),
	GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuEGLStreamConsumerConnectWithFlags, (void **connection, void *stream, unsigned int flags),
	(connection, stream, flags), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuEGLStreamConsumerDisconnect, (void **connection), (connection), GCR_OBSTACLE_GRAPHICS, -1)
DECLARE(cuEGLStreamProducerConnect, (void **connection, void *stream, int width, int height),
	(connection, stream, width, height), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuEGLStreamProducerDisconnect, (void **connection), (connection), GCR_OBSTACLE_GRAPHICS, -1)
CUresult cuEventCreateFromEGLSync(CUevent *event, void *sync, unsigned int flags);
SHARE(cuEventCreateFromEGLSync, (CUevent * event, void *sync, unsigned int flags),
      (event, sync, flags), GCR_OBSTACLE_EVENT,
      gcr_shared_note(GCR_SHARED_EVENT, number_of(*event), current_context()))

DECLARE(cuGLRegisterBufferObject, (unsigned int buffer), (buffer), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuGLUnregisterBufferObject, (unsigned int buffer), (buffer), GCR_OBSTACLE_GRAPHICS, -1)

#endif

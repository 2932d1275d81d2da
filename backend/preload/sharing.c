/* SPDX-License-Identifier: MIT */
/*
 * Calls that make something which a freeze would break, and some that end it. They do what the
 * driver does, and the page says what is there. What has no end that is seen here (a descriptor
 * that anybody may have, a pool or an event in other processes) stays for good.
 *
 * Types that are not in cuda_api.h are pointers or numbers as far as this goes: cuda.h, cudaGL.h,
 * cudaEGL.h and cudaVDPAU.h have them.
 */
#include "backend/cuda/cuda_api.h"
#include "backend/preload/entry_points.h"
#include "backend/preload/gate.h"
#include "backend/preload/obstacle.h"
#include "lib/cleanup.h"

/* When the call has succeeded, there is one more of them, or one less. */
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

/* ---- memory that others reach ---- */

NOTE(cuMemGetHandleForAddressRange,
     (void *handle, CUdeviceptr pointer, size_t bytes, CUmemRangeHandleType type,
      unsigned long long flags),
     (handle, pointer, bytes, type, flags), GCR_OBSTACLE_DMA_BUF, 1)

NOTE(cuMemPoolExportToShareableHandle,
     (void *handle, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
     (handle, pool, type, flags), GCR_OBSTACLE_POOL, 1)
NOTE(cuMemPoolImportFromShareableHandle,
     (CUmemoryPool * pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags),
     (pool, handle, type, flags), GCR_OBSTACLE_POOL, 1)
NOTE(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer), (data, pointer),
     GCR_OBSTACLE_POOL, 1)
NOTE(cuMemPoolImportPointer,
     (CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data),
     (pointer, pool, data), GCR_OBSTACLE_POOL, 1)

NOTE(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), (handle, event),
     GCR_OBSTACLE_EVENT, 1)
NOTE(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), (event, handle),
     GCR_OBSTACLE_EVENT, 1)

/* ---- memory behind arrays ---- */

struct CUarrayMapInfo;
CUresult cuMemMapArrayAsync(struct CUarrayMapInfo *list, unsigned int count, CUstream stream);
NOTE_AS(cuMemMapArrayAsync, cuMemMapArrayAsync,
	(struct CUarrayMapInfo * list, unsigned int count, CUstream stream), (list, count, stream),
	gcr_gate_submitted(), GCR_OBSTACLE_SPARSE_ARRAY, 1)
#ifndef GCR_HIP
NOTE_AS(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync,
	(struct CUarrayMapInfo * list, unsigned int count, CUstream stream), (list, count, stream),
	gcr_gate_submitted(), GCR_OBSTACLE_SPARSE_ARRAY, 1)
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
DECLARE(cuEventCreateFromEGLSync, (CUevent * event, void *sync, unsigned int flags),
	(event, sync, flags), GCR_OBSTACLE_EVENT, 1)

DECLARE(cuGLRegisterBufferObject, (unsigned int buffer), (buffer), GCR_OBSTACLE_GRAPHICS, 1)
DECLARE(cuGLUnregisterBufferObject, (unsigned int buffer), (buffer), GCR_OBSTACLE_GRAPHICS, -1)

#endif

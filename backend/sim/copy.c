/* SPDX-License-Identifier: MIT */
/*
 * cuMemcpy* and cuMemset*. A call without a stream uses the default stream and waits; memsets of
 * device memory do not wait, as on the GPU.
 */
#include "backend/sim/sim.h"

static bool is_device(CUdeviceptr address)
{
	bool device;

	pthread_rwlock_rdlock(&sim.map_lock);
	device = memory_is_device(address);
	pthread_rwlock_unlock(&sim.map_lock);
	return device;
}

static bool is_accessible(unsigned devices, CUdeviceptr address, size_t size_bytes, bool write)
{
	const struct accessor by = {.devices = devices, .peers = ACCESSOR_COPY_PEERS};
	bool accessible;

	pthread_rwlock_rdlock(&sim.map_lock);
	accessible = memory_accessible(&by, address, size_bytes, write);
	pthread_rwlock_unlock(&sim.map_lock);
	return accessible;
}

/* Returns true for host memory that the driver knows. */
static bool is_pinned(CUdeviceptr address)
{
	struct allocation *allocation;
	GCR_LOCK_SCOPE(&sim.lock);

	allocation = allocation_find(address);
	return allocation &&
	       (allocation->kind == ALLOCATION_HOST || allocation->kind == ALLOCATION_REGISTERED);
}

static bool is_known(CUdeviceptr address)
{
	return is_device(address) || is_pinned(address);
}

enum copy_side { SIDE_ANY, SIDE_HOST, SIDE_DEVICE };

/*
 * Checks an address of a copy. A device pointer must be valid for its whole length when the copy is
 * queued.
 */
static bool side_valid(enum copy_side side, unsigned devices, CUdeviceptr address,
		       size_t size_bytes, bool write)
{
	if (!address)
		return false;
	if (is_device(address))
		return is_accessible(devices, address, size_bytes, write);
	return side != SIDE_DEVICE || is_pinned(address);
}

/* Submits a copy by the stream's GPU; the GPUs in item->copy.devices may access the memory too. */
static CUresult copy_submit(CUstream handle, struct work *item, enum copy_side to_side,
			    enum copy_side from_side, bool synchronous)
{
	size_t width = item->copy.width, height = item->copy.height;
	CUdeviceptr to = (CUdeviceptr)item->copy.to, from = (CUdeviceptr)item->copy.from;
	struct fence *fence = NULL;
	CUstream stream;
	CUresult result = stream_argument(handle, &stream);

	if (result)
		return result;
	if (!width || !height)
		return CUDA_SUCCESS;
	item->copy.devices |= 1u << stream->context->device;
	if (!side_valid(to_side, item->copy.devices, to, (height - 1) * item->copy.to_pitch + width,
			true) ||
	    !side_valid(from_side, item->copy.devices, from,
			(height - 1) * item->copy.from_pitch + width, false))
		return CUDA_ERROR_INVALID_VALUE;
	/* A copy from or to pageable memory returns only after the memory has been accessed. */
	if (!stream->capture && (!is_known(to) || !is_known(from)))
		synchronous = true;
	result = stream_submit(stream, item, NULL, synchronous ? &fence : NULL);
	if (result || !fence)
		return result;
	fence_wait(fence);
	fence_unref(fence);
	return (CUresult)atomic_load(&context_owner(stream->context)->failure);
}

static struct work copy_1d(CUdeviceptr to, CUdeviceptr from, size_t size_bytes)
{
	struct work item = {.kind = WORK_COPY};

	item.copy.to = (void *)to;
	item.copy.from = (const void *)from;
	item.copy.width = size_bytes;
	item.copy.height = 1;
	return item;
}

#define COPY(stream, to, from, bytes, to_side, from_side, synchronous)                      \
	({                                                                                  \
		struct work item_ = copy_1d((CUdeviceptr)(to), (CUdeviceptr)(from), bytes); \
		copy_submit(stream, &item_, to_side, from_side, synchronous);               \
	})

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	SIM_ENTER();
	return COPY(NULL, dst, src, bytes, SIDE_ANY, SIDE_ANY, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SIM_ENTER();
	return COPY(stream, dst, src, bytes, SIDE_ANY, SIDE_ANY, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	SIM_ENTER();
	return COPY(NULL, dst, src, bytes, SIDE_DEVICE, SIDE_HOST, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	SIM_ENTER();
	return COPY(stream, dst, src, bytes, SIDE_DEVICE, SIDE_HOST, false);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	SIM_ENTER();
	return COPY(NULL, dst, src, bytes, SIDE_HOST, SIDE_DEVICE, true);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SIM_ENTER();
	return COPY(stream, dst, src, bytes, SIDE_HOST, SIDE_DEVICE, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	SIM_ENTER();
	return COPY(NULL, dst, src, bytes, SIDE_DEVICE, SIDE_DEVICE, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SIM_ENTER();
	return COPY(stream, dst, src, bytes, SIDE_DEVICE, SIDE_DEVICE, false);
}

static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			  CUcontext from_context, size_t size_bytes, CUstream stream,
			  bool synchronous)
{
	struct work item = copy_1d(to, from, size_bytes);

	if (!context_valid(to_context) || !context_valid(from_context))
		return CUDA_ERROR_INVALID_CONTEXT;
	item.copy.devices = 1u << to_context->device | 1u << from_context->device;
	return copy_submit(stream, &item, SIDE_DEVICE, SIDE_DEVICE, synchronous);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
		      CUcontext src_context, size_t bytes)
{
	SIM_ENTER();
	return copy_peer(dst, dst_context, src, src_context, bytes, NULL, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
			   CUcontext src_context, size_t bytes, CUstream stream)
{
	SIM_ENTER();
	return copy_peer(dst, dst_context, src, src_context, bytes, stream, false);
}

static CUresult side_2d(CUmemorytype type, const void *host, CUdeviceptr device,
			enum copy_side *ret_side, CUdeviceptr *ret_address)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		*ret_side = SIDE_HOST;
		*ret_address = (CUdeviceptr)host;
		return CUDA_SUCCESS;
	case CU_MEMORYTYPE_DEVICE:
	case CU_MEMORYTYPE_UNIFIED:
		*ret_side = type == CU_MEMORYTYPE_DEVICE ? SIDE_DEVICE : SIDE_ANY;
		*ret_address = device;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool synchronous)
{
	struct work item = {.kind = WORK_COPY};
	enum copy_side to_side, from_side;
	CUdeviceptr to, from;
	CUresult result;

	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	result = side_2d(copy->srcMemoryType, copy->srcHost, copy->srcDevice, &from_side, &from);
	if (!result)
		result =
			side_2d(copy->dstMemoryType, copy->dstHost, copy->dstDevice, &to_side, &to);
	if (result)
		return result;
	item.copy.from_pitch = copy->srcPitch ? copy->srcPitch : copy->WidthInBytes;
	item.copy.to_pitch = copy->dstPitch ? copy->dstPitch : copy->WidthInBytes;
	if (item.copy.from_pitch < copy->WidthInBytes || item.copy.to_pitch < copy->WidthInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	item.copy.from =
		(const void *)(from + copy->srcY * item.copy.from_pitch + copy->srcXInBytes);
	item.copy.to = (void *)(to + copy->dstY * item.copy.to_pitch + copy->dstXInBytes);
	item.copy.width = copy->WidthInBytes;
	item.copy.height = copy->Height;
	return copy_submit(stream, &item, to_side, from_side, synchronous);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	SIM_ENTER();
	return copy_2d(copy, NULL, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	SIM_ENTER();
	return copy_2d(copy, NULL, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	SIM_ENTER();
	return copy_2d(copy, stream, false);
}

static CUresult set(CUstream handle, CUdeviceptr to, size_t pitch, unsigned value,
		    unsigned element_bytes, size_t width, size_t height)
{
	struct work item = {.kind = WORK_SET};
	CUstream stream;
	CUresult result = stream_argument(handle, &stream);

	if (result)
		return result;
	if (!width || !height)
		return CUDA_SUCCESS;
	if (to % element_bytes || (height > 1 && pitch < width * element_bytes) ||
	    !side_valid(SIDE_DEVICE, 1u << stream->context->device, to,
			(height - 1) * pitch + width * element_bytes, true))
		return CUDA_ERROR_INVALID_VALUE;
	item.set.to = to;
	item.set.pitch = pitch;
	item.set.value = value;
	item.set.element_bytes = element_bytes;
	item.set.width = width;
	item.set.height = height;
	return stream_submit(stream, &item, NULL, NULL);
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count)
{
	SIM_ENTER();
	return set(NULL, dst, 0, value, 1, count, 1);
}

CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t count)
{
	SIM_ENTER();
	return set(NULL, dst, 0, value, 2, count, 1);
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned value, size_t count)
{
	SIM_ENTER();
	return set(NULL, dst, 0, value, 4, count, 1);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
			 size_t height)
{
	SIM_ENTER();
	return set(NULL, dst, pitch, value, 1, width, height);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch, unsigned value, size_t width,
			  size_t height)
{
	SIM_ENTER();
	return set(NULL, dst, pitch, value, 4, width, height);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
	SIM_ENTER();
	return set(stream, dst, 0, value, 1, count, 1);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
{
	SIM_ENTER();
	return set(stream, dst, 0, value, 2, count, 1);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream)
{
	SIM_ENTER();
	return set(stream, dst, 0, value, 4, count, 1);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
			   size_t height, CUstream stream)
{
	SIM_ENTER();
	return set(stream, dst, pitch, value, 1, width, height);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned value, size_t width,
			    size_t height, CUstream stream)
{
	SIM_ENTER();
	return set(stream, dst, pitch, value, 4, width, height);
}

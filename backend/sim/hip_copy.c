/* SPDX-License-Identifier: MIT */
/*
 * Copies and memsets. The kind of a copy is validated; then the pointers determine it. A
 * synchronous copy ends every open capture.
 */
#include "backend/sim/hip.h"

#define KIND_WITHOUT_KERNEL 1024 /* hipMemcpyDeviceToDeviceNoCU */

static CUresult check(const void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
	CUresult result;

	if (!to || !from)
		return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned)kind > hipMemcpyDefault && (unsigned)kind != KIND_WITHOUT_KERNEL)
		return (CUresult)hipErrorInvalidMemcpyDirection;
	result = hip_memory_check(from, bytes, false);
	return result ? result : hip_memory_check(to, bytes, true);
}

static CUresult copy(void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
	CUresult result = hip_captures_end();

	if (result || !bytes)
		return result;
	result = check(to, from, bytes, kind);
	return result ? result : cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, bytes);
}

static CUresult copy_async(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
			   hipStream_t stream)
{
	CUresult result;

	if (!bytes)
		return CUDA_SUCCESS;
	result = check(to, from, bytes, kind);
	return result ? result
		      : cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, (CUstream)stream);
}

hipError_t hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(copy(to, from, bytes, kind));
}

hipError_t hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
			  hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(copy_async(to, from, bytes, kind, handle));
}

/* Waits for the stream, unless the stream is capturing. */
hipError_t hipMemcpyWithStream(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
			       hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	CUresult result = copy_async(to, from, bytes, kind, handle);

	HIP_RETURN(result || stream->capture ? result : cuStreamSynchronize((CUstream)handle));
}

hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void *from, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(copy(to, from, bytes, hipMemcpyHostToDevice));
}

hipError_t hipMemcpyDtoH(void *to, hipDeviceptr_t from, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(copy(to, from, bytes, hipMemcpyDeviceToHost));
}

hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(copy(to, from, bytes, hipMemcpyDeviceToDevice));
}

hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void *from, size_t bytes, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(copy_async(to, from, bytes, hipMemcpyHostToDevice, handle));
}

hipError_t hipMemcpyDtoHAsync(void *to, hipDeviceptr_t from, size_t bytes, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(copy_async(to, from, bytes, hipMemcpyDeviceToHost, handle));
}

hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes,
			      hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(copy_async(to, from, bytes, hipMemcpyDeviceToDevice, handle));
}

static CUresult peer_contexts(int to, int from, CUcontext *ret_to, CUcontext *ret_from)
{
	CUresult result = context_primary(to, true, ret_to);

	return result ? result : context_primary(from, true, ret_from);
}

hipError_t hipMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	CUcontext to_context, from_context;
	CUresult result = peer_contexts(to_device, from_device, &to_context, &from_context);

	HIP_RETURN(result ? result
			  : cuMemcpyPeer((CUdeviceptr)to, to_context, (CUdeviceptr)from,
					 from_context, bytes));
}

hipError_t hipMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
			      size_t bytes, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	CUcontext to_context, from_context;
	CUresult result = peer_contexts(to_device, from_device, &to_context, &from_context);

	HIP_RETURN(result ? result
			  : cuMemcpyPeerAsync((CUdeviceptr)to, to_context, (CUdeviceptr)from,
					      from_context, bytes, (CUstream)handle));
}

/* ---- two-dimensional copies ---- */

static CUDA_MEMCPY2D rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			       size_t width, size_t height)
{
	return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .srcDevice = (CUdeviceptr)from,
			       .srcPitch = from_pitch,
			       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .dstDevice = (CUdeviceptr)to,
			       .dstPitch = to_pitch,
			       .WidthInBytes = width,
			       .Height = height};
}

static CUresult copy_2d(const CUDA_MEMCPY2D *rectangle_, hipStream_t stream, bool synchronous)
{
	CUresult result = synchronous ? hip_captures_end() : CUDA_SUCCESS;

	if (result)
		return result;
	return synchronous ? cuMemcpy2D_v2(rectangle_)
			   : cuMemcpy2DAsync_v2(rectangle_, (CUstream)stream);
}

hipError_t hipMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
		       size_t height, hipMemcpyKind kind)
{
	HIP_ENTER_CONTEXT(context);
	CUDA_MEMCPY2D area = rectangle(to, to_pitch, from, from_pitch, width, height);
	CUresult result = check(to, from, 0, kind);

	HIP_RETURN(result ? result : copy_2d(&area, NULL, true));
}

hipError_t hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			    size_t width, size_t height, hipMemcpyKind kind, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	CUDA_MEMCPY2D area = rectangle(to, to_pitch, from, from_pitch, width, height);
	CUresult result = check(to, from, 0, kind);

	HIP_RETURN(result ? result : copy_2d(&area, handle, false));
}

/*
 * Returns true for memory other than arrays, which are not simulated. Types of memory have CUDA's
 * numbers for host and device.
 */
static bool plain(hipMemoryType type)
{
	return type == hipMemoryTypeHost || type == hipMemoryTypeDevice ||
	       type == hipMemoryTypeUnified || type == hipMemoryTypeManaged;
}

static CUresult param_2d(const hip_Memcpy2D *param, hipStream_t stream, bool synchronous)
{
	CUDA_MEMCPY2D area;

	if (!param)
		return CUDA_ERROR_INVALID_VALUE;
	if (!plain(param->srcMemoryType) || !plain(param->dstMemoryType))
		return CUDA_ERROR_NOT_SUPPORTED;
	area = rectangle(
		param->dstMemoryType == hipMemoryTypeHost ? param->dstHost : param->dstDevice,
		param->dstPitch,
		param->srcMemoryType == hipMemoryTypeHost ? param->srcHost : param->srcDevice,
		param->srcPitch, param->WidthInBytes, param->Height);
	area.srcXInBytes = param->srcXInBytes;
	area.srcY = param->srcY;
	area.dstXInBytes = param->dstXInBytes;
	area.dstY = param->dstY;
	return copy_2d(&area, stream, synchronous);
}

hipError_t hipMemcpyParam2D(const hip_Memcpy2D *param)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(param_2d(param, NULL, true));
}

hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D *param, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(param_2d(param, handle, false));
}

hipError_t hipDrvMemcpy2DUnaligned(const hip_Memcpy2D *param)
{
	return hipMemcpyParam2D(param);
}

/* ---- variables of the program ---- */

static CUresult symbol_part(const void *symbol, size_t bytes, size_t offset, void **ret_pointer)
{
	CUdeviceptr start;
	size_t size;
	CUresult result = hip_symbol_of(symbol, &start, &size);

	if (result)
		return result;
	if (offset > size || bytes > size - offset)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_pointer = (void *)(start + offset);
	return CUDA_SUCCESS;
}

hipError_t hipMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
			     hipMemcpyKind kind)
{
	HIP_ENTER_CONTEXT(context);
	void *to;
	CUresult result = symbol_part(symbol, bytes, offset, &to);

	HIP_RETURN(result ? result : copy(to, from, bytes, kind));
}

hipError_t hipMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
				  hipMemcpyKind kind, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	void *to;
	CUresult result = symbol_part(symbol, bytes, offset, &to);

	HIP_RETURN(result ? result : copy_async(to, from, bytes, kind, handle));
}

hipError_t hipMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset,
			       hipMemcpyKind kind)
{
	HIP_ENTER_CONTEXT(context);
	void *from;
	CUresult result = symbol_part(symbol, bytes, offset, &from);

	HIP_RETURN(result ? result : copy(to, from, bytes, kind));
}

hipError_t hipMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
				    hipMemcpyKind kind, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	void *from;
	CUresult result = symbol_part(symbol, bytes, offset, &from);

	HIP_RETURN(result ? result : copy_async(to, from, bytes, kind, handle));
}

hipError_t hipGetSymbolAddress(void **pointer, const void *symbol)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start;
	size_t size;
	CUresult result = pointer ? hip_symbol_of(symbol, &start, &size) : CUDA_ERROR_INVALID_VALUE;

	if (!result)
		*pointer = (void *)start;
	HIP_RETURN(result);
}

hipError_t hipGetSymbolSize(size_t *size, const void *symbol)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start;

	HIP_RETURN(size ? hip_symbol_of(symbol, &start, size) : CUDA_ERROR_INVALID_VALUE);
}

/* ---- memsets ---- */

/* Sets device memory, or host memory known to HIP; any other host memory is an invalid value. */
static CUresult set(void *to, size_t pitch, unsigned value, unsigned element_bytes, size_t width,
		    size_t height, hipStream_t handle, bool synchronous)
{
	CUdeviceptr start = (CUdeviceptr)to;
	CUstream stream = (CUstream)handle;
	CUresult result = synchronous ? hip_captures_end() : CUDA_SUCCESS;

	if (result || !width || !height)
		return result;
	if (!to)
		return CUDA_ERROR_INVALID_VALUE;
	result = hip_memory_check(to, (height - 1) * pitch + width * element_bytes, true);
	if (result)
		return result;
	switch (element_bytes) {
	case 1:
		return cuMemsetD2D8Async(start, pitch ? pitch : width, (unsigned char)value, width,
					 height, stream);
	case 2:
		return cuMemsetD16Async(start, (unsigned short)value, width, stream);
	default:
		return cuMemsetD32Async(start, value, width, stream);
	}
}

hipError_t hipMemset(void *to, int value, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(set(to, 0, (unsigned)value, 1, bytes, 1, NULL, true));
}

hipError_t hipMemsetAsync(void *to, int value, size_t bytes, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(set(to, 0, (unsigned)value, 1, bytes, 1, handle, false));
}

hipError_t hipMemsetD8(hipDeviceptr_t to, unsigned char value, size_t count)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(set(to, 0, value, 1, count, 1, NULL, true));
}

hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count,
			    hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(set(to, 0, value, 1, count, 1, handle, false));
}

hipError_t hipMemsetD16(hipDeviceptr_t to, unsigned short value, size_t count)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(set(to, 0, value, 2, count, 1, NULL, true));
}

hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
			     hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(set(to, 0, value, 2, count, 1, handle, false));
}

hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(set(to, 0, (unsigned)value, 4, count, 1, NULL, true));
}

hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(set(to, 0, (unsigned)value, 4, count, 1, handle, false));
}

hipError_t hipMemset2D(void *to, size_t pitch, int value, size_t width, size_t height)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(set(to, pitch, (unsigned)value, 1, width, height, NULL, true));
}

hipError_t hipMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
			    hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(set(to, pitch, (unsigned)value, 1, width, height, handle, false));
}

hipError_t hipMemset3D(struct hip_pitched pitched, int value, struct hip_extent extent)
{
	HIP_ENTER_CONTEXT(context);
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < extent.depth && !result; i++)
		result = set((char *)pitched.pointer + i * pitched.height * pitched.pitch,
			     pitched.pitch, (unsigned)value, 1, extent.width, extent.height, NULL,
			     true);
	HIP_RETURN(result);
}

/* SPDX-License-Identifier: MIT */
/* Streams, events, and host functions in streams. */
#include "backend/sim/hip.h"

/* The priority is clamped to the valid range. */
static CUresult create(hipStream_t *handle, unsigned flags, int priority)
{
	CUstream stream;

	if (!handle || (flags != hipStreamDefault && flags != hipStreamNonBlocking))
		return CUDA_ERROR_INVALID_VALUE;
	stream = stream_create(context_current(), flags,
			       priority < -1  ? -1
			       : priority > 1 ? 1
					      : priority,
			       false);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = (hipStream_t)stream;
	return CUDA_SUCCESS;
}

hipError_t hipStreamCreate(hipStream_t *handle)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(create(handle, hipStreamDefault, 0));
}

hipError_t hipStreamCreateWithFlags(hipStream_t *handle, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(create(handle, flags, 0));
}

hipError_t hipStreamCreateWithPriority(hipStream_t *handle, unsigned flags, int priority)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(create(handle, flags, priority));
}

hipError_t hipExtStreamCreateWithCUMask(hipStream_t *handle, uint32_t words, const uint32_t *mask)
{
	HIP_ENTER_CONTEXT(context);
	if (!handle)
		HIP_RETURN(hipErrorInvalidHandle);
	HIP_RETURN(words && mask ? create(handle, hipStreamDefault, 0) : CUDA_ERROR_INVALID_VALUE);
}

/* Masks are not stored: all compute units may be used. */
hipError_t hipExtStreamGetCUMask(hipStream_t handle, uint32_t words, uint32_t *mask)
{
	HIP_ENTER_STREAM(stream, handle);
	if (!mask || !words)
		HIP_RETURN(hipErrorInvalidValue);
	memset(mask, 0, words * sizeof(*mask));
	mask[0] = 3;
	HIP_RETURN(hipSuccess);
}

hipError_t hipStreamDestroy(hipStream_t handle)
{
	HIP_ENTER();
	CUstream stream;
	CUresult result;

	if (!handle || handle == hipStreamPerThread)
		HIP_RETURN(hipErrorInvalidHandle);
	result = hip_stream(handle, &stream);
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		HIP_RETURN(result);
	HIP_RETURN(cuStreamDestroy_v2((CUstream)handle));
}

hipError_t hipStreamQuery(hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamQuery((CUstream)handle));
}

hipError_t hipStreamSynchronize(hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamSynchronize((CUstream)handle));
}

hipError_t hipStreamGetFlags(hipStream_t handle, unsigned *flags)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(handle ? cuStreamGetFlags((CUstream)handle, flags) : CUDA_ERROR_INVALID_VALUE);
}

hipError_t hipStreamGetPriority(hipStream_t handle, int *priority)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamGetPriority((CUstream)handle, priority));
}

hipError_t hipStreamGetDevice(hipStream_t handle, hipDevice_t *device)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamGetDevice((CUstream)handle, device));
}

hipError_t hipStreamWaitEvent(hipStream_t handle, hipEvent_t event, unsigned flags)
{
	HIP_ENTER();
	CUstream stream;
	CUresult result = event ? hip_stream(handle, &stream) : CUDA_ERROR_INVALID_HANDLE;

	if (result)
		HIP_RETURN(result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_HANDLE
								     : result);
	if (flags)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(cuStreamWaitEvent((CUstream)handle, (CUevent)event, 0));
}

hipError_t hipStreamAddCallback(hipStream_t handle, hipStreamCallback_t callback, void *data,
				unsigned flags)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamAddCallback((CUstream)handle, (CUstreamCallback)callback, data, flags));
}

hipError_t hipLaunchHostFunc(hipStream_t handle, hipHostFn_t function, void *data)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuLaunchHostFunc((CUstream)handle, function, data));
}

hipError_t hipStreamWaitValue32(hipStream_t handle, void *pointer, uint32_t value, unsigned flags,
				uint32_t mask)
{
	HIP_ENTER_STREAM(stream, handle);
	if (flags > hipStreamWaitValueNor)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(
		stream_wait_value((CUstream)handle, (CUdeviceptr)pointer, value, mask, flags, 4));
}

hipError_t hipStreamWaitValue64(hipStream_t handle, void *pointer, uint64_t value, unsigned flags,
				uint64_t mask)
{
	HIP_ENTER_STREAM(stream, handle);
	if (flags > hipStreamWaitValueNor)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(
		stream_wait_value((CUstream)handle, (CUdeviceptr)pointer, value, mask, flags, 8));
}

hipError_t hipStreamWriteValue32(hipStream_t handle, void *pointer, uint32_t value, unsigned flags)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamWriteValue32_v2((CUstream)handle, (CUdeviceptr)pointer, value, flags));
}

hipError_t hipStreamWriteValue64(hipStream_t handle, void *pointer, uint64_t value, unsigned flags)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamWriteValue64_v2((CUstream)handle, (CUdeviceptr)pointer, value, flags));
}

/* ---- events ---- */

#define DISABLE_SYSTEM_FENCE 0x20000000u /* hipEventDisableSystemFence, not in older headers */

hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	const unsigned release = hipEventReleaseToDevice | hipEventReleaseToSystem |
				 DISABLE_SYSTEM_FENCE;

	/* At most one of the three. */
	if (flags & release & ((flags & release) - 1))
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(cuEventCreate((CUevent *)event, flags & ~release));
}

hipError_t hipEventCreate(hipEvent_t *event)
{
	return hipEventCreateWithFlags(event, hipEventDefault);
}

hipError_t hipEventDestroy(hipEvent_t event)
{
	HIP_ENTER();
	CUresult result = cuEventDestroy_v2((CUevent)event);

	HIP_RETURN(event && result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_CONTEXT_IS_DESTROYED
								: result);
}

/* An event belongs to the device that was current when the event was created. */
hipError_t hipEventRecord(hipEvent_t event, hipStream_t handle)
{
	HIP_ENTER();
	CUstream stream;
	CUresult result = event_valid((CUevent)event) ? hip_stream(handle, &stream)
						      : CUDA_ERROR_INVALID_HANDLE;

	if (result)
		HIP_RETURN(result);
	if (!stream->capture && ((CUevent)event)->context->device != stream->context->device)
		HIP_RETURN(hipErrorInvalidHandle);
	HIP_RETURN(cuEventRecord((CUevent)event, (CUstream)handle));
}

hipError_t hipEventQuery(hipEvent_t event)
{
	HIP_ENTER();
	HIP_RETURN(cuEventQuery((CUevent)event));
}

hipError_t hipEventSynchronize(hipEvent_t event)
{
	HIP_ENTER();
	HIP_RETURN(cuEventSynchronize((CUevent)event));
}

hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop)
{
	HIP_ENTER();
	HIP_RETURN(cuEventElapsedTime(milliseconds, (CUevent)start, (CUevent)stop));
}

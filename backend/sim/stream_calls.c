/* SPDX-License-Identifier: MIT */
/* The entry points of streams: cuStream..., and cuLaunchHostFunc. */
#include "backend/sim/sim.h"

static CUresult create(CUcontext context, CUstream *phStream, unsigned flags, int priority)
{
	if (!phStream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*phStream = stream_create(context, flags,
				  priority < -5	 ? -5
				  : priority > 0 ? 0
						 : priority,
				  false);
	return *phStream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned flags, int priority)
{
	SIM_ENTER();
	CUcontext context = context_of_streams();
	CUresult result = context_check(context);

	return result ? result : create(context, phStream, flags, priority);
}

CUresult cuStreamCreate(CUstream *phStream, unsigned flags)
{
	SIM_ENTER();
	CUcontext context = context_of_streams();
	CUresult result = context_check(context);

	return result ? result : create(context, phStream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	SIM_ENTER();
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	return stream_destroy(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamDestroy(CUstream handle)
{
	return cuStreamDestroy_v2(handle);
}

CUresult cuStreamQuery(CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	CUresult result = capture_forbids(stream);

	if (!result)
		result = capture_forbids(NULL);
	if (result)
		return result;
	return stream_done(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	CUresult result = capture_forbids(stream);

	if (!result)
		result = capture_forbids(NULL);
	if (result)
		return result;
	if (stream->legacy) {
		/* The legacy stream waits for the blocking streams, as an operation in it would. */
		struct work nothing = {.kind = WORK_NOTHING};

		result = stream_submit(stream, &nothing, NULL, NULL);
		if (result)
			return result;
	}
	result = stream_wait(stream);
	pools_trim();
	return result;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *pctx)
{
	SIM_ENTER_STREAM(stream, handle);
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = stream->context;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
	SIM_ENTER_STREAM(stream, handle);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = stream->flags;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
	SIM_ENTER_STREAM(stream, handle);
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	SIM_ENTER_STREAM(stream, handle);
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = stream->id;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
	SIM_ENTER_STREAM(stream, handle);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = stream->context->device;
	return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned flags)
{
	SIM_ENTER_STREAM(stream, handle);
	struct work item = {.kind = WORK_CALLBACK};
	CUresult result;

	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	item.callback.function = callback;
	item.callback.stream = handle;
	item.callback.data = data;
	result = callbacks_start(context_owner(stream->context));
	return result ? result : stream_submit(stream, &item, NULL, NULL);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
	SIM_ENTER_STREAM(stream, handle);
	struct work item = {.kind = WORK_HOST_FUNCTION};
	CUresult result;

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	item.host.function = function;
	item.host.data = data;
	result = callbacks_start(context_owner(stream->context));
	return result ? result : stream_submit(stream, &item, NULL, NULL);
}

static CUresult value_operation(CUstream handle, enum work_kind kind, CUdeviceptr address,
				uint64_t value, uint64_t mask, unsigned flags, unsigned bytes)
{
	struct work item = {.kind = kind};
	CUstream stream;
	CUresult result = stream_argument(handle, &stream);

	if (result)
		return result;
	if (!address || address % bytes)
		return CUDA_ERROR_INVALID_VALUE;
	item.value.address = address;
	item.value.value = value;
	item.value.mask = mask;
	item.value.flags = flags;
	item.value.bytes = bytes;
	return stream_submit(stream, &item, NULL, NULL);
}

CUresult stream_wait_value(CUstream handle, CUdeviceptr address, uint64_t value, uint64_t mask,
			   unsigned flags, unsigned bytes)
{
	return value_operation(handle, WORK_WAIT_VALUE, address, value, mask, flags, bytes);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags)
{
	SIM_ENTER();
	return stream_wait_value(stream, addr, value, UINT64_MAX, flags, 4);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned flags)
{
	SIM_ENTER();
	return stream_wait_value(stream, addr, value, UINT64_MAX, flags, 8);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
				 unsigned flags)
{
	SIM_ENTER();
	return value_operation(stream, WORK_WRITE_VALUE, addr, value, UINT64_MAX, flags, 4);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
				 unsigned flags)
{
	SIM_ENTER();
	return value_operation(stream, WORK_WRITE_VALUE, addr, value, UINT64_MAX, flags, 8);
}

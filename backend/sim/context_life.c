/* SPDX-License-Identifier: MIT */
/*
 * The life of contexts: primary, created and green ones, with their streams, memory and accounting,
 * from the beginning to the end; their limits, and cuCtxSynchronize.
 */
#include "backend/sim/sim.h"

static struct CUctx_st *primary[SIM_MAX_GPUS]; /* sim.lock */
static unsigned primary_flags[SIM_MAX_GPUS];

static CUresult account(void)
{
	CUresult result;

	shared_lock();
	result = contexts_account();
	shared_unlock();
	return result;
}

static CUresult context_add(int device, unsigned flags, unsigned api_version,
			    CUcontext *ret_context)
{
	CUcontext context = calloc(1, sizeof(*context));
	CUresult result;

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->magic = CONTEXT_MAGIC;
	context->device = device;
	context->flags = flags;
	context->api_version = api_version;
	context->id = ++sim.next_serial;
	context->limits[CU_LIMIT_STACK_SIZE] = 1024;
	context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20;
	context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
	context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
	context_list_add(context);
	result = account();
	if (!result) {
		context->legacy = stream_create(context, CU_STREAM_DEFAULT, 0, true);
		if (!context->legacy)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!result && device_files_open() < 0)
		result = CUDA_ERROR_OPERATING_SYSTEM;
	if (result) {
		context_list_remove(context);
		streams_destroy(context);
		account();
		free(context);
		return result;
	}
	*ret_context = context;
	return CUDA_SUCCESS;
}

CUresult context_green_add(CUcontext owner, CUcontext *ret_context)
{
	CUcontext context = calloc(1, sizeof(*context));

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->magic = CONTEXT_MAGIC;
	context->device = owner->device;
	context->flags = owner->flags;
	context->api_version = owner->api_version;
	context->owner = owner;
	context->legacy = stream_create(context, CU_STREAM_DEFAULT, 0, true);
	if (!context->legacy) {
		free(context);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	GCR_LOCK_SCOPE(&sim.lock);
	context->id = ++sim.next_serial;
	context_list_add(context);
	*ret_context = context;
	return CUDA_SUCCESS;
}

void context_green_end(CUcontext context)
{
	GCR_LOCK_SCOPE(&sim.lock);

	if (context_list_remove(context)) {
		context_keep_ended(context);
		streams_detach(context);
	}
}

/*
 * Ends a context, after its work unless it has failed, and frees its memory. The caller does not
 * hold sim.lock.
 */
static void context_end(CUcontext context)
{
	CUcontext green;

	while ((green = context_green_of(context)))
		context_green_end(green);
	if (!atomic_load(&context->failure))
		context_wait(context);
	streams_destroy(context);
	callbacks_end(context);
	context_memory_free(context);
	GCR_LOCK_SCOPE(&sim.lock);
	context_list_remove(context);
	context_keep_ended(context);
	account();
	device_files_open();
}

/* Takes another reference to the device's primary context. sim.lock is held. */
static CUresult primary_retain(CUdevice dev, CUcontext *ret_context)
{
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!primary[dev]) {
		CUresult result = context_add(dev, primary_flags[dev], 3020, &primary[dev]);

		if (result)
			return result;
		primary[dev]->primary = true;
	}
	primary[dev]->references++;
	*ret_context = primary[dev];
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	return pctx ? primary_retain(dev, pctx) : CUDA_ERROR_INVALID_VALUE;
}

CUresult context_primary(int device, bool create, CUcontext *ret_context)
{
	GCR_LOCK_SCOPE(&sim.lock);

	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!primary[device] && create)
		return primary_retain(device, ret_context);
	*ret_context = primary[device];
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	SIM_ENTER();
	CUcontext context;

	pthread_mutex_lock(&sim.lock);
	context = device_valid(dev) ? primary[dev] : NULL;
	if (!context || --context->references) {
		pthread_mutex_unlock(&sim.lock);
		return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	}
	primary[dev] = NULL;
	pthread_mutex_unlock(&sim.lock);
	context_end(context);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	SIM_ENTER();
	CUcontext context;

	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sim.lock);
	context = primary[dev];
	primary[dev] = NULL;
	pthread_mutex_unlock(&sim.lock);
	if (context)
		context_end(context);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	primary_flags[dev] = flags;
	if (primary[dev])
		primary[dev]->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = primary_flags[dev];
	*active = primary[dev] != NULL;
	return CUDA_SUCCESS;
}

static CUresult context_create(CUcontext *pctx, unsigned flags, CUdevice dev, unsigned api_version)
{
	GCR_LOCK_SCOPE(&sim.lock);
	CUresult result;

	if (!pctx || flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (context_stack_is_full())
		return CUDA_ERROR_INVALID_VALUE;
	result = context_add(dev, flags, api_version, pctx);
	if (!result)
		context_push(*pctx);
	return result;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned flags, CUdevice dev)
{
	SIM_ENTER();
	return context_create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int count, unsigned flags,
			CUdevice dev)
{
	SIM_ENTER();
	if (params || count)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return context_create(pctx, flags, dev, 3030);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned flags, CUdevice dev)
{
	SIM_ENTER();
	if (params && (params->execAffinityParams || params->cigParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return context_create(pctx, flags, dev, 3030);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	SIM_ENTER();
	if (!context_valid(ctx))
		return ctx ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_VALUE;
	if (ctx->primary || ctx->owner)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context_current() == ctx)
		context_pop();
	context_end(ctx);
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

static CUresult context_synchronize(CUcontext context)
{
	CUresult result = context_ends_captures(context);

	if (result)
		return result;
	context_wait(context);
	pools_trim();
	return (CUresult)atomic_load(&context_owner(context)->failure);
}

CUresult cuCtxSynchronize(void)
{
	SIM_ENTER();
	CUresult result = context_check(context_of_streams());

	return result ? result : context_synchronize(context_of_streams());
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	SIM_ENTER();
	if (!context_valid(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	return context_synchronize(ctx);
}

static CUresult limit_set(CUcontext context, CUlimit limit, size_t value)
{
	GCR_LOCK_SCOPE(&sim.lock);
	size_t before = context->limits[limit];
	CUresult result;

	context->limits[limit] = value;
	result = account();
	if (result)
		context->limits[limit] = before;
	return result;
}

/* Measured: the stack size is rounded up to 16 bytes, and changing it waits for the GPU. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);

	if (result)
		return result;
	if (limit >= CU_LIMIT_MAX)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (context_of_streams()->owner)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (limit == CU_LIMIT_STACK_SIZE) {
		value = (value + 15) / 16 * 16;
		if (value != context->limits[limit])
			context_wait(context);
	}
	return limit_set(context, limit, value);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	SIM_ENTER_CONTEXT(context);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (limit >= CU_LIMIT_MAX)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/*
 * Contexts: primary and created ones, each thread's stack of current contexts, their limits, and
 * their VRAM in the shared table. A context is in the list while it can be used.
 */
#include "backend/sim/sim.h"

#define CONTEXT_STACK_DEPTH 32

static struct CUctx_st *contexts; /* sim.lock */
static struct CUctx_st *greens;	  /* sim.lock */
static struct CUctx_st *ended;	  /* threads may still have these as current contexts */
static struct CUctx_st *primary[SIM_MAX_GPUS];
static unsigned primary_flags[SIM_MAX_GPUS];

static __thread CUcontext stack[CONTEXT_STACK_DEPTH];
static __thread unsigned stack_depth;

bool device_valid(int device)
{
	return device >= 0 && (unsigned)device < sim.device_count;
}

bool device_has_context(int device)
{
	for (CUcontext context = contexts; context; context = context->next)
		if (context->device == device)
			return true;
	return false;
}

CUcontext context_of_streams(void)
{
	return stack_depth ? stack[stack_depth - 1] : NULL;
}

CUcontext context_owner(CUcontext context)
{
	return context && context->owner ? context->owner : context;
}

CUcontext context_current(void)
{
	return context_owner(context_of_streams());
}

static bool context_listed(CUcontext context)
{
	for (CUcontext other = contexts; other; other = other->next)
		if (other == context)
			return true;
	for (CUcontext other = greens; other; other = other->next)
		if (other == context)
			return true;
	return false;
}

bool context_valid(CUcontext context)
{
	GCR_LOCK_SCOPE(&sim.lock);

	return context_listed(context);
}

CUresult context_check(CUcontext context)
{
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context_valid(context))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return (CUresult)atomic_load(&context_owner(context)->failure);
}

CUcontext context_first(int device)
{
	for (CUcontext context = contexts; context; context = context->next)
		if (context->device == device)
			return context;
	return NULL;
}

/* Measured on an H100: 264 MiB plus 264 MiB for each KiB of stack, 528 MiB by default. */
uint64_t context_vram_bytes(const struct CUctx_st *context)
{
	uint64_t half = shared->default_context_bytes / 2;

	return half + half * context->limits[CU_LIMIT_STACK_SIZE] / 1024;
}

CUresult contexts_account(void)
{
	struct shared_process *self = &shared->processes[sim.index];
	uint64_t wanted[SIM_MAX_GPUS] = {0};

	for (CUcontext context = contexts; context; context = context->next)
		wanted[sim.gpu_of_device[context->device]] += context_vram_bytes(context);
	for (int attempt = 0; attempt < 2; attempt++) {
		bool fits = true;

		for (unsigned i = 0; i < shared->gpu_count; i++)
			if (wanted[i] > self->context_bytes[i] &&
			    shared_gpu_used_bytes(i) - self->context_bytes[i] + wanted[i] >
				    shared->gpus[i].capacity_bytes)
				fits = false;
		if (fits) {
			memcpy(self->context_bytes, wanted, sizeof(wanted));
			shared_changed();
			return CUDA_SUCCESS;
		}
		shared_reclaim();
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void contexts_unaccount(void)
{
	memset(shared->processes[sim.index].context_bytes, 0,
	       sizeof(shared->processes[sim.index].context_bytes));
	shared_changed();
}

void contexts_fail(CUresult result)
{
	for (CUcontext context = contexts; context; context = context->next)
		atomic_store(&context->failure, result);
}

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
	context->next = contexts;
	contexts = context;
	result = account();
	if (!result) {
		context->legacy = stream_create(context, CU_STREAM_DEFAULT, 0, true);
		if (!context->legacy)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!result && device_files_open() < 0)
		result = CUDA_ERROR_OPERATING_SYSTEM;
	if (result) {
		contexts = context->next;
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
	context->next = greens;
	greens = context;
	*ret_context = context;
	return CUDA_SUCCESS;
}

void context_green_end(CUcontext context)
{
	GCR_LOCK_SCOPE(&sim.lock);
	for (struct CUctx_st **link = &greens; *link; link = &(*link)->next)
		if (*link == context) {
			*link = context->next;
			context->next = ended;
			ended = context;
			streams_detach(context);
			return;
		}
}

/* Returns a green context of this owner; NULL: none. */
static CUcontext green_of(CUcontext owner)
{
	GCR_LOCK_SCOPE(&sim.lock);
	for (CUcontext context = greens; context; context = context->next)
		if (context->owner == owner)
			return context;
	return NULL;
}

/* The caller does not hold sim.lock. */
static void context_end(CUcontext context)
{
	CUcontext green;

	while ((green = green_of(context)))
		context_green_end(green);
	if (!atomic_load(&context->failure))
		context_wait(context);
	streams_destroy(context);
	callbacks_end(context);
	context_memory_free(context);
	GCR_LOCK_SCOPE(&sim.lock);
	for (struct CUctx_st **link = &contexts; *link; link = &(*link)->next)
		if (*link == context) {
			*link = context->next;
			break;
		}
	context->next = ended;
	ended = context;
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

void context_make_current(CUcontext context)
{
	stack[0] = context;
	stack_depth = context ? 1 : 0;
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
	if (stack_depth == CONTEXT_STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	result = context_add(dev, flags, api_version, pctx);
	if (!result)
		stack[stack_depth++] = *pctx;
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
		stack_depth--;
	context_end(ctx);
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	SIM_ENTER();
	if (!ctx || !context_valid(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (stack_depth == CONTEXT_STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	stack[stack_depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	SIM_ENTER();
	if (!stack_depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack_depth--;
	if (pctx)
		*pctx = stack[stack_depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
	return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	SIM_ENTER();
	if (ctx && !context_valid(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (stack_depth)
		stack_depth--;
	if (ctx)
		stack[stack_depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	SIM_ENTER();
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = context_of_streams();
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	SIM_ENTER();
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context_current()->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	SIM_ENTER();
	if (!device || !context_valid(ctx))
		return CUDA_ERROR_INVALID_VALUE;
	*device = ctx->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags)
{
	SIM_ENTER_CONTEXT(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	SIM_ENTER();
	if (!ctx)
		ctx = context_of_streams();
	if (!id || !context_valid(ctx))
		return CUDA_ERROR_INVALID_VALUE;
	*id = ctx->id;
	return CUDA_SUCCESS;
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

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	SIM_ENTER_CONTEXT(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = context->cache;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	SIM_ENTER_CONTEXT(context);
	context->cache = config;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned *version)
{
	SIM_ENTER();
	if (!ctx)
		ctx = context_current();
	if (!version || !context_valid(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	*version = ctx->api_version;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	SIM_ENTER_CONTEXT(context);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	SIM_ENTER_CONTEXT(context);
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_valid(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer->device == context->device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (context->peers >> peer->device & 1)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	context->peers |= 1u << peer->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	SIM_ENTER_CONTEXT(context);
	if (!context_valid(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!(context->peers >> peer->device & 1))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	context->peers &= ~(1u << peer->device);
	return CUDA_SUCCESS;
}

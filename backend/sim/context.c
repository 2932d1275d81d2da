/* SPDX-License-Identifier: MIT */
/*
 * The contexts that there are, each thread's stack of current ones, and their VRAM in the shared
 * table. A context is in the list while it can be used. context_life.c makes and ends them.
 */
#include "backend/sim/sim.h"

#define CONTEXT_STACK_DEPTH 32

static struct CUctx_st *contexts; /* sim.lock */
static struct CUctx_st *greens;	  /* sim.lock */
static struct CUctx_st *ended;	  /* threads may still have these as current contexts */

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

void context_list_add(CUcontext context)
{
	struct CUctx_st **list = context->owner ? &greens : &contexts;

	context->next = *list;
	*list = context;
}

bool context_list_remove(CUcontext context)
{
	struct CUctx_st **link = context->owner ? &greens : &contexts;

	while (*link && *link != context)
		link = &(*link)->next;
	if (!*link)
		return false;
	*link = context->next;
	return true;
}

void context_keep_ended(CUcontext context)
{
	context->next = ended;
	ended = context;
}

CUcontext context_green_of(CUcontext owner)
{
	GCR_LOCK_SCOPE(&sim.lock);

	for (CUcontext context = greens; context; context = context->next)
		if (context->owner == owner)
			return context;
	return NULL;
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

/*
 * Returns the VRAM of the context itself. Measured on an H100: 264 MiB plus 264 MiB for each KiB of
 * stack, 528 MiB by default.
 */
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

void context_make_current(CUcontext context)
{
	stack[0] = context;
	stack_depth = context ? 1 : 0;
}

bool context_stack_is_full(void)
{
	return stack_depth == CONTEXT_STACK_DEPTH;
}

void context_push(CUcontext context)
{
	stack[stack_depth++] = context;
}

CUcontext context_pop(void)
{
	return stack[--stack_depth];
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	SIM_ENTER();
	if (!ctx || !context_valid(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context_stack_is_full())
		return CUDA_ERROR_INVALID_VALUE;
	context_push(ctx);
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	SIM_ENTER();
	CUcontext context;

	if (!stack_depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	context = context_pop();
	if (pctx)
		*pctx = context;
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
		context_pop();
	if (ctx)
		context_push(ctx);
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

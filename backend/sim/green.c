/* SPDX-License-Identifier: MIT */
/*
 * Green contexts: each has its own streams, whose work uses the whole GPU; everything else created
 * in a green context belongs to the primary context, which the green context retains. An event
 * recorded for the primary context does not wait for its green contexts, as documented: nothing may
 * rely on that.
 */
#include "backend/sim/sim.h"

#define RESOURCE_SM 1 /* CU_DEV_RESOURCE_TYPE_SM */
#define DEFAULT_FLAGS                                                               \
	1 /* CU_GREEN_CTX_DEFAULT_STREAM, CU_STREAM_NON_BLOCKING: both are required \
	   */
#define SM_COUNT 132

/* CUdevResource of cuda.h: the fields used here. */
struct device_resource {
	unsigned type;
	unsigned char padding[92];
	unsigned sm_count;
};

struct green {
	struct green *next;
	CUdevice device;
	CUcontext context; /* result of cuCtxFromGreenCtx; its owner is the primary context */
};

static struct green *greens; /* sim.lock */

CUresult cuDeviceGetDevResource(CUdevice device, struct device_resource *resource, unsigned type);
CUresult cuDevResourceGenerateDesc(struct device_resource **description,
				   struct device_resource *resources, unsigned count);
CUresult cuGreenCtxCreate(struct green **handle, struct device_resource *description,
			  CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(struct green *handle);
CUresult cuCtxFromGreenCtx(CUcontext *context, struct green *handle);
CUresult cuGreenCtxStreamCreate(CUstream *stream, struct green *handle, unsigned flags,
				int priority);
CUresult cuGreenCtxRecordEvent(struct green *handle, CUevent event);
CUresult cuGreenCtxWaitEvent(struct green *handle, CUevent event);
CUresult cuStreamGetGreenCtx(CUstream stream, struct green **handle);

static struct green **find(const struct green *handle)
{
	struct green **link = &greens;

	while (*link && *link != handle)
		link = &(*link)->next;
	return link;
}

/* Returns the context of a green context; NULL: invalid handle. */
static CUcontext context_of(const struct green *handle)
{
	GCR_LOCK_SCOPE(&sim.lock);
	struct green *green = *find(handle);

	return green ? green->context : NULL;
}

CUresult cuDeviceGetDevResource(CUdevice device, struct device_resource *resource, unsigned type)
{
	SIM_ENTER();
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!resource || type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = (struct device_resource){.type = RESOURCE_SM, .sm_count = SM_COUNT};
	return CUDA_SUCCESS;
}

/* Descriptions live as long as the process, as in the real driver: no function frees them. */
static struct description {
	struct device_resource resource;
	struct description *next;
} * descriptions;

CUresult cuDevResourceGenerateDesc(struct device_resource **description,
				   struct device_resource *resources, unsigned count)
{
	SIM_ENTER();
	struct description *made;

	if (!description || !resources || count != 1 || resources->type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	made = malloc(sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->resource = *resources;
	made->next = __atomic_load_n(&descriptions, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&descriptions, &made->next, made, false,
					    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	*description = &made->resource;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(struct green **handle, struct device_resource *description,
			  CUdevice device, unsigned flags)
{
	SIM_ENTER();
	struct green *green;
	CUcontext primary;
	CUresult result;

	if (!handle || !description || flags != DEFAULT_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	green = calloc(1, sizeof(*green));
	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (!result) {
		result = context_green_add(primary, &green->context);
		if (result)
			cuDevicePrimaryCtxRelease_v2(device);
	}
	if (result) {
		free(green);
		return result;
	}
	green->device = device;
	GCR_LOCK_SCOPE(&sim.lock);
	green->next = greens;
	greens = green;
	*handle = green;
	return CUDA_SUCCESS;
}

/*
 * Submitted work continues. After a reset of the primary context there is nothing to release
 * (assumed).
 */
CUresult cuGreenCtxDestroy(struct green *handle)
{
	SIM_ENTER();
	struct green **link, *green;
	CUdevice device;

	pthread_mutex_lock(&sim.lock);
	link = find(handle);
	green = *link;
	if (green)
		*link = green->next;
	pthread_mutex_unlock(&sim.lock);
	if (!green)
		return CUDA_ERROR_INVALID_HANDLE;
	device = green->device;
	if (context_valid(green->context)) {
		context_green_end(green->context);
		cuDevicePrimaryCtxRelease_v2(device);
	}
	free(green);
	return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, struct green *handle)
{
	SIM_ENTER();
	CUcontext found = context_of(handle);

	if (!context || !found)
		return CUDA_ERROR_INVALID_VALUE;
	*context = found;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, struct green *handle, unsigned flags,
				int priority)
{
	SIM_ENTER();
	CUcontext context = context_of(handle), popped;
	CUresult result;

	if (!context || flags != DEFAULT_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuCtxPushCurrent_v2(context);
	if (result)
		return result;
	result = cuStreamCreateWithPriority(stream, flags, priority);
	cuCtxPopCurrent_v2(&popped);
	return result;
}

/* The event belongs to the primary context. */
CUresult cuGreenCtxRecordEvent(struct green *handle, CUevent event)
{
	SIM_ENTER();
	CUcontext context = context_of(handle);

	return context ? cuCtxRecordEvent(context, event) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxWaitEvent(struct green *handle, CUevent event)
{
	SIM_ENTER();
	CUcontext context = context_of(handle);

	return context ? cuCtxWaitEvent(context, event) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuStreamGetGreenCtx(CUstream stream_handle, struct green **handle)
{
	SIM_ENTER_STREAM(stream, stream_handle);
	struct green *green;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	GCR_LOCK_SCOPE(&sim.lock);
	for (green = greens; green && green->context != stream->context; green = green->next)
		;
	*handle = green;
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/*
 * Green contexts, as far as a program sees that it has one: its streams are those of the device's
 * primary context, which it retains, and work in them has all of the GPU.
 */
#include "backend/sim/sim.h"

#define RESOURCE_SM 1 /* CU_DEV_RESOURCE_TYPE_SM */
#define DEFAULT_FLAGS                                                               \
	1 /* CU_GREEN_CTX_DEFAULT_STREAM, CU_STREAM_NON_BLOCKING: both are demanded \
	   */
#define SM_COUNT 132

/* CUdevResource of cuda.h, as far as it is used. */
struct device_resource {
	unsigned type;
	unsigned char padding[92];
	unsigned sm_count;
};

struct green {
	struct green *next;
	CUdevice device;
	CUcontext context;
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

static struct green **find(const struct green *handle)
{
	struct green **link = &greens;

	while (*link && *link != handle)
		link = &(*link)->next;
	return link;
}

/* The context behind it; NULL if there is no such one. */
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

/* It lives as long as the process, as the real one does. */
CUresult cuDevResourceGenerateDesc(struct device_resource **description,
				   struct device_resource *resources, unsigned count)
{
	SIM_ENTER();
	if (!description || !resources || count != 1 || resources->type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*description = malloc(sizeof(**description));
	if (!*description)
		return CUDA_ERROR_OUT_OF_MEMORY;
	**description = *resources;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(struct green **handle, struct device_resource *description,
			  CUdevice device, unsigned flags)
{
	SIM_ENTER();
	struct green *green;
	CUresult result;

	if (!handle || !description || flags != DEFAULT_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	green = calloc(1, sizeof(*green));
	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuDevicePrimaryCtxRetain(&green->context, device);
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
	free(green);
	return cuDevicePrimaryCtxRelease_v2(device);
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

/* SPDX-License-Identifier: MIT */
/*
 * Entry and exit of every HIP call, initialisation, versions, and each thread's current device. HIP
 * has no contexts: from the first call that needs a device, the device is in use and has its
 * primary context; hipCtx_t is a handle for the device.
 */
#include "backend/sim/hip.h"

__thread int hip_device;

static __thread bool inside;
static atomic_bool initialized;

struct hip_call hip_enter(const char *name)
{
	struct hip_call call = {.is_outermost = !inside};

	if (!atomic_load(&initialized)) {
		call.call.result = cuInit(0);
		if (call.call.result)
			return call;
		atomic_store(&initialized, true);
	}
	call.call = sim_enter(name, SIM_CALL_GATED);
	if (!call.call.result)
		inside = fault_nested = true;
	return call;
}

void hip_leave(struct hip_call *call)
{
	if (call->call.result)
		return;
	if (call->is_outermost)
		inside = fault_nested = false;
	sim_leave(&call->call);
}

CUresult hip_context(CUcontext *ret_context)
{
	CUresult result = context_primary(hip_device, true, ret_context);

	if (result)
		return result;
	context_make_current(*ret_context);
	return (CUresult)atomic_load(&(*ret_context)->failure);
}

CUresult hip_stream(hipStream_t handle, CUstream *ret_stream)
{
	CUcontext context;
	CUresult result = hip_context(&context);

	if (!result)
		result = stream_argument((CUstream)handle, ret_stream);
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_CONTEXT_IS_DESTROYED : result;
}

CUresult hip_captures_end(void)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < sim.device_count; i++) {
		CUcontext context;

		if (!context_primary((int)i, false, &context) && context &&
		    context_ends_captures(context))
			result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return result;
}

hipError_t hipInit(unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(flags ? hipErrorInvalidValue : hipSuccess);
}

hipError_t hipRuntimeGetVersion(int *version)
{
	if (!version)
		HIP_RETURN(hipErrorInvalidValue);
	*version = hip_version();
	HIP_RETURN(hipSuccess);
}

/* HIP returns the runtime's version here too. */
hipError_t hipDriverGetVersion(int *version)
{
	return hipRuntimeGetVersion(version);
}

hipError_t hipGetDeviceCount(int *count)
{
	HIP_ENTER();
	if (!count)
		HIP_RETURN(hipErrorInvalidValue);
	*count = (int)sim.device_count;
	HIP_RETURN(hipSuccess);
}

hipError_t hipSetDevice(int device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	hip_device = device;
	HIP_RETURN(hipSuccess);
}

hipError_t hipGetDevice(int *device)
{
	HIP_ENTER();
	if (!device)
		HIP_RETURN(hipErrorInvalidValue);
	*device = hip_device;
	HIP_RETURN(hipSuccess);
}

hipError_t hipSetValidDevices(int *devices, int count)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

/* ---- contexts: handles for devices ---- */

#define STACK_DEPTH 32

static char context_names[SIM_MAX_GPUS];
static __thread int stack[STACK_DEPTH];
static __thread unsigned stack_depth;

static hipCtx_t context_of(int device)
{
	return (hipCtx_t)&context_names[device];
}

static bool device_of(hipCtx_t context, int *ret_device)
{
	const char *name = (const char *)context;

	if (name < context_names || name >= context_names + sim.device_count)
		return false;
	*ret_device = (int)(name - context_names);
	return true;
}

static CUresult push(int device)
{
	if (stack_depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	hip_device = stack[stack_depth++] = device;
	return CUDA_SUCCESS;
}

hipError_t hipCtxCreate(hipCtx_t *context, unsigned flags, hipDevice_t device)
{
	HIP_ENTER();
	if (!context || !device_valid(device))
		HIP_RETURN(hipErrorInvalidValue);
	*context = context_of(device);
	HIP_RETURN(push(device));
}

hipError_t hipCtxDestroy(hipCtx_t context)
{
	HIP_ENTER();
	int device;

	if (!device_of(context, &device))
		HIP_RETURN(hipErrorInvalidValue);
	if (stack_depth && stack[stack_depth - 1] == device)
		stack_depth--;
	HIP_RETURN(hipSuccess);
}

hipError_t hipCtxPushCurrent(hipCtx_t context)
{
	HIP_ENTER();
	int device;

	HIP_RETURN(device_of(context, &device) ? push(device) : CUDA_ERROR_INVALID_CONTEXT);
}

/* The current device does not change. */
hipError_t hipCtxPopCurrent(hipCtx_t *context)
{
	HIP_ENTER();
	if (!stack_depth)
		HIP_RETURN(hipErrorInvalidContext);
	stack_depth--;
	if (context)
		*context = context_of(stack[stack_depth]);
	HIP_RETURN(hipSuccess);
}

hipError_t hipCtxSetCurrent(hipCtx_t context)
{
	HIP_ENTER();
	int device;

	if (context && !device_of(context, &device))
		HIP_RETURN(hipErrorInvalidContext);
	if (stack_depth)
		stack_depth--;
	HIP_RETURN(context ? push(device) : CUDA_SUCCESS);
}

hipError_t hipCtxGetCurrent(hipCtx_t *context)
{
	HIP_ENTER();
	if (!context)
		HIP_RETURN(hipErrorInvalidValue);
	*context = context_of(hip_device);
	HIP_RETURN(hipSuccess);
}

hipError_t hipCtxGetDevice(hipDevice_t *device)
{
	return hipGetDevice(device);
}

hipError_t hipCtxGetApiVersion(hipCtx_t context, unsigned *version)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipCtxGetCacheConfig(hipFuncCache_t *config)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipCtxSetCacheConfig(hipFuncCache_t config)
{
	HIP_ENTER();
	HIP_RETURN(config > hipFuncCachePreferEqual ? hipErrorInvalidValue : hipErrorNotSupported);
}

hipError_t hipCtxGetFlags(unsigned *flags)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipCtxSynchronize(void)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipCtxEnablePeerAccess(hipCtx_t peer, unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(hipSuccess);
}

hipError_t hipCtxDisablePeerAccess(hipCtx_t peer)
{
	HIP_ENTER();
	HIP_RETURN(hipSuccess);
}

hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *context, hipDevice_t device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	if (!context)
		HIP_RETURN(hipErrorInvalidValue);
	*context = context_of(device);
	HIP_RETURN(hipSuccess);
}

hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device)
{
	HIP_ENTER();
	HIP_RETURN(device_valid(device) ? hipSuccess : hipErrorInvalidDevice);
}

/* Has no effect on the device. */
hipError_t hipDevicePrimaryCtxReset(hipDevice_t device)
{
	HIP_ENTER();
	HIP_RETURN(hipSuccess);
}

hipError_t hipDevicePrimaryCtxSetFlags(hipDevice_t device, unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(device_valid(device) ? hipErrorContextAlreadyInUse : hipErrorInvalidDevice);
}

hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned *flags, int *active)
{
	HIP_ENTER();
	CUcontext context;

	if (context_primary(device, false, &context))
		HIP_RETURN(hipErrorInvalidDevice);
	if (flags)
		*flags = 0;
	if (active)
		*active = context != NULL;
	HIP_RETURN(hipSuccess);
}

/* SPDX-License-Identifier: MIT */
/* HIP's devices: attributes, peer access, and settings per device. */
#include "backend/sim/hip.h"

#include <stdio.h>

/* Values of an MI300X, except simulated sizes. Attributes that are not listed are 0. */
static const struct {
	hipDeviceAttribute_t attribute;
	int value;
} attributes[] = {
	{hipDeviceAttributeEccEnabled, 1},
	{hipDeviceAttributeAsyncEngineCount, 2},
	{hipDeviceAttributeCanMapHostMemory, 1},
	{hipDeviceAttributeCanUseHostPointerForRegisteredMem, 1},
	{hipDeviceAttributeClockRate, 2100000},
	{hipDeviceAttributeConcurrentKernels, 1},
	{hipDeviceAttributeConcurrentManagedAccess, 1},
	{hipDeviceAttributeCooperativeLaunch, 1},
	{hipDeviceAttributeDeviceOverlap, 1},
	{hipDeviceAttributeDirectManagedMemAccessFromHost, 1},
	{hipDeviceAttributeL2CacheSize, 4 << 20},
	{hipDeviceAttributeManagedMemory, 1},
	{hipDeviceAttributeMaxBlocksPerMultiProcessor, 2},
	{hipDeviceAttributeMaxBlockDimX, 1024},
	{hipDeviceAttributeMaxBlockDimY, 1024},
	{hipDeviceAttributeMaxBlockDimZ, 1024},
	{hipDeviceAttributeMaxGridDimX, 2147483647},
	{hipDeviceAttributeMaxGridDimY, 65536},
	{hipDeviceAttributeMaxGridDimZ, 65536},
	{hipDeviceAttributeMaxThreadsPerBlock, 1024},
	{hipDeviceAttributeMaxThreadsPerMultiProcessor, 2048},
	{hipDeviceAttributeMaxPitch, 2147483647},
	{hipDeviceAttributeMemoryBusWidth, 8192},
	{hipDeviceAttributeMemoryClockRate, 1300000},
	{hipDeviceAttributeMultiprocessorCount, 2},
	{hipDeviceAttributeMaxRegistersPerBlock, 65536},
	{hipDeviceAttributeMaxRegistersPerMultiprocessor, 65536},
	{hipDeviceAttributeMaxSharedMemoryPerBlock, 65536},
	{hipDeviceAttributeSharedMemPerBlockOptin, 65536},
	{hipDeviceAttributeSharedMemPerMultiprocessor, 65536},
	{hipDeviceAttributeStreamPrioritiesSupported, 1},
	{hipDeviceAttributeTextureAlignment, 256},
	{hipDeviceAttributeTotalConstantMemory, 2147483647},
	{hipDeviceAttributeUnifiedAddressing, 1},
	{hipDeviceAttributeWarpSize, 64},
	{hipDeviceAttributeMemoryPoolsSupported, 1},
	{hipDeviceAttributeVirtualMemoryManagementSupported, 1},
	{hipDeviceAttributeHostRegisterSupported, 1},
	{hipDeviceAttributeMaxSharedMemoryPerMultiprocessor, 65536},
	{hipDeviceAttributeIsLargeBar, 1},
	{hipDeviceAttributeCanUseStreamWaitValue, 1},
	{hipDeviceAttributePhysicalMultiProcessorCount, 2},
	{hipDeviceAttributeWallClockRate, 100000},
};

/* Returns true for attributes known to HIP 6.2; others are an error. */
static bool attribute_known(hipDeviceAttribute_t attribute)
{
	return ((int)attribute >= 0 &&
		attribute <= hipDeviceAttributeMemoryPoolSupportedHandleTypes) ||
	       (attribute >= hipDeviceAttributeClockInstructionRate &&
		attribute <= hipDeviceAttributeWallClockRate);
}

/* Returns the compute capability of the GPUs' architecture: gfx90a is 9.0, gfx942 is 9.4. */
static void capability(int *major, int *minor)
{
	unsigned number = (unsigned)strtoul(hip_architecture() + strlen("gfx"), NULL, 16);

	*minor = (int)(number >> 4 & 15);
	*major = (int)((number >> 8 & 15) + 10 * (number >> 12));
}

static int attribute_value(hipDeviceAttribute_t attribute, int device)
{
	unsigned gpu = sim.gpu_of_device[device];
	int major, minor;

	capability(&major, &minor);
	switch (attribute) {
	case hipDeviceAttributePciBusId:
		return (int)hip_gpu_bus(gpu);
	case hipDeviceAttributeComputeCapabilityMajor:
		return major;
	case hipDeviceAttributeComputeCapabilityMinor:
		return minor;
	case hipDeviceAttributeTotalGlobalMem:
		return shared->gpus[gpu].capacity_bytes < INT32_MAX
			       ? (int)shared->gpus[gpu].capacity_bytes
			       : INT32_MAX;
	default:
		for (size_t i = 0; i < GCR_ARRAY_SIZE(attributes); i++)
			if (attributes[i].attribute == attribute)
				return attributes[i].value;
		return 0;
	}
}

hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device)
{
	HIP_ENTER();
	if (!value)
		HIP_RETURN(hipErrorInvalidValue);
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	if (!attribute_known(attribute))
		HIP_RETURN(hipErrorInvalidValue);
	*value = attribute_value(attribute, device);
	HIP_RETURN(hipSuccess);
}

hipError_t hipGetDevicePropertiesR0600(struct gcr_hip_properties *properties, int device)
{
	HIP_ENTER();
	const struct shared_gpu *gpu;

	if (!properties)
		HIP_RETURN(hipErrorInvalidValue);
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	gpu = &shared->gpus[sim.gpu_of_device[device]];
	memset(properties, 0, sizeof(*properties));
	snprintf(properties->name, sizeof(properties->name), "%s", gpu->name);
	memcpy(properties->uuid.bytes, gpu->uuid, sizeof(properties->uuid.bytes));
	properties->totalGlobalMem = gpu->capacity_bytes;
	properties->warpSize = 64;
	properties->maxThreadsPerBlock = 1024;
	properties->clockRate = attribute_value(hipDeviceAttributeClockRate, device);
	properties->multiProcessorCount =
		attribute_value(hipDeviceAttributeMultiprocessorCount, device);
	properties->pciBusID = attribute_value(hipDeviceAttributePciBusId, device);
	snprintf(properties->gcnArchName, sizeof(properties->gcnArchName), "%s",
		 hip_architecture());
	HIP_RETURN(hipSuccess);
}

hipError_t hipGetDevicePropertiesR0000(struct gcr_hip_properties_5 *properties, int device)
{
	HIP_ENTER();
	const struct shared_gpu *gpu;

	if (!properties)
		HIP_RETURN(hipErrorInvalidValue);
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	gpu = &shared->gpus[sim.gpu_of_device[device]];
	memset(properties, 0, sizeof(*properties));
	snprintf(properties->name, sizeof(properties->name), "%s", gpu->name);
	properties->totalGlobalMem = gpu->capacity_bytes;
	properties->warpSize = 64;
	snprintf(properties->gcnArchName, sizeof(properties->gcnArchName), "%s",
		 hip_architecture());
	HIP_RETURN(hipSuccess);
}

/* The name without a number is the one that programs built with ROCm 5 call. */
hipError_t hipGetDeviceProperties(struct gcr_hip_properties_5 *properties, int device)
{
	return hipGetDevicePropertiesR0000(properties, device);
}

hipError_t hipDeviceGet(hipDevice_t *device, int ordinal)
{
	HIP_ENTER();
	HIP_RETURN(cuDeviceGet(device, ordinal));
}

/* The following functions check the device first. */

hipError_t hipDeviceGetName(char *name, int length, hipDevice_t device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	HIP_RETURN(cuDeviceGetName(name, length, device));
}

hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	HIP_RETURN(cuDeviceTotalMem_v2(bytes, device));
}

hipError_t hipDeviceComputeCapability(int *major, int *minor, hipDevice_t device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	if (!major || !minor)
		HIP_RETURN(hipErrorInvalidValue);
	capability(major, minor);
	HIP_RETURN(hipSuccess);
}

hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	if (!uuid)
		HIP_RETURN(hipErrorInvalidValue);
	memcpy(uuid->bytes, shared->gpus[sim.gpu_of_device[device]].uuid, sizeof(uuid->bytes));
	HIP_RETURN(hipSuccess);
}

hipError_t hipDeviceGetPCIBusId(char *text, int length, int device)
{
	HIP_ENTER();
	if (!device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	if (!text)
		HIP_RETURN(hipErrorInvalidValue);
	if (length > 0)
		snprintf(text, (size_t)length, "0000:%02x:00.0",
			 hip_gpu_bus(sim.gpu_of_device[device]));
	HIP_RETURN(length <= 12 ? hipErrorInvalidValue : hipSuccess);
}

hipError_t hipDeviceGetByPCIBusId(int *device, const char *text)
{
	HIP_ENTER();
	unsigned domain, bus, slot, function;

	if (!device || !text ||
	    sscanf(text, "%4x:%2x:%2x.%1x", &domain, &bus, &slot, &function) != 4)
		HIP_RETURN(hipErrorInvalidValue);
	for (unsigned i = 0; i < sim.device_count; i++)
		if (!domain && bus == hip_gpu_bus(sim.gpu_of_device[i]) && !slot && !function) {
			*device = (int)i;
			HIP_RETURN(hipSuccess);
		}
	HIP_RETURN(hipErrorInvalidValue);
}

hipError_t hipDeviceSynchronize(void)
{
	HIP_ENTER_CONTEXT(context);
	if (hip_captures_end())
		HIP_RETURN(hipErrorStreamCaptureUnsupported);
	HIP_RETURN(cuCtxSynchronize());
}

hipError_t hipDeviceReset(void)
{
	HIP_ENTER();
	HIP_RETURN(cuDevicePrimaryCtxReset_v2(hip_device));
}

/* ---- settings per device ---- */

static struct {
	unsigned flags;
	size_t stack_bytes, heap_bytes; /* 0: default */
} settings[SIM_MAX_GPUS];
static pthread_mutex_t settings_lock = PTHREAD_MUTEX_INITIALIZER;

/* Limit of addressing by a wave's scratch registers. */
#define STACK_BYTES_MAX 131056u

hipError_t hipSetDeviceFlags(unsigned flags)
{
	HIP_ENTER();
	unsigned schedule = flags & hipDeviceScheduleMask;
	GCR_LOCK_SCOPE(&settings_lock);

	if (schedule & (schedule - 1) ||
	    flags & ~(unsigned)(hipDeviceScheduleMask | hipDeviceMapHost |
				hipDeviceLmemResizeToMax))
		HIP_RETURN(hipErrorInvalidValue);
	settings[hip_device].flags = schedule;
	HIP_RETURN(hipSuccess);
}

hipError_t hipGetDeviceFlags(unsigned *flags)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&settings_lock);

	if (!flags)
		HIP_RETURN(hipErrorInvalidValue);
	*flags = settings[hip_device].flags;
	HIP_RETURN(hipSuccess);
}

hipError_t hipDeviceSetLimit(enum hipLimit_t limit, size_t value)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&settings_lock);

	switch (limit) {
	case hipLimitStackSize:
		if (value > STACK_BYTES_MAX)
			HIP_RETURN(hipErrorInvalidValue);
		settings[hip_device].stack_bytes = value;
		HIP_RETURN(hipSuccess);
	case hipLimitMallocHeapSize:
		settings[hip_device].heap_bytes = value;
		HIP_RETURN(hipSuccess);
	case hipLimitPrintfFifoSize:
		HIP_RETURN(hipErrorUnsupportedLimit);
	default:
		HIP_RETURN(hipErrorInvalidValue);
	}
}

hipError_t hipDeviceGetLimit(size_t *value, enum hipLimit_t limit)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&settings_lock);

	if (!value)
		HIP_RETURN(hipErrorInvalidValue);
	switch (limit) {
	case hipLimitStackSize:
		*value = settings[hip_device].stack_bytes ? settings[hip_device].stack_bytes : 1024;
		HIP_RETURN(hipSuccess);
	case hipLimitMallocHeapSize:
		*value = settings[hip_device].heap_bytes ? settings[hip_device].heap_bytes
							 : 4u << 20;
		HIP_RETURN(hipSuccess);
	case hipLimitPrintfFifoSize:
		HIP_RETURN(hipErrorUnsupportedLimit);
	default:
		HIP_RETURN(hipErrorInvalidValue);
	}
}

hipError_t hipDeviceSetCacheConfig(hipFuncCache_t config)
{
	HIP_ENTER();
	HIP_RETURN(config > hipFuncCachePreferEqual ? hipErrorInvalidValue : hipSuccess);
}

hipError_t hipDeviceGetCacheConfig(hipFuncCache_t *config)
{
	HIP_ENTER();
	if (!config)
		HIP_RETURN(hipErrorInvalidValue);
	*config = hipFuncCachePreferNone;
	HIP_RETURN(hipSuccess);
}

hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	HIP_ENTER();
	if (least)
		*least = 1;
	if (greatest)
		*greatest = -1;
	HIP_RETURN(hipSuccess);
}

hipError_t hipDeviceGraphMemTrim(int device)
{
	HIP_ENTER();
	HIP_RETURN(device_valid(device) ? hipSuccess : hipErrorInvalidDevice);
}

/* ---- access between devices ---- */

hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer)
{
	HIP_ENTER();
	HIP_RETURN(cuDeviceCanAccessPeer(can, device, peer));
}

hipError_t hipDeviceGetP2PAttribute(int *value, hipDeviceP2PAttr attribute, int from, int to)
{
	HIP_ENTER();
	if (!value)
		HIP_RETURN(hipErrorInvalidValue);
	if (from == to || !device_valid(from) || !device_valid(to))
		HIP_RETURN(hipErrorInvalidDevice);
	if (attribute > hipDevP2PAttrHipArrayAccessSupported)
		HIP_RETURN(hipErrorInvalidValue);
	*value = attribute != hipDevP2PAttrPerformanceRank;
	HIP_RETURN(hipSuccess);
}

static CUresult peer_context(int peer, CUcontext *ret_context)
{
	return peer == hip_device ? CUDA_ERROR_INVALID_DEVICE
				  : context_primary(peer, true, ret_context);
}

hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	CUcontext peers;
	CUresult result;

	if (flags)
		HIP_RETURN(hipErrorInvalidValue);
	result = peer_context(peer, &peers);
	HIP_RETURN(result ? result : cuCtxEnablePeerAccess(peers, 0));
}

hipError_t hipDeviceDisablePeerAccess(int peer)
{
	HIP_ENTER_CONTEXT(context);
	CUcontext peers;
	CUresult result = peer_context(peer, &peers);

	HIP_RETURN(result ? result : cuCtxDisablePeerAccess(peers));
}

/* SPDX-License-Identifier: MIT */
/* Devices as cuDevice* calls report them. */
#include "backend/sim/sim.h"

#include <stdio.h>

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	SIM_ENTER();
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	SIM_ENTER();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)sim.device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	SIM_ENTER();
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "%s", shared->gpus[sim.gpu_of_device[dev]].name);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	SIM_ENTER();
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	memcpy(uuid->bytes, shared->gpus[sim.gpu_of_device[dev]].uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	SIM_ENTER();
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = shared->gpus[sim.gpu_of_device[dev]].capacity_bytes;
	return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	SIM_ENTER();
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*major = 9;
	*minor = 0;
	return CUDA_SUCCESS;
}

/* Attributes that are not listed are 0. Features relevant to gpucrfs are as measured on H100. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} attributes[] = {
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
	{CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
	{CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
	{CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
	{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
	{CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
	{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2},
	{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
	{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1 << 20},
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
	{CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
	{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
	{CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
	{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
	{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
	{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0},
	{CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	SIM_ENTER();
	if (!value || (int)attribute <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*value = 0;
	if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
		*value = (int)sim.gpu_of_device[dev] + 1;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(attributes); i++)
		if (attributes[i].attribute == attribute)
			*value = attributes[i].value;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
	SIM_ENTER();
	if (!text || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(text, (size_t)len, "0000:%02x:00.0", sim.gpu_of_device[dev] + 1);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text)
{
	SIM_ENTER();
	unsigned domain, bus;

	if (!dev || !text)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(text, "%x:%x:", &domain, &bus) == 2)
		for (unsigned i = 0; i < sim.device_count; i++)
			if (sim.gpu_of_device[i] + 1 == bus) {
				*dev = (CUdevice)i;
				return CUDA_SUCCESS;
			}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	SIM_ENTER();
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev) || !device_valid(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = dev != peer;
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/*
 * hipMalloc and related functions, host and managed memory, and attributes of pointers. HIP has one
 * kind of memory object: hipFree also frees host memory, and hipHostFree device memory.
 */
#include "backend/sim/hip.h"

static CUresult device_memory(void **pointer, size_t bytes)
{
	CUdeviceptr start;
	CUresult result;

	if (!pointer)
		return CUDA_ERROR_INVALID_VALUE;
	*pointer = NULL;
	if (!bytes)
		return CUDA_SUCCESS;
	result = cuMemAlloc_v2(&start, bytes);
	if (!result)
		*pointer = (void *)start;
	return result;
}

hipError_t hipMalloc(void **pointer, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(device_memory(pointer, bytes));
}

hipError_t hipExtMallocWithFlags(void **pointer, size_t bytes, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	/* Uncached and contiguous memory have no names in older headers: 3 and 4. */
	if (flags > 4 || (flags == hipMallocSignalMemory && bytes != 8))
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(device_memory(pointer, bytes));
}

hipError_t hipMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start;
	CUresult result;

	if (!pointer || !pitch)
		HIP_RETURN(hipErrorInvalidValue);
	*pointer = NULL;
	if (!width || !height)
		HIP_RETURN(hipSuccess);
	result = cuMemAllocPitch_v2(&start, pitch, width, height, 4);
	if (!result)
		*pointer = (void *)start;
	HIP_RETURN(result);
}

hipError_t hipMemAllocPitch(hipDeviceptr_t *pointer, size_t *pitch, size_t width, size_t height,
			    unsigned element_bytes)
{
	HIP_ENTER();
	if (!width || !height || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
		HIP_RETURN(hipErrorInvalidValue);
	return hipMallocPitch(pointer, pitch, width, height);
}

hipError_t hipMalloc3D(struct hip_pitched *pitched, struct hip_extent extent)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start;
	CUresult result;

	if (!pitched)
		HIP_RETURN(hipErrorInvalidValue);
	*pitched = (struct hip_pitched){.width = extent.width, .height = extent.height};
	if (!extent.width || !extent.height || !extent.depth)
		HIP_RETURN(hipSuccess);
	result = cuMemAllocPitch_v2(&start, &pitched->pitch, extent.width,
				    extent.height * extent.depth, 4);
	if (!result)
		pitched->pointer = (void *)start;
	HIP_RETURN(result);
}

/* Memory mapped by hipMemMap is refused; the real function has undefined behaviour then. */
static CUresult memory_free(void *pointer)
{
	CUdeviceptr start = (CUdeviceptr)pointer;
	struct allocation *allocation;
	enum allocation_kind kind = ALLOCATION_VMM;
	CUresult result = capture_forbids(NULL);

	if (result)
		return result;
	if (!pointer)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim.lock);
	allocation = allocation_find(start);
	if (allocation && allocation->start == start)
		kind = allocation->kind;
	pthread_mutex_unlock(&sim.lock);
	switch (kind) {
	case ALLOCATION_DEVICE:
	case ALLOCATION_MANAGED:
	case ALLOCATION_POOL:
		return cuMemFree_v2(start);
	case ALLOCATION_HOST:
		return cuMemFreeHost(pointer);
	case ALLOCATION_REGISTERED:
		return cuMemHostUnregister(pointer);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

hipError_t hipFree(void *pointer)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(memory_free(pointer));
}

/* ---- host memory ---- */

static CUresult host_memory(void **pointer, size_t bytes, unsigned flags)
{
	const unsigned coherence = hipHostMallocCoherent | hipHostMallocNonCoherent;
	CUresult result;

	if (!pointer)
		return CUDA_ERROR_INVALID_VALUE;
	*pointer = NULL;
	if (!bytes)
		return CUDA_SUCCESS;
	if ((flags & coherence) == coherence)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuMemHostAlloc(pointer, bytes, flags & 7);
	if (!result) {
		GCR_LOCK_SCOPE(&sim.lock);

		allocation_find((CUdeviceptr)*pointer)->flags = flags;
	}
	return result;
}

hipError_t hipHostMalloc(void **pointer, size_t bytes, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(host_memory(pointer, bytes, flags));
}

hipError_t hipHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(flags > 7 ? CUDA_ERROR_INVALID_VALUE : host_memory(pointer, bytes, flags));
}

hipError_t hipMallocHost(void **pointer, size_t bytes)
{
	return hipHostMalloc(pointer, bytes, 0);
}

hipError_t hipMemAllocHost(void **pointer, size_t bytes)
{
	return hipHostMalloc(pointer, bytes, 0);
}

hipError_t hipHostFree(void *pointer)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(memory_free(pointer));
}

hipError_t hipFreeHost(void *pointer)
{
	return hipHostFree(pointer);
}

hipError_t hipHostRegister(void *pointer, size_t bytes, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(cuMemHostRegister_v2(pointer, bytes, flags));
}

hipError_t hipHostUnregister(void *pointer)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(pointer ? cuMemHostUnregister(pointer) : CUDA_ERROR_INVALID_VALUE);
}

/* For any memory that HIP knows. */
hipError_t hipHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	GCR_LOCK_SCOPE(&sim.lock);

	if (!device_pointer || flags || !allocation_find((CUdeviceptr)pointer))
		HIP_RETURN(hipErrorInvalidValue);
	*device_pointer = pointer;
	HIP_RETURN(hipSuccess);
}

/* Not for registered memory. */
hipError_t hipHostGetFlags(unsigned *flags, void *pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	const struct allocation *allocation = allocation_find((CUdeviceptr)pointer);

	if (!flags || !allocation ||
	    (allocation->kind != ALLOCATION_HOST && allocation->kind != ALLOCATION_MANAGED))
		HIP_RETURN(hipErrorInvalidValue);
	*flags = allocation->kind == ALLOCATION_HOST ? allocation->flags : 0;
	HIP_RETURN(hipSuccess);
}

/* ---- managed memory ---- */

hipError_t hipMallocManaged(void **pointer, size_t bytes, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start;
	CUresult result;

	if (!pointer || !bytes || (flags != hipMemAttachGlobal && flags != hipMemAttachHost))
		HIP_RETURN(hipErrorInvalidValue);
	result = cuMemAllocManaged(&start, bytes, flags);
	if (!result)
		*pointer = (void *)start;
	HIP_RETURN(result);
}

hipError_t hipMemPrefetchAsync(const void *pointer, size_t bytes, int device, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	CUdeviceptr start = (CUdeviceptr)pointer;

	if (!pointer || !bytes)
		HIP_RETURN(hipErrorInvalidValue);
	if (device != hipCpuDeviceId && !device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	HIP_RETURN(cuMemPrefetchAsync(start, bytes, device, (CUstream)handle));
}

/* Coarse and fine grain make no difference here. */
hipError_t hipMemAdvise(const void *pointer, size_t bytes, hipMemoryAdvise advice, int device)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start = (CUdeviceptr)pointer;

	if (advice != hipMemAdviseSetReadMostly && advice != hipMemAdviseUnsetReadMostly &&
	    device != hipCpuDeviceId && !device_valid(device))
		HIP_RETURN(hipErrorInvalidDevice);
	if (!pointer || !bytes)
		HIP_RETURN(hipErrorInvalidValue);
	if (advice == hipMemAdviseSetCoarseGrain || advice == hipMemAdviseUnsetCoarseGrain)
		HIP_RETURN(hipSuccess);
	HIP_RETURN(cuMemAdvise(start, bytes, (CUmem_advise)advice, device));
}

hipError_t hipMemRangeGetAttributes(void **data, size_t *data_bytes,
				    hipMemRangeAttribute *attributes, size_t count,
				    const void *pointer, size_t bytes)
{
	HIP_ENTER_CONTEXT(context);
	CUresult result = CUDA_SUCCESS;

	if (!data || !data_bytes || !attributes || !count || !pointer || !bytes)
		HIP_RETURN(hipErrorInvalidValue);
	for (size_t i = 0; i < count && !result; i++) {
		CUmem_range_attribute attribute = (CUmem_range_attribute)attributes[i];

		if (attributes[i] == hipMemRangeAttributeCoherencyMode) {
			if (!data[i] || data_bytes[i] != sizeof(int))
				HIP_RETURN(hipErrorInvalidValue);
			*(int *)data[i] = 0;
		} else {
			result = cuMemRangeGetAttribute(data[i], data_bytes[i], attribute,
							(CUdeviceptr)pointer, bytes);
		}
	}
	HIP_RETURN(result);
}

hipError_t hipMemRangeGetAttribute(void *data, size_t data_bytes, hipMemRangeAttribute attribute,
				   const void *pointer, size_t bytes)
{
	return hipMemRangeGetAttributes(&data, &data_bytes, &attribute, 1, pointer, bytes);
}

hipError_t hipStreamAttachMemAsync(hipStream_t handle, void *pointer, size_t length, unsigned flags)
{
	HIP_ENTER_STREAM(stream, handle);
	if (flags == hipMemAttachSingle && !handle)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(cuStreamAttachMemAsync((CUstream)handle, (CUdeviceptr)pointer, length, flags));
}

/* ---- attributes of pointers ---- */

/* Uses the current device's figures without making the device one in use. */
hipError_t hipMemGetInfo(size_t *free_bytes, size_t *total)
{
	HIP_ENTER();
	unsigned gpu = sim.gpu_of_device[hip_device];
	uint64_t used, capacity = shared->gpus[gpu].capacity_bytes;

	shared_lock();
	shared_reclaim();
	used = shared_gpu_used_bytes(gpu);
	shared_unlock();
	if (free_bytes)
		*free_bytes = used < capacity ? capacity - used : 0;
	if (total)
		*total = capacity;
	HIP_RETURN(hipSuccess);
}

/* The real function does not check its arguments either, and crashes. */
hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *bytes, hipDeviceptr_t pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	const struct allocation *allocation = allocation_find((CUdeviceptr)pointer);

	if (!allocation)
		HIP_RETURN(hipErrorNotFound);
	*base = (hipDeviceptr_t)allocation->start;
	*bytes = allocation->size_bytes;
	HIP_RETURN(hipSuccess);
}

hipError_t hipMemPtrGetInfo(void *pointer, size_t *bytes)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	const struct allocation *allocation = allocation_find((CUdeviceptr)pointer);

	if (!allocation || !bytes)
		HIP_RETURN(hipErrorInvalidValue);
	*bytes = allocation->size_bytes;
	HIP_RETURN(hipSuccess);
}

static hipMemoryType memory_type(const struct allocation *allocation)
{
	switch (allocation->kind) {
	case ALLOCATION_HOST:
	case ALLOCATION_REGISTERED:
	case ALLOCATION_MANAGED:
		return hipMemoryTypeHost;
	default:
		return hipMemoryTypeDevice;
	}
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	const struct allocation *allocation = allocation_find((CUdeviceptr)pointer);

	if (!attributes || !pointer)
		HIP_RETURN(hipErrorInvalidValue);
	memset(attributes, 0, sizeof(*attributes));
	attributes->device = hipInvalidDeviceId;
	if (!allocation)
		HIP_RETURN(hipSuccess);
	attributes->type = memory_type(allocation);
	if (attributes->type == hipMemoryTypeHost)
		attributes->hostPointer = (void *)(uintptr_t)pointer;
	attributes->devicePointer = (void *)(uintptr_t)pointer;
	attributes->device = allocation->device;
	attributes->isManaged = allocation->kind == ALLOCATION_MANAGED;
	if (attributes->isManaged)
		attributes->type = hipMemoryTypeManaged;
	else
		attributes->allocationFlags = allocation->flags;
	HIP_RETURN(hipSuccess);
}

/* Writes as many bytes as the real function, which differs from CUDA for some attributes. */
static CUresult attribute_get(void *data, hipPointer_attribute attribute, hipDeviceptr_t pointer)
{
	const struct allocation *allocation = allocation_find((CUdeviceptr)pointer);
	CUresult unknown = allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	switch (attribute) {
	case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(uint32_t *)data = allocation ? (uint32_t)memory_type(allocation) : 0;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(hipDeviceptr_t *)data = allocation ? pointer : NULL;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)data = NULL;
		if (!allocation || memory_type(allocation) != hipMemoryTypeHost)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = pointer;
		return CUDA_SUCCESS;
	case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		/* In HIP false by default, unlike in CUDA; sync_memops holds the inverse. */
		*(bool *)data = allocation && !allocation->sync_memops;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
		*(uint32_t *)data = allocation ? (uint32_t)allocation->buffer_id : 0;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
		*(bool *)data = allocation && allocation->kind == ALLOCATION_MANAGED;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = allocation ? allocation->device : hipInvalidDeviceId;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(hipDeviceptr_t *)data = allocation ? (hipDeviceptr_t)allocation->start : NULL;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(uint32_t *)data = allocation ? (uint32_t)allocation->size_bytes : 0;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_MAPPED:
		*(bool *)data = allocation != NULL;
		return unknown;
	case HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(uint32_t *)data = allocation ? allocation->flags : 0;
		return CUDA_SUCCESS;
	case HIP_POINTER_ATTRIBUTE_CONTEXT:
	case HIP_POINTER_ATTRIBUTE_P2P_TOKENS:
	case HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE:
	case HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute,
				  hipDeviceptr_t pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!data || !pointer)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(attribute_get(data, attribute, pointer));
}

/* An attribute that is not available is not an error. */
hipError_t hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute *attributes, void **data,
				      hipDeviceptr_t pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!count || !attributes || !data || !pointer)
		HIP_RETURN(hipErrorInvalidValue);
	for (unsigned i = 0; i < count; i++)
		attribute_get(data[i], attributes[i], pointer);
	HIP_RETURN(hipSuccess);
}

hipError_t hipPointerSetAttribute(const void *value, hipPointer_attribute attribute,
				  hipDeviceptr_t pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find((CUdeviceptr)pointer);
	unsigned wanted;

	if (!value || !pointer || attribute != HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		HIP_RETURN(hipErrorInvalidValue);
	memcpy(&wanted, value, sizeof(wanted));
	if (wanted > 1)
		HIP_RETURN(hipErrorInvalidValue);
	if (!allocation)
		HIP_RETURN(hipErrorInvalidDevicePointer);
	allocation->sync_memops = !wanted;
	HIP_RETURN(hipSuccess);
}

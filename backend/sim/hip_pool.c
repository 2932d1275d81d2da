/* SPDX-License-Identifier: MIT */
/* The stream-ordered allocator, and legacy IPC handles. */
#include "backend/sim/hip.h"

/* Like hip_stream(), but an unknown stream is an invalid handle here. */
static CUresult pool_stream(hipStream_t handle, CUstream *ret_stream)
{
	CUresult result = hip_stream(handle, ret_stream);

	return result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_HANDLE : result;
}

static CUresult allocate(void **pointer, size_t bytes, CUmemoryPool pool, hipStream_t handle)
{
	CUstream stream;
	CUdeviceptr start;
	CUresult result = pointer ? pool_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

	if (result)
		return result;
	*pointer = NULL;
	if (!bytes)
		return CUDA_SUCCESS;
	result = pool ? cuMemAllocFromPoolAsync(&start, bytes, pool, (CUstream)handle)
		      : cuMemAllocAsync(&start, bytes, (CUstream)handle);
	if (!result)
		*pointer = (void *)start;
	return result;
}

hipError_t hipMallocAsync(void **pointer, size_t bytes, hipStream_t handle)
{
	HIP_ENTER();
	HIP_RETURN(allocate(pointer, bytes, NULL, handle));
}

hipError_t hipMallocFromPoolAsync(void **pointer, size_t bytes, hipMemPool_t pool,
				  hipStream_t handle)
{
	HIP_ENTER();
	HIP_RETURN(pool ? allocate(pointer, bytes, (CUmemoryPool)pool, handle)
			: CUDA_ERROR_INVALID_VALUE);
}

/* Memory that belongs to no pool is freed at once. */
hipError_t hipFreeAsync(void *pointer, hipStream_t handle)
{
	HIP_ENTER();
	struct allocation *allocation;
	CUstream stream;
	CUresult result = pointer ? pool_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	bool is_pools;

	if (result)
		HIP_RETURN(result);
	pthread_mutex_lock(&sim.lock);
	allocation = allocation_find((CUdeviceptr)pointer);
	is_pools = allocation && allocation->kind == ALLOCATION_POOL;
	pthread_mutex_unlock(&sim.lock);
	if (!is_pools)
		return hipFree(pointer);
	HIP_RETURN(cuMemFreeAsync((CUdeviceptr)pointer, (CUstream)handle));
}

hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t *pool, int device)
{
	HIP_ENTER();
	HIP_RETURN(cuDeviceGetDefaultMemPool((CUmemoryPool *)pool, device));
}

hipError_t hipDeviceGetMemPool(hipMemPool_t *pool, int device)
{
	HIP_ENTER();
	if (!pool || !device_valid(device))
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(cuDeviceGetMemPool((CUmemoryPool *)pool, device));
}

hipError_t hipDeviceSetMemPool(int device, hipMemPool_t pool)
{
	HIP_ENTER();
	CUresult result;

	if (!pool || !device_valid(device))
		HIP_RETURN(hipErrorInvalidValue);
	result = cuDeviceSetMemPool(device, (CUmemoryPool)pool);
	/* The pool is another device's. */
	HIP_RETURN(result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_INVALID_DEVICE : result);
}

hipError_t hipMemPoolCreate(hipMemPool_t *pool, const hipMemPoolProps *props)
{
	HIP_ENTER();
	CUmemPoolProps core = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

	if (!pool || !props || props->allocType != hipMemAllocationTypePinned ||
	    props->location.type != hipMemLocationTypeDevice || !device_valid(props->location.id))
		HIP_RETURN(hipErrorInvalidValue);
	if (props->handleTypes != hipMemHandleTypeNone)
		HIP_RETURN(hipErrorNotSupported);
	core.location.id = props->location.id;
	HIP_RETURN(cuMemPoolCreate((CUmemoryPool *)pool, &core));
}

hipError_t hipMemPoolDestroy(hipMemPool_t pool)
{
	HIP_ENTER();
	HIP_RETURN(cuMemPoolDestroy((CUmemoryPool)pool));
}

hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t keep_bytes)
{
	HIP_ENTER();
	HIP_RETURN(cuMemPoolTrimTo((CUmemoryPool)pool, keep_bytes));
}

/* Attributes have CUDA's numbers. */

hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void *value)
{
	HIP_ENTER();
	HIP_RETURN(
		cuMemPoolSetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value));
}

hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void *value)
{
	HIP_ENTER();
	HIP_RETURN(
		cuMemPoolGetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value));
}

/* Access cannot be revoked. */
hipError_t hipMemPoolSetAccess(hipMemPool_t pool, const hipMemAccessDesc *desc, size_t count)
{
	HIP_ENTER();
	CUresult result = CUDA_SUCCESS;

	if (!pool || !desc)
		HIP_RETURN(hipErrorInvalidValue);
	if (count > sim.device_count)
		HIP_RETURN(hipErrorInvalidDevice);
	for (size_t i = 0; i < count && !result; i++) {
		CUmemAccessDesc core = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
						     .id = desc[i].location.id},
					.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

		if (desc[i].location.type != hipMemLocationTypeDevice)
			HIP_RETURN(hipErrorInvalidValue);
		if (!device_valid(desc[i].location.id) ||
		    desc[i].flags == hipMemAccessFlagsProtNone)
			HIP_RETURN(hipErrorInvalidDevice);
		if (desc[i].flags > hipMemAccessFlagsProtReadWrite)
			HIP_RETURN(hipErrorInvalidValue);
		result = cuMemPoolSetAccess((CUmemoryPool)pool, &core, 1);
	}
	HIP_RETURN(result);
}

hipError_t hipMemPoolGetAccess(hipMemAccessFlags *flags, hipMemPool_t pool,
			       hipMemLocation *location)
{
	HIP_ENTER();
	CUmemLocation core = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

	if (!flags || !location || location->type != hipMemLocationTypeDevice ||
	    !device_valid(location->id))
		HIP_RETURN(hipErrorInvalidValue);
	core.id = location->id;
	HIP_RETURN(cuMemPoolGetAccess((CUmemAccess_flags *)flags, (CUmemoryPool)pool, &core));
}

/* hipDeviceAttributeMemoryPoolSupportedHandleTypes says that pools cannot be shared. */

hipError_t hipMemPoolExportToShareableHandle(void *handle, hipMemPool_t pool,
					     hipMemAllocationHandleType type, unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipMemPoolImportFromShareableHandle(hipMemPool_t *pool, void *handle,
					       hipMemAllocationHandleType type, unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipMemPoolExportPointer(hipMemPoolPtrExportData *data, void *pointer)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

hipError_t hipMemPoolImportPointer(void **pointer, hipMemPool_t pool, hipMemPoolPtrExportData *data)
{
	HIP_ENTER();
	HIP_RETURN(hipErrorNotSupported);
}

/* ---- inter-process handles ---- */

_Static_assert(sizeof(hipIpcMemHandle_t) == sizeof(CUipcMemHandle) &&
		       sizeof(hipIpcEventHandle_t) == sizeof(CUipcEventHandle),
	       "handles of one size");

hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *pointer)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(cuIpcGetMemHandle((CUipcMemHandle *)handle, (CUdeviceptr)pointer));
}

hipError_t hipIpcOpenMemHandle(void **pointer, hipIpcMemHandle_t handle, unsigned flags)
{
	HIP_ENTER_CONTEXT(context);
	static const hipIpcMemHandle_t nothing;
	CUipcMemHandle core;
	CUdeviceptr start;
	CUresult result;

	if (!pointer || flags != hipIpcMemLazyEnablePeerAccess ||
	    !memcmp(&handle, &nothing, sizeof(handle)))
		HIP_RETURN(hipErrorInvalidValue);
	memcpy(&core, &handle, sizeof(core));
	result = cuIpcOpenMemHandle_v2(&start, core, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result == CUDA_ERROR_INVALID_VALUE)
		HIP_RETURN(hipErrorInvalidDevicePointer);
	if (!result)
		*pointer = (void *)start;
	HIP_RETURN(result);
}

hipError_t hipIpcCloseMemHandle(void *pointer)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(cuIpcCloseMemHandle((CUdeviceptr)pointer));
}

hipError_t hipIpcGetEventHandle(hipIpcEventHandle_t *handle, hipEvent_t event)
{
	HIP_ENTER();
	HIP_RETURN(cuIpcGetEventHandle((CUipcEventHandle *)handle, (CUevent)event));
}

hipError_t hipIpcOpenEventHandle(hipEvent_t *event, hipIpcEventHandle_t handle)
{
	HIP_ENTER_CONTEXT(context);
	CUipcEventHandle core;

	memcpy(&core, &handle, sizeof(core));
	HIP_RETURN(cuIpcOpenEventHandle((CUevent *)event, core));
}

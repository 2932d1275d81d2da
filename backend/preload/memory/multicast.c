/* SPDX-License-Identifier: MIT */
/*
 * Multicast objects and logical endpoints, and the memory bound to them. Neither can be taken apart
 * and made again, so a process that has one is not frozen.
 */
#include "backend/cuda/cuda_api_later.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/memory/handle.h"
#include "backend/preload/memory/obstacle.h"

GCR_OWN(cuMulticastCreate);
CUresult gcr_own_cuMulticastCreate(CUmemGenericAllocationHandle *handle,
				   const CUmulticastObjectProp *prop)
{
	__typeof__(cuMulticastCreate) *real = GCR_WRAPPED(cuMulticastCreate);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMulticastCreate);
	GCR_OBSTACLE_PENDING(GCR_OBSTACLE_MULTICAST);
	result = real(handle, prop);
	if (result == CUDA_SUCCESS)
		gcr_handle_watch(handle, 0, prop->size, GCR_OBSTACLE_MULTICAST, false);
	return result;
}

/* Calls that take a multicast object, or memory, or both: they are passed the driver's handles. */
#define MULTICAST(symbol, parameters, arguments)                                   \
	GCR_OWN(symbol);                                                           \
	CUresult gcr_own_##symbol parameters                                       \
	{                                                                          \
		__typeof__(symbol) *real = GCR_WRAPPED(symbol);                    \
		_cleanup_(gcr_table_put_cleanup) struct gcr_memory *object = NULL; \
		CUmemGenericAllocationHandle real_object;                          \
                                                                                   \
		if (!real)                                                         \
			return CUDA_ERROR_NOT_FOUND;                               \
		GCR_GATE_WHOLE(symbol);                                            \
		object = gcr_handle_get(multicast, &real_object);                  \
		return real arguments;                                             \
	}
#define MULTICAST_MEMORY(symbol, parameters, arguments)                            \
	GCR_OWN(symbol);                                                           \
	CUresult gcr_own_##symbol parameters                                       \
	{                                                                          \
		__typeof__(symbol) *real = GCR_WRAPPED(symbol);                    \
		_cleanup_(gcr_table_put_cleanup) struct gcr_memory *object = NULL; \
		_cleanup_(gcr_table_put_cleanup) struct gcr_memory *memory = NULL; \
		CUmemGenericAllocationHandle real_object, real_memory;             \
                                                                                   \
		if (!real)                                                         \
			return CUDA_ERROR_NOT_FOUND;                               \
		GCR_GATE_WHOLE(symbol);                                            \
		object = gcr_handle_get(multicast, &real_object);                  \
		memory = gcr_handle_get(handle, &real_memory);                     \
		return real arguments;                                             \
	}

MULTICAST(cuMulticastAddDevice, (CUmemGenericAllocationHandle multicast, CUdevice device),
	  (real_object, device))
MULTICAST(cuMulticastBindAddr,
	  (CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr pointer, size_t bytes,
	   unsigned long long flags),
	  (real_object, offset, pointer, bytes, flags))
MULTICAST(cuMulticastBindAddr_v2,
	  (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
	   CUdeviceptr pointer, size_t bytes, unsigned long long flags),
	  (real_object, device, offset, pointer, bytes, flags))
MULTICAST(cuMulticastUnbind,
	  (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, size_t bytes),
	  (real_object, device, offset, bytes))
MULTICAST_MEMORY(cuMulticastBindMem,
		 (CUmemGenericAllocationHandle multicast, size_t offset,
		  CUmemGenericAllocationHandle handle, size_t memory_offset, size_t bytes,
		  unsigned long long flags),
		 (real_object, offset, real_memory, memory_offset, bytes, flags))
MULTICAST_MEMORY(cuMulticastBindMem_v2,
		 (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
		  CUmemGenericAllocationHandle handle, size_t memory_offset, size_t bytes,
		  unsigned long long flags),
		 (real_object, device, offset, real_memory, memory_offset, bytes, flags))

/* ---- logical endpoints: memory by an identity, accessible to other GPUs and machines ---- */

GCR_OWN(cuLogicalEndpointCreate);
CUresult gcr_own_cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *prop)
{
	__typeof__(cuLogicalEndpointCreate) *real = GCR_WRAPPED(cuLogicalEndpointCreate);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuLogicalEndpointCreate);
	result = real(id, prop);
	if (result == CUDA_SUCCESS)
		gcr_obstacle_add(GCR_OBSTACLE_LOGICAL_ENDPOINT, 1);
	return result;
}

GCR_OWN(cuLogicalEndpointImport);
CUresult gcr_own_cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle,
					 CUlogicalEndpointIpcHandleType type)
{
	__typeof__(cuLogicalEndpointImport) *real = GCR_WRAPPED(cuLogicalEndpointImport);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuLogicalEndpointImport);
	result = real(id, handle, type);
	if (result == CUDA_SUCCESS)
		gcr_obstacle_add(GCR_OBSTACLE_LOGICAL_ENDPOINT, 1);
	return result;
}

GCR_OWN(cuLogicalEndpointDestroy);
CUresult gcr_own_cuLogicalEndpointDestroy(CUlogicalEndpointId id)
{
	__typeof__(cuLogicalEndpointDestroy) *real = GCR_WRAPPED(cuLogicalEndpointDestroy);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuLogicalEndpointDestroy);
	result = real(id);
	if (result == CUDA_SUCCESS)
		gcr_obstacle_add(GCR_OBSTACLE_LOGICAL_ENDPOINT, -1);
	return result;
}

GCR_OWN(cuLogicalEndpointBindMem);
CUresult gcr_own_cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device,
					  cuuint64_t offset, CUmemGenericAllocationHandle handle,
					  cuuint64_t memory_offset, cuuint64_t bytes,
					  unsigned long long flags)
{
	__typeof__(cuLogicalEndpointBindMem) *real = GCR_WRAPPED(cuLogicalEndpointBindMem);
	_cleanup_(gcr_table_put_cleanup) struct gcr_memory *memory = NULL;
	CUmemGenericAllocationHandle real_memory;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuLogicalEndpointBindMem);
	memory = gcr_handle_get(handle, &real_memory);
	return real(id, device, offset, real_memory, memory_offset, bytes, flags);
}

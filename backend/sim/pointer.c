/* SPDX-License-Identifier: MIT */
/*
 * The results of cuPointerGetAttribute: for memory of cuMemAlloc, cuMemMap and cuMemAllocAsync as
 * measured on 580.159.
 */
#include "backend/sim/sim.h"

static bool is_host(const struct allocation *allocation)
{
	return allocation->kind == ALLOCATION_HOST || allocation->kind == ALLOCATION_REGISTERED;
}

static CUresult attribute_get(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
	const struct allocation *allocation = allocation_find(pointer);
	const struct span *mapping = span_find(&mappings, pointer);
	const struct phys *phys = mapping ? ((struct mapping *)mapping->object)->phys : NULL;

	/* Mapped memory reports the range of its reservation, not of its mapping. */
	const struct span *reservation =
		allocation && allocation->kind == ALLOCATION_VMM ? reservation_find(pointer) : NULL;

	if (!allocation)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* Mapped or stream-ordered memory belongs to no context. */
		*(CUcontext *)data = allocation->kind == ALLOCATION_VMM ||
						     allocation->kind == ALLOCATION_POOL
					     ? NULL
					     : allocation->context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = is_host(allocation) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = pointer;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!is_host(allocation) && allocation->kind != ALLOCATION_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)pointer;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		*(uint64_t *)data = 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(int *)data = allocation->sync_memops;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = allocation->buffer_id;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(unsigned long long *)data = mapping ? ((struct mapping *)mapping->object)->id
						      : allocation->buffer_id;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = allocation->kind == ALLOCATION_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = allocation->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = allocation->kind == ALLOCATION_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = reservation ? reservation->start : allocation->start;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = reservation ? reservation->size_bytes : allocation->size_bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = is_host(allocation) || mapping;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)data =
			allocation->kind == ALLOCATION_VMM && phys
				? (unsigned long long)phys->prop.requestedHandleTypes
				: 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(unsigned *)data = allocation->kind == ALLOCATION_DEVICE ||
				    (allocation->kind == ALLOCATION_VMM && phys &&
				     phys->prop.allocFlags.gpuDirectRDMACapable);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		*(unsigned *)data = 0; /* no decompression engine */
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned *)data = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = allocation->pool;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)data = mapping ? mapping->size_bytes : allocation->size_bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)data = mapping ? mapping->start : allocation->start;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	return data ? attribute_get(data, attribute, pointer) : CUDA_ERROR_INVALID_VALUE;
}

/* An unknown pointer is not an error here: its attributes are returned as zero. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
				CUdeviceptr pointer)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (!attribute_get(data[i], attributes[i], pointer))
			continue;
		switch (attributes[i]) {
		case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
			*(int *)data[i] = -2; /* CU_DEVICE_INVALID */
			break;
		case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		case CU_POINTER_ATTRIBUTE_MAPPED:
		case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
			*(unsigned *)data[i] = 0;
			break;
		default:
			*(uint64_t *)data[i] = 0;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
			       CUdeviceptr pointer)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find(pointer);

	if (!value || !allocation || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	if (allocation->kind == ALLOCATION_VMM)
		return CUDA_ERROR_NOT_SUPPORTED;
	allocation->sync_memops = *(const int *)value;
	return CUDA_SUCCESS;
}

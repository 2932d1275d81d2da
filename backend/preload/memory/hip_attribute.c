/* SPDX-License-Identifier: MIT */
/* Pointer queries that only HIP has; see attribute.c. */
#include "backend/preload/memory/allocation.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/rocm/hip_api.h"

/* An address in the first page, where nothing is mapped. */
#define INVALID_ADDRESS 512

/*
 * Returns the address to query: for an allocation of the library its companion, behind its last
 * byte an invalid address; else @pointer. *ret_bytes: size of the allocation, 0 if there is none.
 */
static CUdeviceptr who_answers(const void *pointer, size_t *ret_bytes)
{
	CUdeviceptr address = (CUdeviceptr)(uintptr_t)pointer;
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_mapping(address);

	*ret_bytes = 0;
	if (!mapping || !mapping->allocation)
		return address;
	if (address - mapping->start >= mapping->allocation->bytes)
		return INVALID_ADDRESS;
	*ret_bytes = mapping->allocation->bytes;
	return mapping->allocation->companion;
}

GCR_OWN(hipPointerGetAttributes);
hipError_t gcr_own_hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *pointer)
{
	__typeof__(hipPointerGetAttributes) *real = GCR_WRAPPED(hipPointerGetAttributes);
	const void *who;
	hipError_t result;
	size_t bytes;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE(hipPointerGetAttributes);
	who = (const void *)(uintptr_t)who_answers(pointer, &bytes);
	result = real(attributes, who);
	if (result == hipSuccess && bytes)
		attributes->devicePointer = (void *)(uintptr_t)pointer;
	return result;
}

GCR_OWN(hipMemPtrGetInfo);
hipError_t gcr_own_hipMemPtrGetInfo(void *pointer, size_t *ret_bytes)
{
	__typeof__(hipMemPtrGetInfo) *real = GCR_WRAPPED(hipMemPtrGetInfo);
	hipError_t result;
	size_t bytes;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE(hipMemPtrGetInfo);
	result = real((void *)(uintptr_t)who_answers(pointer, &bytes), ret_bytes);
	if (result == hipSuccess && bytes)
		*ret_bytes = bytes;
	return result;
}

/* SPDX-License-Identifier: MIT */
/*
 * The driver's answers about pointers. For an allocation of the library the program gets the
 * answers for memory of cuMemAlloc; for its own mappings, those for mappings that are not
 * exportable.
 */
#include <stdint.h>
#include <string.h>

#include "backend/preload/memory/allocation.h"
#include "backend/preload/gate/gate.h"

/* An address in the first page, where nothing is mapped: as unknown to the driver as the bytes
 * behind an allocation would be. */
#define INVALID_ADDRESS 512

/* The result for an unknown pointer: CUDA's is constant, HIP's depends on the attribute. */
#ifdef GCR_HIP
#define UNKNOWN_POINTER(asked) (asked)
#else
#define UNKNOWN_POINTER(asked) CUDA_ERROR_INVALID_VALUE
#endif

/* The type in which RANGE_SIZE is written: HIP's is 32 bits, and a program may have no more
 * room. */
#ifdef GCR_HIP
typedef uint32_t range_size_t;
#else
typedef size_t range_size_t;
#endif

/* The facts about one pointer, from the table. */
struct subject {
	CUdeviceptr pointer, start, companion;
	size_t bytes;	/* size that the program asked for */
	bool allocated; /* inside an allocation of the library */
	bool behind;	/* behind its end, in the unused rest of its last 2 MiB */
	bool created;	/* in a mapping of the program that the library made exportable */
	CUmemAllocationHandleType asked_types;
};

static struct subject describe(CUdeviceptr pointer)
{
	GCR_TABLE_LOCK();
	struct subject subject = {.pointer = pointer};
	struct gcr_mapping *mapping = gcr_table_find_mapping(pointer);

	if (!mapping)
		return subject;
	if (mapping->allocation) {
		subject.start = mapping->start;
		subject.bytes = mapping->allocation->bytes;
		subject.companion = mapping->allocation->companion;
		subject.behind = pointer - mapping->start >= subject.bytes;
		subject.allocated = !subject.behind;
	} else if (mapping->memory->origin == GCR_MEMORY_CREATED) {
		subject.created = true;
		subject.asked_types = mapping->memory->asked.requestedHandleTypes;
	}
	return subject;
}

/*
 * The source of an attribute of the library's allocations. Driver 580.159 was seen to give
 * different answers for memory of cuMemAlloc and for mapped memory in CONTEXT, the handle types and
 * legacy IPC; these come from the companion. RDMA is the same if the mapped memory is made for it.
 */
enum source {
	SOURCE_COMPANION, /* attributes in which cuMemAlloc's memory differs from mapped memory */
	SOURCE_POINTER,	  /* attributes of the memory itself */
	SOURCE_TABLE,
};

static enum source source_of(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return SOURCE_TABLE;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* would expose the companion */
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: /* a multiple of 2 MiB for both kinds */
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: /* many companions share a block */
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return SOURCE_POINTER;
	default:
		return SOURCE_COMPANION;
	}
}

static void answer_from_table(const struct subject *subject, CUpointer_attribute attribute,
			      void *data)
{
	range_size_t bytes = (range_size_t)subject->bytes;

	if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
		memcpy(data, &subject->start, sizeof(subject->start));
	else
		memcpy(data, &bytes, sizeof(bytes));
}

GCR_OWN(cuPointerGetAttribute);
CUresult gcr_own_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
				       CUdeviceptr pointer)
{
	__typeof__(cuPointerGetAttribute) *real = GCR_WRAPPED(cuPointerGetAttribute);
	struct subject subject;
	unsigned long long types;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuPointerGetAttribute);
	subject = describe(pointer);
	if (subject.behind)
		return UNKNOWN_POINTER(real(data, attribute, INVALID_ADDRESS));
	if (subject.allocated && data && source_of(attribute) == SOURCE_TABLE) {
		answer_from_table(&subject, attribute, data);
		return CUDA_SUCCESS;
	}
	if (subject.allocated && source_of(attribute) == SOURCE_COMPANION)
		return real(data, attribute, subject.companion);
	result = real(data, attribute, pointer);
	if (result == CUDA_SUCCESS && subject.created &&
	    attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
		types = (unsigned long long)subject.asked_types;
		memcpy(data, &types, sizeof(types));
	}
	return result;
}

GCR_OWN(cuPointerGetAttributes);
CUresult gcr_own_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
					void **data, CUdeviceptr pointer)
{
	__typeof__(cuPointerGetAttributes) *real = GCR_WRAPPED(cuPointerGetAttributes);
	struct subject subject;
	unsigned long long types;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuPointerGetAttributes);
	subject = describe(pointer);
	result = real(count, attributes, data,
		      subject.behind	  ? INVALID_ADDRESS
		      : subject.allocated ? subject.companion
					  : pointer);
	if (result)
		return result;
	for (unsigned int i = 0; i < count && !result; i++) {
		enum source source = source_of(attributes[i]);

		if (subject.allocated && source == SOURCE_TABLE)
			answer_from_table(&subject, attributes[i], data[i]);
		else if (subject.allocated && source == SOURCE_POINTER)
			result = real(1, &attributes[i], &data[i], pointer);
		else if (subject.created &&
			 attributes[i] == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
			types = (unsigned long long)subject.asked_types;
			memcpy(data[i], &types, sizeof(types));
		}
	}
	return result;
}

/*
 * SYNC_MEMOPS, the only attribute that can be set, is always on for mapped memory, and the driver
 * refuses to set it there (801). So the companion's is set, which the program also reads.
 */
GCR_OWN(cuPointerSetAttribute);
CUresult gcr_own_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
				       CUdeviceptr pointer)
{
	__typeof__(cuPointerSetAttribute) *real = GCR_WRAPPED(cuPointerSetAttribute);
	struct subject subject;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuPointerSetAttribute);
	subject = describe(pointer);
	if (subject.behind)
		return CUDA_ERROR_INVALID_VALUE;
	return real(value, attribute, subject.allocated ? subject.companion : pointer);
}

GCR_OWN(cuMemGetAddressRange_v2);
CUresult gcr_own_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
	__typeof__(cuMemGetAddressRange_v2) *real = GCR_WRAPPED(cuMemGetAddressRange_v2);
	struct subject subject;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuMemGetAddressRange_v2);
	subject = describe(pointer);
	if (subject.behind)
		return real(base, bytes, INVALID_ADDRESS);
	if (!subject.allocated)
		return real(base, bytes, pointer);
	if (base)
		*base = subject.start;
	if (bytes)
		*bytes = subject.bytes;
	return CUDA_SUCCESS;
}

GCR_OWN(cuMemGetAccess);
CUresult gcr_own_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
				CUdeviceptr pointer)
{
	__typeof__(cuMemGetAccess) *real = GCR_WRAPPED(cuMemGetAccess);
	CUdeviceptr companion;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuMemGetAccess);
	return real(flags, location,
		    gcr_allocation_companion(pointer, &companion) ? companion : pointer);
}

/* SPDX-License-Identifier: MIT */
/*
 * What the driver says about pointers: for an allocation of ours what it would say of memory of
 * cuMemAlloc, for the program's own mappings what it would say if they were not exportable.
 */
#include <stdint.h>
#include <string.h>

#include "backend/preload/allocation.h"
#include "backend/preload/gate.h"

/* In the first page, where nothing ever is: as unknown to the driver as what lies behind an
 * allocation would be. */
#define INVALID_ADDRESS 512

/* What the driver says of one: CUDA's always the same, HIP's depends on the attribute. */
#ifdef GCR_HIP
#define UNKNOWN_POINTER(asked) (asked)
#else
#define UNKNOWN_POINTER(asked) CUDA_ERROR_INVALID_VALUE
#endif

/* What RANGE_SIZE is written as. HIP cuts it, and its programs may have room for no more. */
#ifdef GCR_HIP
typedef uint32_t range_size_t;
#else
typedef size_t range_size_t;
#endif

/* What is to be said of one pointer, taken from the table. */
struct subject {
	CUdeviceptr pointer, start, companion;
	size_t bytes;	/* as asked for */
	bool allocated; /* an allocation of ours */
	bool behind;	/* in the rest of an allocation's last 2 MiB, which is nobody's */
	bool created;	/* a mapping of the program, exportable without its knowledge */
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
 * Who knows an attribute of an allocation of ours. As a driver (580.159) was seen to answer for
 * memory of cuMemAlloc and for mapped memory: they differ in CONTEXT, the handle types, legacy IPC,
 * which the companion knows; RDMA is alike if mapped memory is made for it.
 */
enum source {
	SOURCE_COMPANION, /* what tells cuMemAlloc's memory from mapped memory */
	SOURCE_POINTER,	  /* what is true of the memory itself */
	SOURCE_TABLE,
};

static enum source source_of(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return SOURCE_TABLE;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* else a device would reach the companion */
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: /* a multiple of 2 MiB for both */
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: /* many companions are in one block */
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
 * The one attribute that can be set, SYNC_MEMOPS, is always on for mapped memory, and setting it is
 * refused (801); so the companion takes it, which is what the program will read.
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

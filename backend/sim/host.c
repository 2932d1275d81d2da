/* SPDX-License-Identifier: MIT */
/*
 * Host memory known to the driver: allocated by it (shared anonymous mappings; the real driver's
 * are shared mappings of /dev/zero) or registered with it. A checkpoint does not touch this memory.
 */
#include "backend/sim/sim.h"

#include <sys/mman.h>

#define PAGE_BYTES ((size_t)4096)

static size_t page_up(size_t value)
{
	return (value + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
}

static CUresult host_alloc(CUcontext context, void **ret_pointer, size_t bytes, unsigned flags)
{
	CUresult result = capture_forbids(NULL);
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation;
	void *memory;

	if (result)
		return result;
	if (!ret_pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	memory = mmap(NULL, page_up(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation = allocation_add((CUdeviceptr)memory, bytes, ALLOCATION_HOST, context->device);
	if (!allocation) {
		munmap(memory, page_up(bytes));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->context = context;
	allocation->flags = flags;
	*ret_pointer = memory;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	if (flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	return host_alloc(context, pointer, bytes, flags);
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
	SIM_ENTER_CONTEXT(context);
	return host_alloc(context, pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);
	struct allocation *allocation;

	if (result)
		return result;
	context_wait(context);
	GCR_LOCK_SCOPE(&sim.lock);
	allocation = allocation_find((CUdeviceptr)pointer);
	if (!allocation || allocation->kind != ALLOCATION_HOST ||
	    allocation->start != (CUdeviceptr)pointer)
		return CUDA_ERROR_INVALID_VALUE;
	munmap(pointer, page_up(allocation->size_bytes));
	allocation_remove(allocation);
	return CUDA_SUCCESS;
}

/* Returns true if all pages are mapped: memory of any kind, including mapped files. */
static bool is_mapped(const void *pointer, size_t bytes)
{
	uintptr_t start = (uintptr_t)pointer / PAGE_BYTES * PAGE_BYTES;
	size_t pages = page_up((uintptr_t)pointer + bytes - start) / PAGE_BYTES;
	unsigned char present[1024];

	while (pages) {
		size_t step = pages < sizeof(present) ? pages : sizeof(present);

		if (mincore((void *)start, step * PAGE_BYTES, present) < 0)
			return false;
		start += step * PAGE_BYTES;
		pages -= step;
	}
	return true;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation;

	if (result)
		return result;
	if (!pointer || !bytes || flags & ~15u || !is_mapped(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (span_overlaps(&allocations, (CUdeviceptr)pointer, bytes))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	allocation =
		allocation_add((CUdeviceptr)pointer, bytes, ALLOCATION_REGISTERED, context->device);
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->context = context;
	allocation->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags)
{
	return cuMemHostRegister_v2(pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void *pointer)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find((CUdeviceptr)pointer);

	if (result)
		return result;
	if (!allocation || allocation->kind != ALLOCATION_REGISTERED ||
	    allocation->start != (CUdeviceptr)pointer)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	allocation_remove(allocation);
	return CUDA_SUCCESS;
}

static struct allocation *host_find(const void *pointer)
{
	struct allocation *allocation = allocation_find((CUdeviceptr)pointer);

	return allocation && (allocation->kind == ALLOCATION_HOST ||
			      allocation->kind == ALLOCATION_REGISTERED)
		       ? allocation
		       : NULL;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_pointer, void *pointer, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	GCR_LOCK_SCOPE(&sim.lock);

	if (!device_pointer || flags || !host_find(pointer))
		return CUDA_ERROR_INVALID_VALUE;
	*device_pointer = (CUdeviceptr)pointer;
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
	SIM_ENTER_CONTEXT(context);
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = host_find(pointer);

	if (!flags || !allocation)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = allocation->flags;
	return CUDA_SUCCESS;
}

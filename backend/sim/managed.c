/* SPDX-License-Identifier: MIT */
/*
 * Managed memory: allocation, and the program's hints (advice, prefetches), which are stored per
 * page range and returned by queries. The pages themselves are plain host memory: the CPU and the
 * kernels access them at the same address. They count as VRAM in use from the moment a kernel, a
 * memset or a prefetch moves them to a GPU until a prefetch moves them to the host.
 */
#include "backend/sim/sim.h"

#define PAGE_BYTES 4096ull

/*
 * A policy: the hints for the pages [start, end). A list of policies covers each managed
 * allocation.
 */
struct policy {
	struct policy *next;
	CUdeviceptr start, end;
	bool read_mostly;
	CUmemLocation preferred, prefetched; /* type INVALID: none */
	unsigned accessed_by;		     /* bit per device */
	bool accessed_by_cpu;
};

static void policies_free(struct policy *policy)
{
	while (policy) {
		struct policy *next = policy->next;

		free(policy);
		policy = next;
	}
}

CUresult managed_memory_alloc(int device, size_t size_bytes, unsigned flags,
			      CUdeviceptr *ret_pointer)
{
	struct policy *policy = calloc(1, sizeof(*policy));
	struct allocation *allocation = NULL;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr start;

	if (policy)
		result = managed_address_take(size_bytes, &start);
	if (result) {
		free(policy);
		return result;
	}
	allocation = allocation_add(start, size_bytes, ALLOCATION_MANAGED, device);
	if (!allocation) {
		free(policy);
		managed_address_give(start);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	policy->start = start / PAGE_BYTES * PAGE_BYTES;
	policy->end = round_up(start + size_bytes, PAGE_BYTES);
	allocation->policies = policy;
	allocation->context = context_first(device);
	allocation->flags = flags;
	*ret_pointer = start;
	return CUDA_SUCCESS;
}

void managed_memory_free(struct allocation *allocation)
{
	CUdeviceptr start = allocation->start;

	policies_free(allocation->policies);
	allocation_remove(allocation);
	managed_address_give(start);
}

bool managed_memory_exists(void)
{
	for (size_t i = 0; i < allocations.count; i++) {
		const struct allocation *allocation = allocations.items[i].object;

		if (allocation->kind == ALLOCATION_MANAGED)
			return true;
	}
	return false;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	SIM_ENTER_CONTEXT(context);
	CUresult result = capture_forbids(NULL);
	GCR_LOCK_SCOPE(&sim.lock);

	if (result)
		return result;
	if (!pointer || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	return managed_memory_alloc(context->device, bytes, flags, pointer);
}

/* ---- page ranges ---- */

/*
 * Returns the allocation if all of [pointer, pointer + count) is in one managed allocation, else
 * NULL.
 */
static struct allocation *managed_find(CUdeviceptr pointer, size_t count)
{
	struct allocation *allocation = allocation_find(pointer);

	if (!allocation || allocation->kind != ALLOCATION_MANAGED || !count ||
	    count > allocation->start + allocation->size_bytes - pointer)
		return NULL;
	return allocation;
}

/* Splits a policy so that one starts at `at`. */
static CUresult policy_cut(struct policy *policy, CUdeviceptr at)
{
	for (; policy; policy = policy->next) {
		struct policy *rest;

		if (at <= policy->start || at >= policy->end)
			continue;
		rest = malloc(sizeof(*rest));
		if (!rest)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*rest = *policy;
		rest->start = policy->end = at;
		policy->next = rest;
		break;
	}
	return CUDA_SUCCESS;
}

/*
 * Returns the first policy of the pages that contain [pointer, pointer + count), and the pages'
 * end.
 */
static CUresult policies_of(CUdeviceptr pointer, size_t count, struct policy **ret_first,
			    CUdeviceptr *ret_end)
{
	struct allocation *allocation = managed_find(pointer, count);
	CUdeviceptr start = pointer / PAGE_BYTES * PAGE_BYTES;
	CUdeviceptr end = round_up(pointer + count, PAGE_BYTES);
	CUresult result;

	if (!allocation)
		return CUDA_ERROR_INVALID_VALUE;
	result = policy_cut(allocation->policies, start);
	if (!result)
		result = policy_cut(allocation->policies, end);
	if (result)
		return result;
	for (*ret_first = allocation->policies; (*ret_first)->start < start;)
		*ret_first = (*ret_first)->next;
	*ret_end = end;
	return CUDA_SUCCESS;
}

static CUresult location_check(const CUmemLocation *location)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return device_valid(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return location->id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Converts a device number of the older calls. */
static CUmemLocation location_of(CUdevice device)
{
	return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
							       : CU_MEM_LOCATION_TYPE_DEVICE,
			       .id = device == CU_DEVICE_CPU ? 0 : device};
}

static bool advice_has_location(CUmem_advise advice)
{
	return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
	       advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

static void policy_advise(struct policy *policy, CUmem_advise advice, CUmemLocation location)
{
	bool set = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
		   advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
		   advice == CU_MEM_ADVISE_SET_ACCESSED_BY;

	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		policy->read_mostly = set;
		break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		policy->preferred = set ? location : (CUmemLocation){0};
		break;
	default:
		if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			policy->accessed_by_cpu = set;
		else if (set)
			policy->accessed_by |= 1u << location.id;
		else
			policy->accessed_by &= ~(1u << location.id);
	}
}

static CUresult advise(CUdeviceptr pointer, size_t count, CUmem_advise advice,
		       CUmemLocation location)
{
	struct policy *policy;
	CUdeviceptr end;
	CUresult result = CUDA_SUCCESS;
	GCR_LOCK_SCOPE(&sim.lock);

	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
		return CUDA_ERROR_INVALID_VALUE;
	if (advice_has_location(advice))
		result = location_check(&location);
	if (!result)
		result = policies_of(pointer, count, &policy, &end);
	if (result)
		return result;
	for (; policy && policy->start < end; policy = policy->next)
		policy_advise(policy, advice, location);
	return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device)
{
	SIM_ENTER_CONTEXT(context);
	return advise(pointer, count, advice, location_of(device));
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t count, CUmem_advise advice,
			CUmemLocation location)
{
	SIM_ENTER_CONTEXT(context);
	return advise(pointer, count, advice, location);
}

static void residency_set(CUdeviceptr pointer, size_t count, int gpu)
{
	pthread_rwlock_rdlock(&sim.map_lock);
	for (CUdeviceptr at = pointer; at < pointer + count;) {
		struct span *span = span_find(&mappings, at);

		mapping_reside(span->object, gpu);
		at = span->start + span->size_bytes;
	}
	pthread_rwlock_unlock(&sim.map_lock);
}

static CUresult prefetch(CUdeviceptr pointer, size_t count, CUmemLocation location, CUstream stream)
{
	struct work nothing = {.kind = WORK_NOTHING};
	struct policy *policy;
	CUdeviceptr end;
	CUresult result;

	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&sim.lock);
	result = location_check(&location);
	if (!result)
		result = policies_of(pointer, count, &policy, &end);
	for (; !result && policy && policy->start < end; policy = policy->next)
		policy->prefetched = location;
	if (!result)
		residency_set(pointer, count,
			      location.type == CU_MEM_LOCATION_TYPE_DEVICE
				      ? (int)sim.gpu_of_device[location.id]
				      : -1);
	pthread_mutex_unlock(&sim.lock);
	return result ? result : stream_submit(stream, &nothing, NULL, NULL);
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t count, CUdevice device, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	return prefetch(pointer, count, location_of(device), stream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t count, CUmemLocation location,
			       unsigned flags, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, count, location, stream);
}

/* ---- queries ---- */

static CUdevice device_of(CUmemLocation location)
{
	switch (location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return location.id;
	case CU_MEM_LOCATION_TYPE_INVALID:
		return CU_DEVICE_INVALID;
	default:
		return CU_DEVICE_CPU;
	}
}

static bool location_equal(CUmemLocation a, CUmemLocation b)
{
	return a.type == b.type && a.id == b.id;
}

/* A query of a range returns only hints that hold for the whole range. */
static void policy_join(struct policy *sum, const struct policy *policy)
{
	sum->read_mostly &= policy->read_mostly;
	sum->accessed_by &= policy->accessed_by;
	sum->accessed_by_cpu &= policy->accessed_by_cpu;
	if (!location_equal(sum->preferred, policy->preferred))
		sum->preferred = (CUmemLocation){0};
	if (!location_equal(sum->prefetched, policy->prefetched))
		sum->prefetched = (CUmemLocation){0};
}

static CUresult accessed_by(int32_t *devices, size_t count, const struct policy *policy)
{
	size_t used = 0;

	if (policy->accessed_by_cpu && used < count)
		devices[used++] = CU_DEVICE_CPU;
	for (unsigned i = 0; i < sim.device_count && used < count; i++)
		if (policy->accessed_by >> i & 1)
			devices[used++] = (int32_t)i;
	while (used < count)
		devices[used++] = CU_DEVICE_INVALID;
	return CUDA_SUCCESS;
}

static CUresult range_attribute(void *data, size_t data_bytes, CUmem_range_attribute attribute,
				const struct policy *policy)
{
	int32_t *number = data;

	if (!data || (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY
			      ? !data_bytes || data_bytes % sizeof(*number)
			      : data_bytes != sizeof(*number)))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		*number = policy->read_mostly;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		*number = device_of(policy->preferred);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		return accessed_by(number, data_bytes / sizeof(*number), policy);
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		*number = device_of(policy->prefetched);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		*number = (int32_t)policy->preferred.type;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		*number = policy->preferred.id;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		*number = (int32_t)policy->prefetched.type;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		*number = policy->prefetched.id;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemRangeGetAttributes(void **data, size_t *data_bytes, CUmem_range_attribute *attributes,
				 size_t count, CUdeviceptr pointer, size_t size)
{
	SIM_ENTER_CONTEXT(context);
	GCR_LOCK_SCOPE(&sim.lock);
	struct policy *policy, sum;
	CUdeviceptr end;
	CUresult result;

	if (!data || !data_bytes || !attributes || !count)
		return CUDA_ERROR_INVALID_VALUE;
	result = policies_of(pointer, size, &policy, &end);
	if (result)
		return result;
	for (sum = *policy; policy && policy->start < end; policy = policy->next)
		policy_join(&sum, policy);
	for (size_t i = 0; i < count && !result; i++)
		result = range_attribute(data[i], data_bytes[i], attributes[i], &sum);
	return result;
}

CUresult cuMemRangeGetAttribute(void *data, size_t data_bytes, CUmem_range_attribute attribute,
				CUdeviceptr pointer, size_t size)
{
	return cuMemRangeGetAttributes(&data, &data_bytes, &attribute, 1, pointer, size);
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t length, unsigned flags)
{
	SIM_ENTER_STREAM(stream, handle);
	struct work nothing = {.kind = WORK_NOTHING};
	struct allocation *allocation;

	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
	    flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags == CU_MEM_ATTACH_SINGLE && stream->legacy)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim.lock);
	allocation = allocation_find(pointer);
	if (!allocation || allocation->kind != ALLOCATION_MANAGED || allocation->start != pointer ||
	    (length && length != allocation->size_bytes))
		allocation = NULL;
	if (allocation) {
		allocation->flags = flags;
		allocation->attached_stream = flags == CU_MEM_ATTACH_SINGLE ? stream->id : 0;
	}
	pthread_mutex_unlock(&sim.lock);
	return allocation ? stream_submit(stream, &nothing, NULL, NULL) : CUDA_ERROR_INVALID_VALUE;
}

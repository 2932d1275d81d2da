/* SPDX-License-Identifier: MIT */
/* See hip_access.h. The gate is closed, so the table does not change. */
#include "backend/preload/memory/hip_access.h"

#include <errno.h>
#include <string.h>

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/rocm/adapt.h"

/*
 * Does this version of HIP check the first mappings of a reservation? See README.md of
 * backend/rocm.
 */
static bool looks_at_the_first(void)
{
	int version = gcr_hip_version();

	return version >= GCR_HIP_VERSION(7, 0) && version < GCR_HIP_VERSION(7, 14);
}

/*
 * Was the mapping made by the program? The library's own allocations are not affected: each is
 * alone in its reservation.
 */
static bool is_the_programs(const struct gcr_mapping *mapping)
{
	return !mapping->allocation && mapping->mapped && mapping->access_count;
}

static bool has_access(const struct gcr_mapping *mapping, const CUmemAccessDesc *access)
{
	for (size_t i = 0; i < mapping->access_count; i++)
		if (!memcmp(&mapping->access[i].location, &access->location,
			    sizeof(access->location)))
			return mapping->access[i].flags == access->flags;
	return false;
}

static bool is_alike(const struct gcr_mapping *one, const struct gcr_mapping *other)
{
	if (!is_the_programs(other) || one->access_count != other->access_count)
		return false;
	for (size_t i = 0; i < one->access_count; i++)
		if (!has_access(other, &one->access[i]))
			return false;
	return true;
}

/* Finds the range of adjacent mappings around @mapping that have the same access. */
static void find_run(const struct gcr_mapping *mapping, CUdeviceptr *ret_start,
		     CUdeviceptr *ret_end)
{
	GCR_TABLE_LOCK();
	const struct gcr_mapping *next;

	*ret_start = mapping->start;
	*ret_end = mapping->start + mapping->bytes;
	while ((next = gcr_table_find_mapping(*ret_start - 1)) && is_alike(mapping, next))
		*ret_start = next->start;
	while ((next = gcr_table_find_mapping(*ret_end)) && is_alike(mapping, next))
		*ret_end = next->start + next->bytes;
}

static CUresult set(const struct gcr_mapping *mapping, CUdeviceptr start, CUdeviceptr end)
{
	return GCR_REAL(cuMemSetAccess)(start, end - start, mapping->access, mapping->access_count);
}

static CUresult set_with_neighbours(const struct gcr_mapping *mapping)
{
	CUdeviceptr start, end;

	find_run(mapping, &start, &end);
	return set(mapping, start, end);
}

static struct gcr_mapping *next_of(const struct gcr_mapping *mapping)
{
	GCR_TABLE_LOCK();

	return gcr_table_next_mapping(mapping ? mapping->start + mapping->bytes : 0);
}

bool gcr_hip_access_may_wait(const struct gcr_mapping *mapping)
{
	return !mapping->allocation && looks_at_the_first();
}

int gcr_hip_access_give(struct gcr_error *error)
{
	struct gcr_mapping *mapping = NULL;

	if (!looks_at_the_first())
		return 0;
	while ((mapping = next_of(mapping))) {
		CUresult result = mapping->waits ? set_with_neighbours(mapping) : CUDA_SUCCESS;

		if (result)
			return gcr_driver_failed(error, "cuMemSetAccess", result);
		mapping->waits = false;
	}
	return 0;
}

int gcr_hip_access_try(struct gcr_error *error)
{
	struct gcr_mapping *mapping = NULL;

	if (!looks_at_the_first())
		return 0;
	while ((mapping = next_of(mapping))) {
		if (!is_the_programs(mapping) || !gcr_memory_joins(mapping->memory) ||
		    set(mapping, mapping->start, mapping->start + mapping->bytes) == CUDA_SUCCESS ||
		    set_with_neighbours(mapping) == CUDA_SUCCESS)
			continue;
		return gcr_error_set(error, EOPNOTSUPP,
				     "this version of HIP would not give access to the memory at "
				     "0x%llx again: it is mapped next to memory of other sizes "
				     "(ROCm 7.0 to 7.2)",
				     mapping->start);
	}
	return 0;
}

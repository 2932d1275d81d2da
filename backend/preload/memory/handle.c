/* SPDX-License-Identifier: MIT */
/*
 * The program's own use of the virtual memory functions. The library makes plain device memory
 * exportable without the program's knowledge. The program has the driver's own handle for the
 * memory until a thaw, after which the driver's handle is a different one: see table.h. All other
 * memory passes through unchanged, and is watched for what prevents a freeze.
 *
 * Reservations of addresses are not tracked.
 */
#include <errno.h>
#include <fcntl.h>

#include "backend/preload/memory/allocation.h"
#include "backend/preload/base/converts.h"
#include "backend/preload/memory/device.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/memory/handle.h"
#include "backend/preload/memory/memory.h"
#ifdef GCR_HIP
#include "backend/rocm/adapt.h"
#endif

/* Handle types that a program may ask for: a fabric handle is no obstacle until exported. */
#define KNOWN_TYPES \
	((unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | (unsigned)CU_MEM_HANDLE_TYPE_FABRIC)

/* ---- making it ---- */

/* Can the memory be made exportable, moved and made again without a difference to the program? */
static bool joins(const CUmemAllocationProp *prop, size_t bytes, unsigned long long flags)
{
	const struct gcr_device *device;

	if (!prop || flags || !bytes || bytes % GCR_MEMORY_GRANULARITY || !gcr_memory_converts())
		return false;
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    ((unsigned)prop->requestedHandleTypes & ~KNOWN_TYPES) ||
	    prop->allocFlags.compressionType || prop->allocFlags.usage)
		return false;
	device = gcr_device_get(prop->location.id);
	return device && device->exportable;
}

static enum gcr_obstacle obstacle_of(const CUmemAllocationProp *prop)
{
	/* A type of location that is newer than this library. */
	if ((unsigned)prop->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
		return GCR_OBSTACLE_SPECIAL_USE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return GCR_OBSTACLE_HOST_MEMORY;
	if (prop->allocFlags.compressionType)
		return GCR_OBSTACLE_COMPRESSIBLE;
	if (prop->allocFlags.usage)
		return GCR_OBSTACLE_SPECIAL_USE;
	return GCR_OBSTACLE_NONE;
}

void gcr_handle_watch(CUmemGenericAllocationHandle *handle, int device, size_t bytes,
		      enum gcr_obstacle obstacle, bool shared)
{
	GCR_TABLE_LOCK();
	struct gcr_memory *memory = gcr_table_find_apart(*handle);
	struct gcr_memory *dead = NULL;
	bool known = memory != NULL;

	if (!known)
		memory = gcr_table_add_memory(GCR_MEMORY_APART, device, bytes, *handle);
	if (!memory || gcr_table_add_handle(memory, *handle, handle) < 0) {
		gcr_obstacle_add(obstacle, 1);
		gcr_sharing_add(shared);
	} else {
		if (obstacle)
			gcr_table_obstruct(memory, obstacle);
		if (shared)
			gcr_table_share(memory);
	}
	/* APART memory owns nothing that would have to be released without the lock. */
	if (memory && !known)
		gcr_table_unref(memory, &dead);
	gcr_table_release_dead(dead);
}

static CUresult create_joined(CUmemGenericAllocationHandle *handle, size_t bytes,
			      const CUmemAllocationProp *asked)
{
	CUmemAllocationProp prop = *asked;
	CUmemGenericAllocationHandle real;
	struct gcr_memory *memory, *dead = NULL;
	CUresult result;

	prop.requestedHandleTypes =
		(CUmemAllocationHandleType)((unsigned)asked->requestedHandleTypes |
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	result = GCR_REAL(cuMemCreate)(&real, bytes, &prop, 0);
	if (result)
		return result;
	gcr_table_lock();
	memory = gcr_table_add_memory(GCR_MEMORY_CREATED, asked->location.id, bytes, real);
	if (memory) {
		memory->asked = *asked;
		if (gcr_table_add_handle(memory, real, handle) < 0)
			result = CUDA_ERROR_OUT_OF_MEMORY;
		gcr_table_unref(memory, &dead);
	} else {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	gcr_table_unlock();
	gcr_table_release_dead(dead);
	if (!memory)
		GCR_REAL(cuMemRelease)(real);
	return result;
}

GCR_OWN(cuMemCreate);
CUresult gcr_own_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
			     const CUmemAllocationProp *prop, unsigned long long flags)
{
	__typeof__(cuMemCreate) *real = GCR_WRAPPED(cuMemCreate);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemCreate);
	if (handle && joins(prop, bytes, flags)) {
		result = create_joined(handle, bytes, prop);
		if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
			return result;
	}
	GCR_OBSTACLE_PENDING(prop ? obstacle_of(prop) : GCR_OBSTACLE_NONE);
	result = real(handle, bytes, prop, flags);
	if (result == CUDA_SUCCESS)
		gcr_handle_watch(handle, prop->location.id, bytes, obstacle_of(prop), false);
	return result;
}

GCR_OWN(cuMemRelease);
CUresult gcr_own_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	__typeof__(cuMemRelease) *real = GCR_WRAPPED(cuMemRelease);
	CUmemGenericAllocationHandle real_handle = handle;
	struct gcr_memory *memory, *dead = NULL;
	bool is_ours, is_hidden;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemRelease);
	gcr_table_lock();
	memory = gcr_table_find_handle(handle, &real_handle);
	is_ours = memory && memory->origin != GCR_MEMORY_APART;
	is_hidden = !memory && gcr_table_is_hidden(handle);
	if (memory)
		gcr_table_drop_handle(handle, &dead);
	gcr_table_unlock();
	gcr_table_release_dead(dead);
	if (is_hidden)
		return CUDA_ERROR_INVALID_VALUE;
	return is_ours ? CUDA_SUCCESS : real(real_handle);
}

struct gcr_memory *gcr_handle_get(CUmemGenericAllocationHandle handle,
				  CUmemGenericAllocationHandle *ret_real)
{
	GCR_TABLE_LOCK();
	struct gcr_memory *memory;

	*ret_real = handle;
	memory = gcr_table_find_handle(handle, ret_real);
	if (memory)
		memory->references++;
	else if (gcr_table_is_hidden(handle))
		*ret_real = GCR_TABLE_NO_HANDLE;
	return memory;
}

/* ---- mapping it ---- */

GCR_OWN(cuMemMap);
CUresult gcr_own_cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
			  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	__typeof__(cuMemMap) *real = GCR_WRAPPED(cuMemMap);
	_cleanup_(gcr_table_free_mapping_cleanup) struct gcr_mapping *mapping = NULL;
	_cleanup_(gcr_table_put_cleanup) struct gcr_memory *memory = NULL;
	CUmemGenericAllocationHandle real_handle;
	struct gcr_memory *dead = NULL;
	CUresult result;
	int r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemMap);
	memory = gcr_handle_get(handle, &real_handle);
	if (!memory)
		return real(pointer, bytes, offset, real_handle, flags);
	mapping = gcr_table_new_mapping(pointer, bytes, offset);
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->memory = memory;
	result = real(pointer, bytes, offset, real_handle, flags);
	if (result)
		return result;
	gcr_table_lock();
	r = gcr_table_add_mapping(mapping, &dead);
	gcr_table_unlock();
	gcr_table_release_dead(dead);
	if (r < 0) {
		GCR_REAL(cuMemUnmap)(pointer, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapping = NULL;
	return CUDA_SUCCESS;
}

/*
 * Is an allocation of the library in the range? To the driver, memory of cuMemAlloc is not mapped:
 * the program gets an error for a call on such a range.
 */
static bool is_allocation(CUdeviceptr pointer, size_t bytes)
{
	GCR_TABLE_LOCK();

	return gcr_table_has_allocation(pointer, bytes);
}

GCR_OWN(cuMemUnmap);
CUresult gcr_own_cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
	__typeof__(cuMemUnmap) *real = GCR_WRAPPED(cuMemUnmap);
	struct gcr_mapping *mapping;
	struct gcr_memory *dead = NULL;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemUnmap);
	if (is_allocation(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	result = real(pointer, bytes);
	if (result)
		return result;
	gcr_table_lock();
	while ((mapping = gcr_table_next_mapping(pointer)) && mapping->start - pointer < bytes &&
	       mapping->start >= pointer)
		gcr_table_drop_mapping(mapping, &dead);
	gcr_table_unlock();
	gcr_table_release_dead(dead);
	return CUDA_SUCCESS;
}

/* Calls the function for each mapping in the range, with the table locked; ends at a failure. */
static int for_each_mapping(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *access,
			    size_t count,
			    int (*what)(struct gcr_mapping *mapping, const CUmemAccessDesc *access,
					size_t count))
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping;
	CUdeviceptr at = start;
	int r = 0;

	while (r == 0 && (mapping = gcr_table_next_mapping(at)) && mapping->start >= at &&
	       mapping->start - start < bytes) {
		r = what(mapping, access, count);
		at = mapping->start + mapping->bytes;
	}
	return r;
}

static int make_room(struct gcr_mapping *mapping, const CUmemAccessDesc *access, size_t count)
{
	return gcr_table_room_for_access(mapping, count);
}

static int note_access(struct gcr_mapping *mapping, const CUmemAccessDesc *access, size_t count)
{
	gcr_table_set_access(mapping, access, count);
#ifdef GCR_HIP
	for (size_t i = 0; i < mapping->access_count; i++)
		if (mapping->access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return 0;
	gcr_hip_keep_from_children(mapping->start, mapping->bytes);
#endif
	return 0;
}

GCR_OWN(cuMemSetAccess);
CUresult gcr_own_cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access,
				size_t count)
{
	__typeof__(cuMemSetAccess) *real = GCR_WRAPPED(cuMemSetAccess);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemSetAccess);
	if (is_allocation(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	/* The driver refuses a higher count than there are locations: make no room for it. */
	if (access && count && count <= 4096 &&
	    for_each_mapping(pointer, bytes, access, count, make_room) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real(pointer, bytes, access, count);
	if (result == CUDA_SUCCESS)
		for_each_mapping(pointer, bytes, access, count, note_access);
	return result;
}

GCR_OWN(cuMemAddressFree);
CUresult gcr_own_cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
	__typeof__(cuMemAddressFree) *real = GCR_WRAPPED(cuMemAddressFree);

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemAddressFree);
	return is_allocation(pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : real(pointer, bytes);
}

/* ---- asking about it ---- */

#ifdef GCR_HIP
#define ASKS_COMPANION false
#else
#define ASKS_COMPANION true
#endif

GCR_OWN(cuMemGetAllocationPropertiesFromHandle);
CUresult gcr_own_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
							CUmemGenericAllocationHandle handle)
{
	__typeof__(cuMemGetAllocationPropertiesFromHandle) *real =
		GCR_WRAPPED(cuMemGetAllocationPropertiesFromHandle);
	_cleanup_(gcr_table_put_cleanup) struct gcr_memory *memory = NULL;
	CUmemGenericAllocationHandle real_handle;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemGetAllocationPropertiesFromHandle);
	memory = gcr_handle_get(handle, &real_handle);
	if (!memory || memory->origin == GCR_MEMORY_APART || !prop)
		return real(prop, real_handle);
	*prop = memory->asked;
	return CUDA_SUCCESS;
}

/*
 * Does each call of cuMemRetainAllocationHandle return a handle that must be released separately?
 * Up to ROCm 6 the call returns the handle that the program already has.
 */
static bool retains(void)
{
#ifdef GCR_HIP
	return gcr_hip_version() >= GCR_HIP_VERSION(7, 0);
#else
	return true;
#endif
}

/* Gives the program a handle for the CREATED memory at @address. False: call the driver instead. */
static bool retain_joined(CUdeviceptr address, CUmemGenericAllocationHandle *handle,
			  CUresult *ret_result)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_mapping(address);

	if (!mapping || mapping->memory->origin != GCR_MEMORY_CREATED)
		return false;
	*ret_result = CUDA_SUCCESS;
	if (!retains() && gcr_table_has_handle(mapping->memory, handle))
		return true;
	if (gcr_table_add_handle(mapping->memory, mapping->memory->real, handle) < 0)
		*ret_result = CUDA_ERROR_OUT_OF_MEMORY;
	return true;
}

/*
 * Enters a further handle of APART memory into the table, so that the memory stays watched as long
 * as the program has one of its handles.
 */
static void note_retained(CUdeviceptr address, CUmemGenericAllocationHandle *handle)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_mapping(address);

	if (mapping && mapping->memory->origin == GCR_MEMORY_APART)
		gcr_table_add_handle(mapping->memory, *handle, handle);
}

GCR_OWN(cuMemRetainAllocationHandle);
CUresult gcr_own_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	__typeof__(cuMemRetainAllocationHandle) *real = GCR_WRAPPED(cuMemRetainAllocationHandle);
	CUdeviceptr pointer = (CUdeviceptr)(uintptr_t)address, companion;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemRetainAllocationHandle);
	if (is_allocation(pointer, 1)) {
		/* The driver has no handle for memory of cuMemAlloc, so the companion gives the
		 * error. HIP is not called: ROCm 6 follows a null pointer there. */
		if (!ASKS_COMPANION || !gcr_allocation_companion(pointer, &companion))
			return CUDA_ERROR_INVALID_VALUE;
		result = real(handle, (void *)(uintptr_t)companion);
		if (result)
			return result;
		GCR_REAL(cuMemRelease)(*handle);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (handle && retain_joined(pointer, handle, &result))
		return result;
	result = real(handle, address);
	if (result == CUDA_SUCCESS)
		note_retained(pointer, handle);
	return result;
}

/* ---- sharing it ---- */

/*
 * Exports memory that a thaw has imported, and which the driver cannot export: duplicates the
 * descriptor of the import. *ret_fd is the caller's.
 */
static CUresult export_kept(struct gcr_memory *memory, int *ret_fd)
{
	int fd;

	if (!gcr_descriptor_valid(&memory->descriptor))
		return CUDA_ERROR_INVALID_VALUE;
	fd = fcntl(memory->descriptor.fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*ret_fd = fd;
	return CUDA_SUCCESS;
}

/*
 * Counts the memory as shared until it is freed, as only the driver knows its users. @memory NULL
 * (not in the table): counts a sharing for ever.
 */
static void note_export(struct gcr_memory *memory, CUmemAllocationHandleType type)
{
	bool is_fabric = type == CU_MEM_HANDLE_TYPE_FABRIC;

	if (!memory) {
		gcr_sharing_add(1);
		gcr_obstacle_add(is_fabric ? GCR_OBSTACLE_FABRIC : GCR_OBSTACLE_NONE, 1);
		return;
	}
	GCR_TABLE_LOCK();
	gcr_table_share(memory);
	if (is_fabric)
		gcr_table_obstruct(memory, GCR_OBSTACLE_FABRIC);
}

GCR_OWN(cuMemExportToShareableHandle);
CUresult gcr_own_cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
					      CUmemAllocationHandleType type,
					      unsigned long long flags)
{
	__typeof__(cuMemExportToShareableHandle) *real = GCR_WRAPPED(cuMemExportToShareableHandle);
	_cleanup_(gcr_table_put_cleanup) struct gcr_memory *memory = NULL;
	CUmemGenericAllocationHandle real_handle;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemExportToShareableHandle);
	GCR_SHARING_PENDING();
	memory = gcr_handle_get(handle, &real_handle);
	/* Without the program's request the memory is exportable for the library only. */
	if (memory && memory->origin == GCR_MEMORY_CREATED &&
	    !(memory->asked.requestedHandleTypes & type))
		return CUDA_ERROR_INVALID_VALUE;
	/* Memory that a thaw has imported by a descriptor has no fabric handle. */
	if (memory && memory->imported && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (memory && memory->imported && shareable && !flags)
		result = export_kept(memory, shareable);
	else
		result = real(shareable, real_handle, type, flags);
	if (result)
		return result;
	note_export(memory, type);
	return CUDA_SUCCESS;
}

GCR_OWN(cuMemImportFromShareableHandle);
CUresult gcr_own_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
						void *shareable, CUmemAllocationHandleType type)
{
	__typeof__(cuMemImportFromShareableHandle) *real =
		GCR_WRAPPED(cuMemImportFromShareableHandle);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemImportFromShareableHandle);
	GCR_SHARING_PENDING();
	result = real(handle, shareable, type);
	if (result == CUDA_SUCCESS)
		gcr_handle_watch(handle, 0, 0, GCR_OBSTACLE_NONE, true);
	return result;
}

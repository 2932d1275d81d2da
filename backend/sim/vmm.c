/* SPDX-License-Identifier: MIT */
/*
 * Virtual memory management: address ranges, physical allocations, mappings and shareable
 * descriptors. A handle is a number for a reference to a physical allocation; numbers are reused.
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#define FABRIC_HANDLE_MAGIC 0x6770756661627269ull

struct handle {
	struct handle *next;
	CUmemGenericAllocationHandle number;
	struct phys *phys;
};

static struct handle *handles; /* sim.lock */
static struct span_table reservations;

static struct handle *handle_find(CUmemGenericAllocationHandle number)
{
	for (struct handle *handle = handles; handle; handle = handle->next)
		if (handle->number == number)
			return handle;
	return NULL;
}

/* Takes over the caller's reference to @phys. */
static CUresult handle_new(struct phys *phys, CUmemGenericAllocationHandle *ret_number)
{
	struct handle *handle = calloc(1, sizeof(*handle));

	if (!handle) {
		phys_unref(phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* As in the driver: an address, which a later handle may get after a release. */
	handle->number = (uintptr_t)handle;
	handle->phys = phys;
	handle->next = handles;
	handles = handle;
	*ret_number = handle->number;
	return CUDA_SUCCESS;
}

const struct span *reservation_find(CUdeviceptr address)
{
	return span_find(&reservations, address);
}

static bool granular(uint64_t value)
{
	return value % sim_vendor.granularity_bytes() == 0;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr addr,
			     unsigned long long flags)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	CUdeviceptr start;

	if (!pointer || !size || !granular(size) || (alignment & (alignment - 1)) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	start = range_reserve(size, alignment, addr);
	if (!start)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (span_insert(&reservations, start, size, NULL)) {
		range_release(start);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pointer = start;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct span *reservation = span_find(&reservations, pointer);

	if (!reservation || reservation->start != pointer || reservation->size_bytes != size)
		return CUDA_ERROR_INVALID_VALUE;
	if (span_overlaps(&mappings, pointer, size))
		return CUDA_ERROR_INVALID_VALUE;
	span_remove(&reservations, pointer);
	range_release(pointer);
	return CUDA_SUCCESS;
}

/* GPUCR_SIM_FABRIC=1: simulates a machine with a fabric between machines' GPUs. */
static bool has_fabric(void)
{
	const char *value = getenv("GPUCR_SIM_FABRIC");

	return value && !strcmp(value, "1");
}

static CUresult prop_check(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return prop->location.type ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC && !has_fabric())
		return CUDA_ERROR_NOT_SUPPORTED;
	if (prop->requestedHandleTypes & ~((unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
					   (unsigned)CU_MEM_HANDLE_TYPE_FABRIC))
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct phys *phys;
	CUresult result = prop_check(prop);

	if (result)
		return result;
	if (!handle || !size || !granular(size) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = phys_create(prop->location.id, size, prop, &phys);
	return result ? result : handle_new(phys, handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle number)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	for (struct handle **link = &handles; *link; link = &(*link)->next) {
		struct handle *handle = *link;

		if (handle->number != number)
			continue;
		*link = handle->next;
		phys_unref(handle->phys);
		free(handle);
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
		  CUmemGenericAllocationHandle number, unsigned long long flags)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct handle *handle = handle_find(number);
	struct span *reservation = span_find(&reservations, pointer);
	struct allocation *allocation;
	CUresult result;

	if (!handle || !size || !granular(pointer) || !granular(size) || !granular(offset) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (offset + size > handle->phys->size_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!reservation || pointer + size > reservation->start + reservation->size_bytes ||
	    span_overlaps(&mappings, pointer, size))
		return CUDA_ERROR_INVALID_VALUE;
	result = mapping_add(pointer, size, handle->phys, offset, ACCESS_NOBODY);
	if (result)
		return result;
	allocation = allocation_add(pointer, size, ALLOCATION_VMM, handle->phys->device);
	if (!allocation) {
		mapping_remove(pointer);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* Returns the number of mappings that fill [pointer, pointer + size) exactly, or 0. */
static size_t mappings_within(CUdeviceptr pointer, size_t size)
{
	CUdeviceptr at = pointer;
	size_t count = 0;

	while (at < pointer + size) {
		struct span *span = span_find(&mappings, at);
		struct allocation *allocation = allocation_find(at);

		if (!span || span->start != at || !allocation || allocation->kind != ALLOCATION_VMM)
			return 0;
		at += span->size_bytes;
		count++;
	}
	return at == pointer + size ? count : 0;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);

	if (!mappings_within(pointer, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (CUdeviceptr at = pointer; at < pointer + size;) {
		struct allocation *allocation = allocation_find(at);
		size_t length = allocation->size_bytes;

		allocation_remove(allocation);
		mapping_remove(at);
		at += length;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	CUresult result = CUDA_SUCCESS;

	if (!desc || !count || !mappings_within(pointer, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !device_valid(desc[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_wrlock(&sim.map_lock);
	for (CUdeviceptr at = pointer; at < pointer + size && !result;) {
		struct mapping *mapping = span_find(&mappings, at)->object;

		for (size_t i = 0; i < count; i++)
			mapping->protection[desc[i].location.id] = (int)desc[i].flags;
		result = sim_error_of(mapping_attach(mapping));
		at += mapping->size_bytes;
	}
	pthread_rwlock_unlock(&sim.map_lock);
	return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
			CUdeviceptr pointer)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find(pointer);
	struct span *span = span_find(&mappings, pointer);

	if (!flags || !location || !span || !allocation ||
	    location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	/* Measured: no flags for memory that was not mapped by cuMemMap. */
	*flags = allocation->kind == ALLOCATION_VMM
			 ? (unsigned long long)((struct mapping *)span->object)
				   ->protection[location->id]
			 : 0;
	return CUDA_SUCCESS;
}

/* The export succeeds, but no process can import the handle. */
static CUresult export_fabric(void *shareable, struct phys *phys)
{
	uint64_t content[8] = {FABRIC_HANDLE_MAGIC, phys->slot};

	if (!has_fabric())
		return CUDA_ERROR_NOT_SUPPORTED;
	if (phys->imported || !(phys->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC))
		return CUDA_ERROR_INVALID_VALUE;
	phys->exported = true;
	memcpy(shareable, content, sizeof(content));
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle number,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct handle *handle = handle_find(number);
	int fd;

	if (!shareable || !handle || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		return export_fabric(shareable, handle->phys);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* Measured: an imported handle cannot be exported again. */
	if ((handle->phys->imported && !sim_vendor.exports_imported_handles) ||
	    !(handle->phys->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_INVALID_VALUE;
	shared_lock();
	shared->allocations[handle->phys->slot].exported = 1;
	shared->allocations[handle->phys->slot].rdma_capable =
		handle->phys->prop.allocFlags.gpuDirectRDMACapable;
	fd = shared_allocation_open(handle->phys->slot, true);
	shared_unlock();
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	handle->phys->exported = true;
	*(int *)shareable = fd;
	return CUDA_SUCCESS;
}

/*
 * Returns the slot of the allocation behind an open descriptor: the file is named after the
 * allocation's id.
 */
static int slot_of_descriptor(int fd)
{
	char link[64], path[PATH_MAX], expected[PATH_MAX];
	struct stat status, file;
	uint64_t id;
	ssize_t length;
	char *name;
	int slot;

	snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0 || fstat(fd, &status) < 0)
		return -EBADF;
	path[length] = '\0';
	name = strrchr(path, '/');
	if (!name || sscanf(name + 1, "%" SCNu64, &id) != 1)
		return -EINVAL;
	slot = shared_allocation_find(id);
	shared_path(expected, "memory/%" PRIu64, id);
	if (slot < 0 || stat(expected, &file) < 0 || file.st_ino != status.st_ino ||
	    file.st_dev != status.st_dev)
		return -EINVAL;
	return slot;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
					CUmemAllocationHandleType type)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct phys *phys = NULL;
	int device = -1, slot;

	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	shared_lock();
	slot = slot_of_descriptor((int)(intptr_t)os_handle);
	for (unsigned i = 0; slot >= 0 && i < sim.device_count; i++)
		if (sim.gpu_of_device[i] == shared->allocations[slot].gpu)
			device = (int)i;
	if (slot >= 0 && device >= 0)
		phys = phys_adopt((unsigned)slot, device);
	shared_unlock();
	if (slot < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (device < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!phys)
		return CUDA_ERROR_OUT_OF_MEMORY;
	phys->imported = true;
	phys->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	phys->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	phys->prop.location.id = device;
	phys->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	phys->prop.allocFlags.gpuDirectRDMACapable = shared->allocations[slot].rdma_capable;
	return handle_new(phys, handle);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	SIM_ENTER();
	CUresult result = prop_check(prop);

	if (result)
		return result;
	if (!granularity)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = sim_vendor.granularity_bytes();
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle number)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct handle *handle = handle_find(number);

	if (!prop || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = handle->phys->prop;
	return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *number, void *addr)
{
	SIM_ENTER();
	GCR_LOCK_SCOPE(&sim.lock);
	struct allocation *allocation = allocation_find((CUdeviceptr)addr);
	struct mapping *mapping;

	if (!number || !allocation || allocation->kind != ALLOCATION_VMM)
		return CUDA_ERROR_INVALID_VALUE;
	mapping = span_find(&mappings, allocation->start)->object;
	mapping->phys->references++;
	return handle_new(mapping->phys, number);
}

/* Export as a dma-buf needs hardware. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t size,
				       CUmemRangeHandleType type, unsigned long long flags)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* The attribute MULTICAST_SUPPORTED says no. */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
			    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
			    unsigned long long flags)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr memory,
			     size_t size, unsigned long long flags)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
			   size_t size)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
				   CUmulticastGranularity_flags option)
{
	SIM_ENTER();
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* SPDX-License-Identifier: MIT */
/*
 * Virtual memory management. A handle is an object with references: the program's, and one per
 * mapping. Differences from CUDA (backend/rocm/README.md names the releases):
 * - a mapping begins at the start of its memory (offset 0);
 * - a mapping is unmapped alone and with its exact size; from 7.1 on also several at once;
 * - hipMemRetainAllocationHandle returns the one existing handle without taking a reference; from
 *   7.1 on it takes one;
 * - memory is exported only as the type requested at its creation; imported memory has no type in
 *   6.2, so that only later releases export it again;
 * - an imported handle reports the device that was current at the import;
 * - hipMemImportFromShareableHandle takes a pointer to the descriptor, and from 7.1 on the
 *   descriptor cast to a pointer; before 6.2 it returns "not supported";
 * - a copy or memset must stay within one mapping, until 6.3;
 * - a reservation ignores its alignment, and reports an invalid size as out of memory, until 7.0;
 * - hipMemSetAccess compares its size with those of the reservation's first mappings, whatever its
 *   start address, in 7.0 to 7.2;
 * - unmapped memory stays in use while its addresses are reserved, in 7.2: the file with the memory
 *   stays mapped there, without access.
 *
 * Here hipMemMap and hipMemUnmap return their errors; up to 6.3 the real functions return success
 * instead, and so do these with GPUCR_SIM_HIP_QUIET=1.
 */
#include <sys/mman.h>

#include "backend/sim/hip.h"

struct ihipMemGenericAllocationHandle {
	struct ihipMemGenericAllocationHandle *next;
	CUmemGenericAllocationHandle number;
	unsigned references;
	unsigned of_program; /* the program's share; the others are mappings */
	hipMemAllocationProp prop;
	int device; /* location of the memory */
	bool is_imported;
};

typedef struct ihipMemGenericAllocationHandle handle_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static handle_t *handles;
static struct span_table mapped; /* object: the handle */

static bool is_quiet(void)
{
	return hip_version() < HIP_VERSION_7_0 && getenv("GPUCR_SIM_HIP_QUIET");
}

static bool valid(const handle_t *handle)
{
	for (const handle_t *other = handles; other; other = other->next)
		if (other == handle)
			return true;
	return false;
}

static void unref(handle_t *handle)
{
	if (--handle->references)
		return;
	for (handle_t **link = &handles; *link; link = &(*link)->next)
		if (*link == handle) {
			*link = handle->next;
			break;
		}
	/* Quirk: no handle refers to the VRAM, which stays in use until the process ends. */
	if (!hip_has_quirk("release") && !(handle->is_imported && hip_has_quirk("import")))
		cuMemRelease(handle->number);
	free(handle);
}

static handle_t *handle_add(CUmemGenericAllocationHandle number, const hipMemAllocationProp *prop,
			    int device)
{
	handle_t *handle = calloc(1, sizeof(*handle));

	if (!handle) {
		cuMemRelease(number);
		return NULL;
	}
	*handle = (handle_t){.next = handles,
			     .number = number,
			     .references = 1,
			     .of_program = 1,
			     .prop = *prop,
			     .device = device};
	handles = handle;
	return handle;
}

hipError_t hipMemAddressReserve(void **pointer, size_t bytes, size_t alignment, void *address,
				unsigned long long flags)
{
	HIP_ENTER();
	CUdeviceptr start = 0;
	CUresult result;

	if (!pointer || flags)
		HIP_RETURN(hipErrorInvalidValue);
	if (!bytes || bytes % sim_vendor.granularity_bytes() || alignment & (alignment - 1))
		HIP_RETURN(hip_version() < HIP_VERSION_7_0 ? hipErrorMemoryAllocation
							   : hipErrorInvalidValue);
	*pointer = NULL;
	result = cuMemAddressReserve(&start, bytes, 0, (CUdeviceptr)address, 0);
	*pointer = (void *)start;
	HIP_RETURN(result);
}

hipError_t hipMemAddressFree(void *pointer, size_t bytes)
{
	HIP_ENTER();
	HIP_RETURN(pointer && bytes ? cuMemAddressFree((CUdeviceptr)pointer, bytes)
				    : CUDA_ERROR_INVALID_VALUE);
}

static bool prop_valid(const hipMemAllocationProp *prop)
{
	return prop && prop->type == hipMemAllocationTypePinned &&
	       prop->location.type == hipMemLocationTypeDevice && device_valid(prop->location.id);
}

/* The underlying memory is always exportable: the HIP functions check whether export is allowed. */
static CUmemAllocationProp core_prop(const hipMemAllocationProp *prop)
{
	CUmemAllocationProp core = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = prop->location.id}};

	core.allocFlags.gpuDirectRDMACapable = prop->allocFlags.gpuDirectRDMACapable;
	return core;
}

hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t bytes,
			const hipMemAllocationProp *prop, unsigned long long flags)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	CUmemGenericAllocationHandle number;
	CUmemAllocationProp core;
	CUresult result;

	if (!handle || !bytes || flags || !prop_valid(prop))
		HIP_RETURN(hipErrorInvalidValue);
	if (prop->requestedHandleType != hipMemHandleTypeNone &&
	    prop->requestedHandleType != hipMemHandleTypePosixFileDescriptor)
		HIP_RETURN(hipErrorNotSupported);
	core = core_prop(prop);
	result = cuMemCreate(&number, bytes, &core, 0);
	if (result)
		HIP_RETURN(result);
	*handle = handle_add(number, prop, prop->location.id);
	HIP_RETURN(*handle ? hipSuccess : hipErrorOutOfMemory);
}

/*
 * The handle is the object that mappings also refer to; in real HIP one release too many is
 * undefined.
 */
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);

	if (!handle || !valid(handle) || !handle->of_program)
		HIP_RETURN(hipErrorInvalidValue);
	handle->of_program--;
	unref(handle);
	HIP_RETURN(hipSuccess);
}

hipError_t hipMemMap(void *pointer, size_t bytes, size_t offset,
		     hipMemGenericAllocationHandle_t handle, unsigned long long flags)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	CUdeviceptr start = (CUdeviceptr)pointer;
	CUcontext context;
	CUresult result;

	if (!pointer || !handle || !bytes || offset || flags || !valid(handle))
		HIP_RETURN(hipErrorInvalidValue);
	/* The real call uses the device's null stream, which initialises the device. */
	result = context_primary(handle->device, true, &context);
	if (!result)
		result = cuMemMap(start, bytes, 0, handle->number, 0);
	if (result)
		HIP_RETURN(is_quiet() ? CUDA_SUCCESS : result);
	if (span_insert(&mapped, start, bytes, handle)) {
		cuMemUnmap(start, bytes);
		HIP_RETURN(hipErrorOutOfMemory);
	}
	handle->references++;
	HIP_RETURN(hipSuccess);
}

static bool stays_mapped(void)
{
	return hip_version() >= HIP_VERSION_7_2 && hip_version() < HIP_VERSION_7_14;
}

/* Unmaps one mapping, after all work submitted to its device before. `lock` is held. */
static CUresult unmap(const struct span *span)
{
	handle_t *handle = span->object;
	CUdeviceptr start = span->start;
	size_t size_bytes = span->size_bytes;
	_cleanup_close_ int fd = -1;
	CUcontext context;
	CUresult result = context_primary(handle->device, true, &context);

	if (result)
		return result;
	/* After all work submitted to the device before. */
	context_wait(context);
	if (stays_mapped())
		cuMemExportToShareableHandle(&fd, handle->number,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	result = cuMemUnmap(start, size_bytes);
	if (result)
		return is_quiet() ? CUDA_SUCCESS : result;
	if (fd >= 0)
		mmap((void *)start, size_bytes, PROT_NONE, MAP_FIXED | MAP_SHARED, fd, 0);
	span_remove(&mapped, start);
	unref(handle);
	return CUDA_SUCCESS;
}

/* Returns true if the range is made of whole mappings: one, or several if the release permits. */
static bool unmappable(CUdeviceptr start, size_t bytes)
{
	const struct span *span = span_find(&mapped, start);

	if (!span || span->start != start || span->size_bytes > bytes)
		return false;
	return span->size_bytes == bytes ||
	       (hip_version() >= HIP_VERSION_7_1 &&
		unmappable(start + span->size_bytes, bytes - span->size_bytes));
}

hipError_t hipMemUnmap(void *pointer, size_t bytes)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	CUdeviceptr start = (CUdeviceptr)pointer, end = start + bytes;
	CUresult result = CUDA_SUCCESS;

	if (!pointer || !bytes || !unmappable(start, bytes))
		HIP_RETURN(hipErrorInvalidValue);
	while (start < end && !result) {
		struct span *span = span_find(&mapped, start);

		start += span->size_bytes;
		result = unmap(span);
	}
	HIP_RETURN(result);
}

/* Returns true if the sizes of the reservation's first mappings (one or more) add up to @bytes. */
static bool first_are(CUdeviceptr start, size_t bytes)
{
	CUdeviceptr from = 0, end = 0;
	size_t first_bytes = 0;

	pthread_mutex_lock(&sim.lock);
	if (reservation_find(start)) {
		from = reservation_find(start)->start;
		end = from + reservation_find(start)->size_bytes;
	}
	pthread_mutex_unlock(&sim.lock);
	for (size_t i = 0; i < mapped.count && first_bytes < bytes; i++)
		if (mapped.items[i].start >= from && mapped.items[i].start < end)
			first_bytes += mapped.items[i].size_bytes;
	return first_bytes == bytes;
}

hipError_t hipMemSetAccess(void *pointer, size_t bytes, const hipMemAccessDesc *desc, size_t count)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	CUresult result = CUDA_SUCCESS;

	if (!pointer || !bytes || !desc || !count)
		HIP_RETURN(hipErrorInvalidValue);
	if ((hip_has_quirk("access") ||
	     (hip_version() >= HIP_VERSION_7_0 && hip_version() < HIP_VERSION_7_14)) &&
	    !first_are((CUdeviceptr)pointer, bytes))
		HIP_RETURN(hipErrorInvalidValue);
	/* Applied in order: entries before an invalid one take effect. */
	for (size_t i = 0; i < count && !result; i++) {
		CUmemAccessDesc core = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
						     .id = desc[i].location.id},
					.flags = (CUmemAccess_flags)desc[i].flags};

		if (!device_valid(desc[i].location.id) ||
		    (desc[i].flags != hipMemAccessFlagsProtNone &&
		     desc[i].flags != hipMemAccessFlagsProtRead &&
		     desc[i].flags != hipMemAccessFlagsProtReadWrite))
			HIP_RETURN(hipErrorInvalidValue);
		result = cuMemSetAccess((CUdeviceptr)pointer, bytes, &core, 1);
	}
	HIP_RETURN(result);
}

hipError_t hipMemGetAccess(unsigned long long *flags, const hipMemLocation *location, void *pointer)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	CUmemLocation core = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

	if (!flags || !location || !pointer || location->type != hipMemLocationTypeDevice ||
	    !device_valid(location->id) || !span_find(&mapped, (CUdeviceptr)pointer))
		HIP_RETURN(hipErrorInvalidValue);
	core.id = location->id;
	HIP_RETURN(cuMemGetAccess(flags, &core, (CUdeviceptr)pointer));
}

hipError_t hipMemExportToShareableHandle(void *shareable, hipMemGenericAllocationHandle_t handle,
					 hipMemAllocationHandleType type, unsigned long long flags)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);

	if (!shareable || flags || !handle || !valid(handle) ||
	    handle->prop.requestedHandleType != type)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(cuMemExportToShareableHandle(shareable, handle->number,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle, void *os_handle,
					   hipMemAllocationHandleType type)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	const hipMemAllocationProp prop = {
		.type = hipMemAllocationTypePinned,
		/* 6.2 does not set the type. */
		.requestedHandleType = hip_version() < HIP_VERSION_6_3 ? hipMemHandleTypeNone
								       : type,
		.location = {.type = hipMemLocationTypeDevice, .id = hip_device}};
	CUmemGenericAllocationHandle number;
	CUmemAllocationProp core;
	CUresult result;

	if (!handle || !os_handle)
		HIP_RETURN(hipErrorInvalidValue);
	if (hip_version() < HIP_VERSION_6_2)
		HIP_RETURN(hipErrorNotSupported);
	if (hip_version() < HIP_VERSION_7_1) {
		int fd;

		memcpy(&fd, os_handle, sizeof(fd));
		os_handle = (void *)(intptr_t)fd;
	}
	result = cuMemImportFromShareableHandle(&number, os_handle,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (!result)
		result = cuMemGetAllocationPropertiesFromHandle(&core, number);
	if (result)
		HIP_RETURN(result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_ERROR_INVALID_VALUE);
	*handle = handle_add(number, &prop, core.location.id);
	if (*handle)
		(*handle)->is_imported = true;
	HIP_RETURN(*handle ? hipSuccess : hipErrorOutOfMemory);
}

hipError_t hipMemGetAllocationGranularity(size_t *granularity, const hipMemAllocationProp *prop,
					  hipMemAllocationGranularity_flags option)
{
	HIP_ENTER();
	if (!granularity || !prop_valid(prop) || option > hipMemAllocationGranularityRecommended)
		HIP_RETURN(hipErrorInvalidValue);
	*granularity = sim_vendor.granularity_bytes();
	HIP_RETURN(hipSuccess);
}

hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp *prop,
						   hipMemGenericAllocationHandle_t handle)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);

	if (!prop || !handle || !valid(handle))
		HIP_RETURN(hipErrorInvalidValue);
	*prop = handle->prop;
	HIP_RETURN(hipSuccess);
}

hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t *handle, void *address)
{
	HIP_ENTER();
	GCR_LOCK_SCOPE(&lock);
	struct span *span = span_find(&mapped, (CUdeviceptr)address);

	if (!handle || !address || !span)
		HIP_RETURN(hipErrorInvalidValue);
	*handle = span->object;
	if (hip_version() >= HIP_VERSION_7_1) {
		(*handle)->of_program++;
		(*handle)->references++;
	}
	HIP_RETURN(hipSuccess);
}

/*
 * Returns the end of the memory object that contains the address; 0: none. Until 6.3 the object is
 * the mapping, then the reservation. sim.lock is held.
 */
static CUdeviceptr object_end(CUdeviceptr address)
{
	const struct allocation *allocation = allocation_find(address);
	const struct span *reservation = reservation_find(address);

	if (!allocation)
		return 0;
	if (allocation->kind == ALLOCATION_VMM && reservation && hip_version() >= HIP_VERSION_6_3)
		return reservation->start + reservation->size_bytes;
	return allocation->start + allocation->size_bytes;
}

CUresult hip_memory_check(const void *pointer, size_t bytes, bool write)
{
	int wanted = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hip_device};
	CUdeviceptr start = (CUdeviceptr)pointer, end;
	unsigned long long flags = 0;
	GCR_LOCK_SCOPE(&lock);

	/* HIP reports missing access as "unknown", not as an invalid value. */
	if (span_find(&mapped, start) &&
	    (cuMemGetAccess(&flags, &location, start) || ((int)flags & wanted) != wanted))
		return (CUresult)hipErrorUnknown;
	pthread_mutex_lock(&sim.lock);
	end = object_end(start);
	pthread_mutex_unlock(&sim.lock);
	return end && bytes > end - start ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/* Adapters for CUDA's memory functions that differ in HIP; see adapt.c. */
#include "backend/rocm/adapt_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* ---- host memory ---- */

/* Memory that is only portable is not coherent in HIP: the GPU's writes become visible late. */
CUresult gcr_hip_cuMemHostAlloc(void **ret_pointer, size_t size, unsigned int flags)
{
	return gcr_hip_result(HIP(hipHostMalloc)(ret_pointer, size, flags | hipHostMallocCoherent));
}

/* CUDA's READ_ONLY has the number of hipExtHostRegisterCoarseGrained. */
CUresult gcr_hip_cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
	return gcr_hip_result(HIP(hipHostRegister)(
		pointer, size, flags & ~(unsigned int)CU_MEMHOSTREGISTER_READ_ONLY));
}

/* ---- virtual memory ---- */

/*
 * HIP reports 4 KiB since 6.1, and then uses 4 KiB pages for sizes that are not larger. Blocks of 2
 * MiB are mapped by one entry of the GPU's page table, and all sizes used here are multiples of 2
 * MiB.
 */
#define GRANULARITY_BYTES ((size_t)2 << 20)

CUresult gcr_hip_cuMemGetAllocationGranularity(size_t *ret_bytes,
					       const CUmemAllocationProp *properties,
					       CUmemAllocationGranularity_flags option)
{
	size_t bytes;
	hipError_t error;

	if (!ret_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipMemGetAllocationGranularity)(&bytes,
						    (const hipMemAllocationProp *)properties,
						    (hipMemAllocationGranularity_flags)option);
	if (error != hipSuccess)
		return gcr_hip_result(error);
	if (bytes < GRANULARITY_BYTES)
		bytes = GRANULARITY_BYTES;
	*ret_bytes = bytes;
	return CUDA_SUCCESS;
}

/* Newer versions of HIP allocate on the current device, whatever the properties say. */
CUresult gcr_hip_cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t size,
			     const CUmemAllocationProp *properties, unsigned long long flags)
{
	bool elsewhere;
	int current;
	hipError_t error, back = hipSuccess;

	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDevice)(&current);
	if (error != hipSuccess)
		return gcr_hip_result(error);
	elsewhere = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    properties->location.id != current;
	if (elsewhere)
		error = HIP(hipSetDevice)(properties->location.id);
	if (error != hipSuccess)
		return gcr_hip_result(error);
	error = HIP(hipMemCreate)((hipMemGenericAllocationHandle_t *)ret_handle, size,
				  (const hipMemAllocationProp *)properties, flags);
	if (elsewhere)
		back = HIP(hipSetDevice)(current);
	(void)back; /* cannot fail: was current before */
	return gcr_hip_result(error);
}

CUresult gcr_hip_cuMemExportToShareableHandle(void *ret_handle, CUmemGenericAllocationHandle handle,
					      CUmemAllocationHandleType type,
					      unsigned long long flags)
{
	if (gcr_hip_unsuitable(gcr_hip_version()))
		return CUDA_ERROR_NOT_SUPPORTED;
	return gcr_hip_result(HIP(hipMemExportToShareableHandle)(
		ret_handle, (hipMemGenericAllocationHandle_t)(uintptr_t)handle,
		(hipMemAllocationHandleType)type, flags));
}

/*
 * CUDA takes the descriptor itself, cast to a pointer; so does HIP since 7.1, except for descriptor
 * 0, which HIP takes for a missing argument. Earlier versions take the address of the descriptor.
 * HIP reports the memory as the current device's, and that device maps it: the caller sets the
 * right device.
 */
CUresult gcr_hip_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle,
						void *os_handle, CUmemAllocationHandleType type)
{
	hipMemGenericAllocationHandle_t *handle = (hipMemGenericAllocationHandle_t *)ret_handle;
	int fd = (int)(intptr_t)os_handle, copy;
	hipError_t error;

	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    gcr_hip_unsuitable(gcr_hip_version()))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!gcr_hip_is_since(GCR_HIP_VERSION(7, 1)))
		return gcr_hip_result(HIP(hipMemImportFromShareableHandle)(
			handle, &fd, hipMemHandleTypePosixFileDescriptor));
	if (fd)
		return gcr_hip_result(HIP(hipMemImportFromShareableHandle)(
			handle, os_handle, hipMemHandleTypePosixFileDescriptor));
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipMemImportFromShareableHandle)(handle, (void *)(intptr_t)copy,
						     hipMemHandleTypePosixFileDescriptor);
	close(copy);
	return gcr_hip_result(error);
}

/* HIP writes both results even if an argument is NULL. */
CUresult gcr_hip_cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_bytes,
					 CUdeviceptr pointer)
{
	hipDeviceptr_t base = NULL;
	size_t bytes = 0;
	hipError_t error = HIP(hipMemGetAddressRange)(&base, &bytes, (hipDeviceptr_t)pointer);

	if (error != hipSuccess)
		return gcr_hip_result(error);
	if (ret_base)
		*ret_base = (CUdeviceptr)base;
	if (ret_bytes)
		*ret_bytes = bytes;
	return CUDA_SUCCESS;
}

/*
 * Returns the size of the mapping that begins at @start and ends no later than @end; 0 if there is
 * none. *ret_is_known is false if HIP does not know the address.
 */
static size_t mapping_at(CUdeviceptr start, CUdeviceptr end, bool *ret_is_known)
{
	CUdeviceptr base;
	size_t bytes;

	*ret_is_known = gcr_hip_cuMemGetAddressRange_v2(&base, &bytes, start) == CUDA_SUCCESS;
	return *ret_is_known && base == start && bytes <= end - start ? bytes : 0;
}

/*
 * HIP has reported that the range is mapped as one mapping (@is_mapped), or is not any more (else).
 * Is the opposite true? HIP 6 returns success for a mapping or unmapping that ROCr has refused. If
 * the check is impossible, HIP's result is believed (false): a mapping that exists but is taken for
 * missing would never be unmapped and would block every later mapping at this address.
 */
static bool is_otherwise(CUdeviceptr start, size_t bytes, bool is_mapped)
{
	CUdeviceptr base;
	size_t there;
	CUresult result = gcr_hip_cuMemGetAddressRange_v2(&base, &there, start);

	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
		return false;
	return is_mapped != (result == CUDA_SUCCESS && base == start && there == bytes);
}

CUresult gcr_hip_cuMemMap(CUdeviceptr start, size_t size, size_t offset,
			  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	hipError_t error = HIP(hipMemMap)((void *)start, size, offset,
					  (hipMemGenericAllocationHandle_t)(uintptr_t)handle,
					  flags);

	if (error == hipSuccess && !gcr_hip_is_since(GCR_HIP_VERSION(7, 0)) &&
	    is_otherwise(start, size, true))
		return CUDA_ERROR_UNKNOWN;
	return gcr_hip_result(error);
}

/*
 * Does this version map the memory also for the host? ROCr 7.2 maps the file of the GPU, with the
 * memory, at the GPU's address. The adapters take this into account from 7.1 on.
 */
static bool maps_for_host(void)
{
	return gcr_hip_is_since(GCR_HIP_VERSION(7, 1));
}

void gcr_hip_keep_from_children(CUdeviceptr start, size_t bytes)
{
	if (maps_for_host())
		madvise((void *)start, bytes, MADV_DONTFORK);
}

CUresult gcr_hip_cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *access,
				size_t count)
{
	hipError_t error =
		HIP(hipMemSetAccess)((void *)start, size, (const hipMemAccessDesc *)access, count);
	bool only_devices = true;

	for (size_t i = 0; error == hipSuccess && i < count; i++)
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			only_devices = false;
	if (error == hipSuccess && only_devices)
		gcr_hip_keep_from_children(start, size);
	return gcr_hip_result(error);
}

/*
 * Unmaps one mapping. ROCr 7.2 leaves its mapping of the GPU's file in place, without access, which
 * keeps the VRAM in use while the addresses are reserved. So that mapping is replaced by the one of
 * a reservation without memory. If that fails the VRAM stays in use, as without this replacement.
 */
static CUresult unmap_one(CUdeviceptr start, size_t bytes)
{
	hipError_t error = HIP(hipMemUnmap)((void *)start, bytes);

	if (error != hipSuccess)
		return gcr_hip_result(error);
	if (!gcr_hip_is_since(GCR_HIP_VERSION(7, 0)) && is_otherwise(start, bytes, false))
		return CUDA_ERROR_UNKNOWN;
	if (maps_for_host())
		mmap((void *)start, bytes, PROT_NONE,
		     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return CUDA_SUCCESS;
}

/*
 * Up to 6.x HIP unmaps one mapping at a time, and dereferences a null pointer if nothing is mapped.
 * Therefore unknown addresses are refused here, and a range of several mappings is unmapped one by
 * one.
 */
CUresult gcr_hip_cuMemUnmap(CUdeviceptr start, size_t size)
{
	CUdeviceptr end = start + size, at;
	bool is_known = true;
	size_t bytes = 1;
	CUresult result = CUDA_SUCCESS;

	if (!start || !size || !HIP(hipMemGetAddressRange))
		return CUDA_ERROR_INVALID_VALUE;
	for (at = start; at < end && bytes; at += bytes)
		bytes = mapping_at(at, end, &is_known);
	if (!is_known)
		return CUDA_ERROR_INVALID_VALUE;
	if (!bytes)
		return gcr_hip_result(HIP(hipMemUnmap)((void *)start, size));
	for (at = start; at < end && result == CUDA_SUCCESS; at += bytes) {
		bytes = mapping_at(at, end, &is_known);
		if (!bytes)
			return CUDA_ERROR_UNKNOWN;
		result = unmap_one(at, bytes);
	}
	return result;
}

/* ---- copies ---- */

CUresult gcr_hip_cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			      CUcontext from_context, size_t size)
{
	return gcr_hip_result(HIP(hipMemcpyPeer)((void *)to, gcr_hip_device(to_context),
						 (void *)from, gcr_hip_device(from_context), size));
}

CUresult gcr_hip_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				   CUcontext from_context, size_t size, CUstream stream)
{
	return gcr_hip_result(HIP(hipMemcpyPeerAsync)((void *)to, gcr_hip_device(to_context),
						      (void *)from, gcr_hip_device(from_context),
						      size, (hipStream_t)stream));
}

/* ---- managed memory: a place is a device, or the host with any of its nodes ---- */

static int place_of(CUmemLocation location)
{
	return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : hipCpuDeviceId;
}

CUresult gcr_hip_cuMemAdvise_v2(CUdeviceptr pointer, size_t size, CUmem_advise advice,
				CUmemLocation location)
{
	return gcr_hip_result(HIP(hipMemAdvise)((const void *)pointer, size,
						(hipMemoryAdvise)advice, place_of(location)));
}

CUresult gcr_hip_cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t size, CUmemLocation location,
				       unsigned int flags, CUstream stream)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return gcr_hip_result(HIP(hipMemPrefetchAsync)((const void *)pointer, size,
						       place_of(location), (hipStream_t)stream));
}

/* ---- attributes of pointers ---- */

static unsigned int memory_type_of(unsigned int type)
{
	if (!gcr_hip_is_since(GCR_HIP_VERSION(6, 0))) {
		switch (type) {
		case GCR_HIP_5_MEMORY_TYPE_HOST:
			return CU_MEMORYTYPE_HOST;
		case GCR_HIP_5_MEMORY_TYPE_ARRAY:
			return CU_MEMORYTYPE_ARRAY;
		case GCR_HIP_5_MEMORY_TYPE_UNIFIED:
			return CU_MEMORYTYPE_UNIFIED;
		default:
			return CU_MEMORYTYPE_DEVICE;
		}
	}
	switch (type) {
	case GCR_HIP_6_MEMORY_TYPE_HOST:
		return CU_MEMORYTYPE_HOST;
	case GCR_HIP_6_MEMORY_TYPE_ARRAY:
		return CU_MEMORYTYPE_ARRAY;
	case GCR_HIP_6_MEMORY_TYPE_UNIFIED:
		return CU_MEMORYTYPE_UNIFIED;
	default:
		return CU_MEMORYTYPE_DEVICE;
	}
}

/*
 * Returns the number of bytes that CUDA writes; for some attributes HIP writes fewer. 0: HIP does
 * not know the attribute.
 */
static size_t bytes_of(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return 4;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return 8;
	default:
		return 0;
	}
}

/*
 * Reads one attribute, which HIP writes in up to 64 bits. Also handles the context, which HIP
 * lacks, and the size, which HIP truncates to 32 bits.
 */
static CUresult read_pointer_attribute(uint64_t *value, CUpointer_attribute attribute,
				       CUdeviceptr pointer)
{
	int device = 0;
	size_t bytes = 0;
	CUresult result;

	*value = 0;
	if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
		result = gcr_hip_cuMemGetAddressRange_v2(NULL, &bytes, pointer);
		*value = bytes;
		return result;
	}
	if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) {
		result = gcr_hip_result(HIP(hipPointerGetAttribute)(
			&device, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (hipDeviceptr_t)pointer));
		*value = result == CUDA_SUCCESS ? (uintptr_t)gcr_hip_context(device) : 0;
		return result;
	}
	result = gcr_hip_result(HIP(hipPointerGetAttribute)(value, (hipPointer_attribute)attribute,
							    (hipDeviceptr_t)pointer));
	if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*value = memory_type_of((unsigned int)*value);
	return result;
}

CUresult gcr_hip_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
				       CUdeviceptr pointer)
{
	uint64_t value;
	CUresult result;

	if (!data || !pointer || !bytes_of(attribute))
		return CUDA_ERROR_INVALID_VALUE;
	result = read_pointer_attribute(&value, attribute, pointer);
	if (result == CUDA_SUCCESS)
		memcpy(data, &value, bytes_of(attribute)); /* the low bytes come first */
	return result;
}

/*
 * Gets several attributes. As in CUDA, an attribute that is not available reads as zero; the device
 * ordinal as "none".
 */
CUresult gcr_hip_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *wanted,
					void **data, CUdeviceptr pointer)
{
	const int no_device = CU_DEVICE_INVALID;

	if (!count || !wanted || !data || !pointer)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++)
		if (!data[i] || !bytes_of(wanted[i]))
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++) {
		if (gcr_hip_cuPointerGetAttribute(data[i], wanted[i], pointer) == CUDA_SUCCESS)
			continue;
		if (wanted[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			memcpy(data[i], &no_device, sizeof(no_device));
		else
			memset(data[i], 0, bytes_of(wanted[i]));
	}
	return CUDA_SUCCESS;
}

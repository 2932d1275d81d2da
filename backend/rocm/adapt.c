/* SPDX-License-Identifier: MIT */
/*
 * What CUDA's driver does and HIP does otherwise. README.md tells in which version of AMD's source
 * each difference was seen. No memory is allocated here, no lock taken: the functions of HIP are
 * looked up by whoever asks for an adapter, and every thread finds the same.
 */
#include "backend/rocm/adapt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"

/* ---- the functions of HIP that adapters call ---- */

#define USED(X)                            \
	X(hipDeviceDisablePeerAccess)      \
	X(hipDeviceEnablePeerAccess)       \
	X(hipDeviceGetAttribute)           \
	X(hipDeviceGetLimit)               \
	X(hipDeviceGetPCIBusId)            \
	X(hipDeviceGetUuid)                \
	X(hipDeviceSetLimit)               \
	X(hipGetDevice)                    \
	X(hipGetDeviceCount)               \
	X(hipGetErrorName)                 \
	X(hipGetErrorString)               \
	X(hipHostMalloc)                   \
	X(hipHostRegister)                 \
	X(hipMemAdvise)                    \
	X(hipMemCreate)                    \
	X(hipMemExportToShareableHandle)   \
	X(hipMemGetAddressRange)           \
	X(hipMemGetAllocationGranularity)  \
	X(hipMemImportFromShareableHandle) \
	X(hipMemMap)                       \
	X(hipMemPrefetchAsync)             \
	X(hipMemSetAccess)                 \
	X(hipMemUnmap)                     \
	X(hipMemcpyPeer)                   \
	X(hipMemcpyPeerAsync)              \
	X(hipPointerGetAttribute)          \
	X(hipRuntimeGetVersion)            \
	X(hipSetDevice)                    \
	X(hipStreamGetDevice)

enum slot {
#define SLOT(name) SLOT_##name,
	USED(SLOT)
#undef SLOT
		SLOTS,
};

static const char *const slot_names[SLOTS] = {
#define SLOT(name) #name,
	USED(SLOT)
#undef SLOT
};

static _Atomic(void *) slots[SLOTS];

/* NULL if the library does not have it: not that of which there is an adapter. */
#define HIP(name) \
	((__typeof__(name) *)atomic_load_explicit(&slots[SLOT_##name], memory_order_relaxed))

static void find_used(gcr_hip_look_up *look_up, void *argument)
{
	void *first = look_up(argument, slot_names[SLOT_hipGetDevice]);

	if (first && first == atomic_load_explicit(&slots[SLOT_hipGetDevice], memory_order_acquire))
		return;
	for (size_t i = 0; i < SLOTS; i++)
		if (i != SLOT_hipGetDevice)
			atomic_store_explicit(&slots[i], look_up(argument, slot_names[i]),
					      memory_order_relaxed);
	atomic_store_explicit(&slots[SLOT_hipGetDevice], first, memory_order_release);
}

/* ---- results and versions ---- */

/* HIP's own numbers, of its runtime, in those of CUDA's driver. All others are the same. */
static CUresult as_result(hipError_t error)
{
	switch ((int)error) {
	case hipErrorInvalidConfiguration:
	case hipErrorInvalidPitchValue:
	case hipErrorInvalidSymbol:
	case hipErrorInvalidDevicePointer:
	case hipErrorInvalidMemcpyDirection:
		return CUDA_ERROR_INVALID_VALUE;
	case hipErrorInsufficientDriver:
		return CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
	case hipErrorMissingConfiguration:
	case hipErrorPriorLaunchFailure:
		return CUDA_ERROR_LAUNCH_FAILED;
	case hipErrorInvalidDeviceFunction:
		return CUDA_ERROR_INVALID_HANDLE;
	case hipErrorRuntimeMemory:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case hipErrorRuntimeOther:
		return CUDA_ERROR_UNKNOWN;
	default:
		return (CUresult)error;
	}
}

int gcr_hip_version(void)
{
	__typeof__(hipRuntimeGetVersion) *get = HIP(hipRuntimeGetVersion);
	int version = 0;

	return get && get(&version) == hipSuccess ? version : 0;
}

/*
 * hipMemRelease frees nothing before these: HIP's patch levels of ROCm 6.3.2 (also those of 6.3.3
 * and 6.3.4, which are the same source) and of 6.4.2. README.md says where that is known from.
 */
#define FREES_SINCE_6_3 (GCR_HIP_VERSION(6, 3) + 42134)
#define FREES_SINCE_6_4 (GCR_HIP_VERSION(6, 4) + 43484)

const char *gcr_hip_unsuitable(int version)
{
	if (version < GCR_HIP_VERSION(6, 2))
		return "this version of HIP cannot hand memory to another process: ROCm 6.3.2, "
		       "6.4.2 or newer is needed";
	if (version < FREES_SINCE_6_3 ||
	    (version >= GCR_HIP_VERSION(6, 4) && version < FREES_SINCE_6_4))
		return "this version of HIP does not free the memory that it can hand to another "
		       "process: ROCm 6.3.2, 6.4.2 or newer is needed";
	if (version >= GCR_HIP_VERSION(7, 14) && version < GCR_HIP_VERSION(7, 15))
		return "ROCm 7.14 loses track of memory that is handed to another process: an "
		       "older or newer version is needed";
	return NULL;
}

/* Of a HIP older than 5.2, whose versions count otherwise, too. */
static bool is_since(int version)
{
	return gcr_hip_version() >= version;
}

static CUresult gcr_hip_cuDriverGetVersion(int *ret_version)
{
	int version = gcr_hip_version();

	if (!ret_version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!version)
		return CUDA_ERROR_NOT_INITIALIZED;
	*ret_version = version / 10000000 * 1000 + version / 100000 % 100 * 10;
	return CUDA_SUCCESS;
}

/* hipDrvGetErrorName came with 5.4. What HIP does not know has a name too, which says so. */
static CUresult gcr_hip_cuGetErrorName(CUresult error, const char **ret_name)
{
	if (!ret_name)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_name = HIP(hipGetErrorName)((hipError_t)error);
	return *ret_name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult gcr_hip_cuGetErrorString(CUresult error, const char **ret_words)
{
	if (!ret_words)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_words = HIP(hipGetErrorString)((hipError_t)error);
	return *ret_words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices ---- */

/* None is an error in HIP. */
static CUresult gcr_hip_cuDeviceGetCount(int *ret_count)
{
	int count = 0;
	hipError_t error;

	if (!ret_count)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDeviceCount)(&count);
	if (error != hipSuccess && error != hipErrorNoDevice)
		return as_result(error);
	*ret_count = error == hipSuccess ? count : 0;
	return CUDA_SUCCESS;
}

static bool is_hexadecimal(const char *text, size_t length)
{
	static const char digits[] = "0123456789abcdefABCDEF";

	for (size_t i = 0; i < length; i++)
		if (!text[i] || !strchr(digits, text[i]))
			return false;
	return true;
}

/*
 * The 16 digits of KFD's unique_id. GPUs that have none all get "XX": those are told apart by
 * where they are, which no other process sees otherwise.
 */
static CUresult gcr_hip_cuDeviceGetUuid_v2(CUuuid *ret_uuid, CUdevice device)
{
	char place[32] = "";
	hipUUID uuid;
	hipError_t error;

	if (!ret_uuid)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipDeviceGetUuid)(&uuid, device);
	if (error != hipSuccess)
		return as_result(error);
	if (!is_hexadecimal(uuid.bytes, sizeof(uuid.bytes)) && HIP(hipDeviceGetPCIBusId)) {
		error = HIP(hipDeviceGetPCIBusId)(place, sizeof(place), device);
		if (error != hipSuccess)
			return as_result(error);
		memset(uuid.bytes, 0, sizeof(uuid.bytes));
		memcpy(uuid.bytes, "XX", 2);
		memcpy(uuid.bytes + 2, place, strnlen(place, sizeof(uuid.bytes) - 2));
	}
	memcpy(ret_uuid->bytes, uuid.bytes, sizeof(ret_uuid->bytes));
	return CUDA_SUCCESS;
}

static CUresult gcr_hip_cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device)
{
	return gcr_hip_cuDeviceGetUuid_v2(ret_uuid, device);
}

static const struct {
	CUdevice_attribute cuda;
	hipDeviceAttribute_t hip;
} attributes[] = {
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, hipDeviceAttributeMaxThreadsPerBlock},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, hipDeviceAttributeMaxBlockDimX},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, hipDeviceAttributeMaxBlockDimY},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, hipDeviceAttributeMaxBlockDimZ},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, hipDeviceAttributeMaxGridDimX},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, hipDeviceAttributeMaxGridDimY},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, hipDeviceAttributeMaxGridDimZ},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
	 hipDeviceAttributeMaxSharedMemoryPerBlock},
	{CU_DEVICE_ATTRIBUTE_WARP_SIZE, hipDeviceAttributeWarpSize},
	{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, hipDeviceAttributeClockRate},
	{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, hipDeviceAttributeMultiprocessorCount},
	{CU_DEVICE_ATTRIBUTE_INTEGRATED, hipDeviceAttributeIntegrated},
	{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, hipDeviceAttributeCanMapHostMemory},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, hipDeviceAttributeComputeMode},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, hipDeviceAttributeConcurrentKernels},
	{CU_DEVICE_ATTRIBUTE_ECC_ENABLED, hipDeviceAttributeEccEnabled},
	{CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, hipDeviceAttributePciBusId},
	{CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, hipDeviceAttributePciDeviceId},
	{CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, hipDeviceAttributePciDomainID},
	{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, hipDeviceAttributeMemoryClockRate},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, hipDeviceAttributeMemoryBusWidth},
	{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, hipDeviceAttributeL2CacheSize},
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
	 hipDeviceAttributeMaxThreadsPerMultiProcessor},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, hipDeviceAttributeComputeCapabilityMajor},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, hipDeviceAttributeComputeCapabilityMinor},
	{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, hipDeviceAttributeManagedMemory},
	{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, hipDeviceAttributePageableMemoryAccess},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, hipDeviceAttributeConcurrentManagedAccess},
	{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, hipDeviceAttributeCooperativeLaunch},
	{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
	 hipDeviceAttributeVirtualMemoryManagementSupported},
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, hipDeviceAttributeMemoryPoolsSupported},
};

/* The numbers are others. What HIP has no attribute for is invalid, or as told here. */
static CUresult gcr_hip_cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute,
					     CUdevice device)
{
	int value;
	hipError_t error;

	if (!ret_value)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
		*ret_value = 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
		*ret_value = 0;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
		if (gcr_hip_unsuitable(gcr_hip_version())) {
			*ret_value = 0;
			return CUDA_SUCCESS;
		}
		attribute = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
		break;
	default:
		break;
	}
	for (size_t i = 0; i < GCR_ARRAY_SIZE(attributes); i++) {
		if (attributes[i].cuda != attribute)
			continue;
		error = HIP(hipDeviceGetAttribute)(&value, attributes[i].hip, device);
		if (error == hipSuccess)
			*ret_value = value;
		return as_result(error);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* ---- contexts: the device of the thread ---- */

static CUresult check_device(CUdevice device)
{
	int count = 0;
	CUresult result = gcr_hip_cuDeviceGetCount(&count);

	if (result != CUDA_SUCCESS)
		return result;
	return device < 0 || device >= count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUresult gcr_hip_cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
	CUresult result = ret_context ? check_device(device) : CUDA_ERROR_INVALID_VALUE;

	if (result == CUDA_SUCCESS)
		*ret_context = gcr_hip_context(device);
	return result;
}

static CUresult gcr_hip_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return check_device(device);
}

/* There always is one in HIP, device 0 if nothing has been said. */
static CUresult gcr_hip_cuCtxGetCurrent(CUcontext *ret_context)
{
	int device;
	hipError_t error;

	if (!ret_context)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDevice)(&device);
	if (error == hipSuccess)
		*ret_context = gcr_hip_context(device);
	return as_result(error);
}

/* No context: there is nothing to be done. */
static CUresult gcr_hip_cuCtxSetCurrent(CUcontext context)
{
	return context ? as_result(HIP(hipSetDevice)(gcr_hip_device(context))) : CUDA_SUCCESS;
}

/* HIP has a stack in its deprecated functions; this one is for ours only, which nest a little. */
static __thread struct {
	unsigned int count;
	int devices[8]; /* what was current before each push */
} pushed;

static CUresult gcr_hip_cuCtxPushCurrent_v2(CUcontext context)
{
	int device;
	hipError_t error;

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (pushed.count == GCR_ARRAY_SIZE(pushed.devices))
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDevice)(&device);
	if (error == hipSuccess)
		error = HIP(hipSetDevice)(gcr_hip_device(context));
	if (error == hipSuccess)
		pushed.devices[pushed.count++] = device;
	return as_result(error);
}

static CUresult gcr_hip_cuCtxPopCurrent_v2(CUcontext *ret_context)
{
	int device;
	hipError_t error;

	if (!pushed.count)
		return CUDA_ERROR_INVALID_CONTEXT;
	error = HIP(hipGetDevice)(&device);
	if (error == hipSuccess)
		error = HIP(hipSetDevice)(pushed.devices[pushed.count - 1]);
	if (error != hipSuccess)
		return as_result(error);
	pushed.count--;
	if (ret_context)
		*ret_context = gcr_hip_context(device);
	return CUDA_SUCCESS;
}

static CUresult gcr_hip_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	if (!peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	return as_result(HIP(hipDeviceEnablePeerAccess)(gcr_hip_device(peer), flags));
}

static CUresult gcr_hip_cuCtxDisablePeerAccess(CUcontext peer)
{
	if (!peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	return as_result(HIP(hipDeviceDisablePeerAccess)(gcr_hip_device(peer)));
}

/* Those that HIP has have CUDA's numbers; others are an invalid value to it. */
static bool is_limit(CUlimit limit)
{
	return limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ||
	       limit == CU_LIMIT_MALLOC_HEAP_SIZE;
}

static CUresult gcr_hip_cuCtxGetLimit(size_t *ret_value, CUlimit limit)
{
	if (!is_limit(limit))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	return as_result(HIP(hipDeviceGetLimit)(ret_value, (enum hipLimit_t)limit));
}

static CUresult gcr_hip_cuCtxSetLimit(CUlimit limit, size_t value)
{
	if (!is_limit(limit))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	return as_result(HIP(hipDeviceSetLimit)((enum hipLimit_t)limit, value));
}

/* HIP follows the handle of the legacy default stream as if it were a stream's address. */
static CUresult gcr_hip_cuStreamGetCtx(CUstream stream, CUcontext *ret_context)
{
	hipDevice_t device;
	hipError_t error;

	if (!ret_context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return gcr_hip_cuCtxGetCurrent(ret_context);
	error = HIP(hipStreamGetDevice)((hipStream_t)stream, &device);
	if (error == hipSuccess)
		*ret_context = gcr_hip_context(device);
	return as_result(error);
}

/* ---- host memory ---- */

/* What is only portable, to HIP, is not coherent: the GPU's writes are not seen until later. */
static CUresult gcr_hip_cuMemHostAlloc(void **ret_pointer, size_t size, unsigned int flags)
{
	return as_result(HIP(hipHostMalloc)(ret_pointer, size, flags | hipHostMallocCoherent));
}

/* CUDA's READ_ONLY has the number of hipExtHostRegisterCoarseGrained. */
static CUresult gcr_hip_cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
	return as_result(HIP(hipHostRegister)(pointer, size,
					      flags & ~(unsigned int)CU_MEMHOSTREGISTER_READ_ONLY));
}

/* ---- virtual memory ---- */

/*
 * HIP says 4 KiB since 6.1, and then makes pages of 4 KiB of what is not larger: blocks of 2 MiB
 * are mapped by one entry of the GPU's page table, and are what all our sizes are multiples of.
 */
#define GRANULARITY_BYTES ((size_t)2 << 20)

static CUresult gcr_hip_cuMemGetAllocationGranularity(size_t *ret_bytes,
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
		return as_result(error);
	if (bytes < GRANULARITY_BYTES)
		bytes = GRANULARITY_BYTES;
	*ret_bytes = bytes;
	return CUDA_SUCCESS;
}

/* Newer versions of HIP take the memory of the current device, whatever the properties say. */
static CUresult gcr_hip_cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t size,
				    const CUmemAllocationProp *properties, unsigned long long flags)
{
	bool elsewhere;
	int current;
	hipError_t error, back = hipSuccess;

	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDevice)(&current);
	if (error != hipSuccess)
		return as_result(error);
	elsewhere = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    properties->location.id != current;
	if (elsewhere)
		error = HIP(hipSetDevice)(properties->location.id);
	if (error != hipSuccess)
		return as_result(error);
	error = HIP(hipMemCreate)((hipMemGenericAllocationHandle_t *)ret_handle, size,
				  (const hipMemAllocationProp *)properties, flags);
	if (elsewhere)
		back = HIP(hipSetDevice)(current);
	(void)back; /* it was current before */
	return as_result(error);
}

static CUresult gcr_hip_cuMemExportToShareableHandle(void *ret_handle,
						     CUmemGenericAllocationHandle handle,
						     CUmemAllocationHandleType type,
						     unsigned long long flags)
{
	if (gcr_hip_unsuitable(gcr_hip_version()))
		return CUDA_ERROR_NOT_SUPPORTED;
	return as_result(HIP(hipMemExportToShareableHandle)(
		ret_handle, (hipMemGenericAllocationHandle_t)(uintptr_t)handle,
		(hipMemAllocationHandleType)type, flags));
}

/*
 * CUDA takes the descriptor itself for an address; so does HIP since 7.1, except descriptor 0,
 * which it takes for a missing argument. Before, it takes the address of the descriptor. The
 * memory is said to be the current device's, and is mapped by it: the caller sees to that.
 */
static CUresult gcr_hip_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle,
						       void *os_handle,
						       CUmemAllocationHandleType type)
{
	hipMemGenericAllocationHandle_t *handle = (hipMemGenericAllocationHandle_t *)ret_handle;
	int fd = (int)(intptr_t)os_handle, copy;
	hipError_t error;

	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    gcr_hip_unsuitable(gcr_hip_version()))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!is_since(GCR_HIP_VERSION(7, 1)))
		return as_result(HIP(hipMemImportFromShareableHandle)(
			handle, &fd, hipMemHandleTypePosixFileDescriptor));
	if (fd)
		return as_result(HIP(hipMemImportFromShareableHandle)(
			handle, os_handle, hipMemHandleTypePosixFileDescriptor));
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipMemImportFromShareableHandle)(handle, (void *)(intptr_t)copy,
						     hipMemHandleTypePosixFileDescriptor);
	close(copy);
	return as_result(error);
}

/* HIP writes both whether they are wanted or not. */
static CUresult gcr_hip_cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_bytes,
						CUdeviceptr pointer)
{
	hipDeviceptr_t base = NULL;
	size_t bytes = 0;
	hipError_t error = HIP(hipMemGetAddressRange)(&base, &bytes, (hipDeviceptr_t)pointer);

	if (error != hipSuccess)
		return as_result(error);
	if (ret_base)
		*ret_base = (CUdeviceptr)base;
	if (ret_bytes)
		*ret_bytes = bytes;
	return CUDA_SUCCESS;
}

/* The bytes of the mapping that begins here and ends before @end; 0 if HIP says otherwise. */
static size_t mapping_at(CUdeviceptr start, CUdeviceptr end, bool *ret_is_known)
{
	CUdeviceptr base;
	size_t bytes;

	*ret_is_known = gcr_hip_cuMemGetAddressRange_v2(&base, &bytes, start) == CUDA_SUCCESS;
	return *ret_is_known && base == start && bytes <= end - start ? bytes : 0;
}

/*
 * HIP 6 answers success to a mapping and an unmapping that ROCr has refused: look what there is.
 * Where that cannot be said the answer holds. A mapping that is there and is taken for missing
 * would never be unmapped, and be in the way of every later one.
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

static CUresult gcr_hip_cuMemMap(CUdeviceptr start, size_t size, size_t offset,
				 CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	hipError_t error = HIP(hipMemMap)((void *)start, size, offset,
					  (hipMemGenericAllocationHandle_t)(uintptr_t)handle,
					  flags);

	if (error == hipSuccess && !is_since(GCR_HIP_VERSION(7, 0)) &&
	    is_otherwise(start, size, true))
		return CUDA_ERROR_UNKNOWN;
	return as_result(error);
}

/* ROCr maps the file of the GPU, with the memory, where the GPU sees the memory: since 7.2. */
static bool maps_for_host(void)
{
	return is_since(GCR_HIP_VERSION(7, 1));
}

void gcr_hip_keep_from_children(CUdeviceptr start, size_t bytes)
{
	if (maps_for_host())
		madvise((void *)start, bytes, MADV_DONTFORK);
}

static CUresult gcr_hip_cuMemSetAccess(CUdeviceptr start, size_t size,
				       const CUmemAccessDesc *access, size_t count)
{
	hipError_t error =
		HIP(hipMemSetAccess)((void *)start, size, (const hipMemAccessDesc *)access, count);
	bool only_devices = true;

	for (size_t i = 0; error == hipSuccess && i < count; i++)
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			only_devices = false;
	if (error == hipSuccess && only_devices)
		gcr_hip_keep_from_children(start, size);
	return as_result(error);
}

/*
 * ROCr 7.2 leaves its mapping of the GPU's file where it was, without access, and that keeps the
 * VRAM in use for as long as the addresses are reserved. What is put in its place is what is there
 * when nothing has been mapped yet. If that fails the VRAM stays, as it does without us.
 */
static CUresult unmap_one(CUdeviceptr start, size_t bytes)
{
	hipError_t error = HIP(hipMemUnmap)((void *)start, bytes);

	if (error != hipSuccess)
		return as_result(error);
	if (!is_since(GCR_HIP_VERSION(7, 0)) && is_otherwise(start, bytes, false))
		return CUDA_ERROR_UNKNOWN;
	if (maps_for_host())
		mmap((void *)start, bytes, PROT_NONE,
		     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return CUDA_SUCCESS;
}

/*
 * Up to 6.x HIP unmaps one mapping at a time, and follows a null pointer where nothing is mapped:
 * what it does not know is not asked for, and a range of several goes one by one.
 */
static CUresult gcr_hip_cuMemUnmap(CUdeviceptr start, size_t size)
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
		return as_result(HIP(hipMemUnmap)((void *)start, size));
	for (at = start; at < end && result == CUDA_SUCCESS; at += bytes) {
		bytes = mapping_at(at, end, &is_known);
		if (!bytes)
			return CUDA_ERROR_UNKNOWN;
		result = unmap_one(at, bytes);
	}
	return result;
}

/* ---- copies ---- */

static CUresult gcr_hip_cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				     CUcontext from_context, size_t size)
{
	return as_result(HIP(hipMemcpyPeer)((void *)to, gcr_hip_device(to_context), (void *)from,
					    gcr_hip_device(from_context), size));
}

static CUresult gcr_hip_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
					  CUcontext from_context, size_t size, CUstream stream)
{
	return as_result(HIP(hipMemcpyPeerAsync)((void *)to, gcr_hip_device(to_context),
						 (void *)from, gcr_hip_device(from_context), size,
						 (hipStream_t)stream));
}

/* ---- managed memory: a place is a device or the host, of whatever node ---- */

static int place_of(CUmemLocation location)
{
	return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : hipCpuDeviceId;
}

static CUresult gcr_hip_cuMemAdvise_v2(CUdeviceptr pointer, size_t size, CUmem_advise advice,
				       CUmemLocation location)
{
	return as_result(HIP(hipMemAdvise)((const void *)pointer, size, (hipMemoryAdvise)advice,
					   place_of(location)));
}

static CUresult gcr_hip_cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t size,
					      CUmemLocation location, unsigned int flags,
					      CUstream stream)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return as_result(HIP(hipMemPrefetchAsync)((const void *)pointer, size, place_of(location),
						  (hipStream_t)stream));
}

/* ---- attributes of pointers ---- */

static unsigned int memory_type_of(unsigned int type)
{
	if (!is_since(GCR_HIP_VERSION(6, 0))) {
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

/* How many bytes CUDA writes; of some HIP writes fewer. 0: an attribute that HIP does not know. */
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

/* The context and the size: HIP has no context, and cuts the size to 32 bits. */
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
		result = as_result(HIP(hipPointerGetAttribute)(
			&device, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (hipDeviceptr_t)pointer));
		*value = result == CUDA_SUCCESS ? (uintptr_t)gcr_hip_context(device) : 0;
		return result;
	}
	result = as_result(HIP(hipPointerGetAttribute)(value, (hipPointer_attribute)attribute,
						       (hipDeviceptr_t)pointer));
	if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*value = memory_type_of((unsigned int)*value);
	return result;
}

static CUresult gcr_hip_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
					      CUdeviceptr pointer)
{
	uint64_t value;
	CUresult result;

	if (!data || !pointer || !bytes_of(attribute))
		return CUDA_ERROR_INVALID_VALUE;
	result = read_pointer_attribute(&value, attribute, pointer);
	if (result == CUDA_SUCCESS)
		memcpy(data, &value, bytes_of(attribute)); /* the low ones come first */
	return result;
}

/* What cannot be had reads as zero, as in CUDA; the device as none. */
static CUresult gcr_hip_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *wanted,
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

/* ---- finding them ---- */

struct function {
	const char *cuda;
	const char *hip;
	void *adapter; /* NULL: alike */
};

static const struct function functions[] = {
#define ALIKE(cuda, hip)   {#cuda, #hip, NULL},
#define ADAPTED(cuda, hip) {#cuda, #hip, (void *)gcr_hip_##cuda},
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED
};

static const struct function *find(const char *cuda_name)
{
	size_t first = 0, end = GCR_ARRAY_SIZE(functions);

	while (first < end) {
		size_t middle = first + (end - first) / 2;
		int order = strcmp(cuda_name, functions[middle].cuda);

		if (order == 0)
			return &functions[middle];
		if (order < 0)
			end = middle;
		else
			first = middle + 1;
	}
	return NULL;
}

void *gcr_hip_find(const char *cuda_name, gcr_hip_look_up *look_up, void *argument)
{
	const struct function *function = find(cuda_name);
	void *found = function ? look_up(argument, function->hip) : NULL;

	if (!found || !function->adapter)
		return found;
	find_used(look_up, argument);
	return function->adapter;
}

const char *gcr_hip_name(const char *cuda_name)
{
	const struct function *function = find(cuda_name);

	return function ? function->hip : NULL;
}

/* ---- what CUDA has nothing like ---- */

int gcr_hip_architecture(CUdevice device, gcr_hip_look_up *look_up, void *argument, char *ret_name,
			 size_t room)
{
	/* Larger than either is, should it grow. */
	union {
		struct gcr_hip_properties now;
		struct gcr_hip_properties_5 old;
		char room[8192];
	} properties = {0};
	gcr_hip_get_properties *get =
		(gcr_hip_get_properties *)look_up(argument, "hipGetDevicePropertiesR0600");
	gcr_hip_get_properties_5 *get_old =
		(gcr_hip_get_properties_5 *)look_up(argument, "hipGetDeviceProperties");
	const char *name = get ? properties.now.gcnArchName : properties.old.gcnArchName;
	hipError_t error = hipErrorNotSupported;
	size_t length;

	if (get)
		error = get(&properties.now, device);
	else if (get_old)
		error = get_old(&properties.old, device);
	length = strnlen(name, sizeof(properties.now.gcnArchName));
	if (error != hipSuccess || !length)
		return -ENODEV;
	if (length >= sizeof(properties.now.gcnArchName) || length >= room)
		return -ENAMETOOLONG;
	memcpy(ret_name, name, length + 1);
	return 0;
}

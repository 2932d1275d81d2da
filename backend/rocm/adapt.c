/* SPDX-License-Identifier: MIT */
/*
 * Adapters for functions of CUDA's driver that differ in HIP, except those for memory
 * (adapt_memory.c). README.md names the version of AMD's source in which each difference was seen.
 * This code allocates no memory and takes no lock: the caller that requests an adapter looks up the
 * functions of HIP, and every thread finds the same ones.
 */
#include "backend/rocm/adapt_private.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "lib/cleanup.h"

/* ---- the functions of HIP that adapters call ---- */

static const char *const slot_names[GCR_HIP_SLOTS] = {
#define SLOT(name) #name,
	GCR_HIP_USED(SLOT)
#undef SLOT
};

_Atomic(void *) gcr_hip_slots[GCR_HIP_SLOTS];

static void find_used(gcr_hip_look_up *look_up, void *argument)
{
	void *first = look_up(argument, slot_names[GCR_HIP_SLOT_hipGetDevice]);

	if (first && first == atomic_load_explicit(&gcr_hip_slots[GCR_HIP_SLOT_hipGetDevice],
						   memory_order_acquire))
		return;
	for (size_t i = 0; i < GCR_HIP_SLOTS; i++)
		if (i != GCR_HIP_SLOT_hipGetDevice)
			atomic_store_explicit(&gcr_hip_slots[i], look_up(argument, slot_names[i]),
					      memory_order_relaxed);
	atomic_store_explicit(&gcr_hip_slots[GCR_HIP_SLOT_hipGetDevice], first,
			      memory_order_release);
}

/* ---- results and versions ---- */

/*
 * Converts results that HIP's runtime numbers on its own to those of CUDA's driver. All others are
 * equal.
 */
CUresult gcr_hip_result(hipError_t error)
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
 * hipMemRelease frees nothing before these versions: HIP's patch levels of ROCm 6.3.2 (also of
 * 6.3.3 and 6.3.4, which have the same source) and of 6.4.2. README.md gives the sources.
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

/*
 * Is the HIP in use at least of @version? Also correct for a HIP older than 5.2, whose versions
 * have another format.
 */
bool gcr_hip_is_since(int version)
{
	return gcr_hip_version() >= version;
}

CUresult gcr_hip_cuDriverGetVersion(int *ret_version)
{
	int version = gcr_hip_version();

	if (!ret_version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!version)
		return CUDA_ERROR_NOT_INITIALIZED;
	*ret_version = version / 10000000 * 1000 + version / 100000 % 100 * 10;
	return CUDA_SUCCESS;
}

/*
 * hipDrvGetErrorName only exists since 5.4. HIP also returns a name for unknown errors, which says
 * so.
 */
CUresult gcr_hip_cuGetErrorName(CUresult error, const char **ret_name)
{
	if (!ret_name)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_name = HIP(hipGetErrorName)((hipError_t)error);
	return *ret_name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gcr_hip_cuGetErrorString(CUresult error, const char **ret_words)
{
	if (!ret_words)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_words = HIP(hipGetErrorString)((hipError_t)error);
	return *ret_words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices ---- */

/* In HIP it is an error if there is no device; here the count is 0 then. */
CUresult gcr_hip_cuDeviceGetCount(int *ret_count)
{
	int count = 0;
	hipError_t error;

	if (!ret_count)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDeviceCount)(&count);
	if (error != hipSuccess && error != hipErrorNoDevice)
		return gcr_hip_result(error);
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
 * The 16 digits of KFD's unique_id. GPUs without a unique id all get "XX" from HIP: these are
 * distinguished by their place on the bus, which is the same for all processes.
 */
CUresult gcr_hip_cuDeviceGetUuid_v2(CUuuid *ret_uuid, CUdevice device)
{
	char place[32] = "";
	hipUUID uuid;
	hipError_t error;

	if (!ret_uuid)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipDeviceGetUuid)(&uuid, device);
	if (error != hipSuccess)
		return gcr_hip_result(error);
	if (!is_hexadecimal(uuid.bytes, sizeof(uuid.bytes)) && HIP(hipDeviceGetPCIBusId)) {
		error = HIP(hipDeviceGetPCIBusId)(place, sizeof(place), device);
		if (error != hipSuccess)
			return gcr_hip_result(error);
		memset(uuid.bytes, 0, sizeof(uuid.bytes));
		memcpy(uuid.bytes, "XX", 2);
		memcpy(uuid.bytes + 2, place, strnlen(place, sizeof(uuid.bytes) - 2));
	}
	memcpy(ret_uuid->bytes, uuid.bytes, sizeof(ret_uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult gcr_hip_cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device)
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

/*
 * HIP numbers attributes differently. Attributes that HIP lacks are invalid, or have the values
 * given here.
 */
CUresult gcr_hip_cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute, CUdevice device)
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
		return gcr_hip_result(error);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* ---- contexts: the thread's device ---- */

static CUresult check_device(CUdevice device)
{
	int count = 0;
	CUresult result = gcr_hip_cuDeviceGetCount(&count);

	if (result != CUDA_SUCCESS)
		return result;
	return device < 0 || device >= count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult gcr_hip_cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
	CUresult result = ret_context ? check_device(device) : CUDA_ERROR_INVALID_VALUE;

	if (result == CUDA_SUCCESS)
		*ret_context = gcr_hip_context(device);
	return result;
}

CUresult gcr_hip_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return check_device(device);
}

/*
 * Gets the thread's current device as a context. In HIP every thread has one, initially device 0.
 */
CUresult gcr_hip_cuCtxGetCurrent(CUcontext *ret_context)
{
	int device;
	hipError_t error;

	if (!ret_context)
		return CUDA_ERROR_INVALID_VALUE;
	error = HIP(hipGetDevice)(&device);
	if (error == hipSuccess)
		*ret_context = gcr_hip_context(device);
	return gcr_hip_result(error);
}

/* Makes the context's device current. There is nothing to do without a context. */
CUresult gcr_hip_cuCtxSetCurrent(CUcontext context)
{
	return context ? gcr_hip_result(HIP(hipSetDevice)(gcr_hip_device(context))) : CUDA_SUCCESS;
}

/*
 * HIP has a stack only in deprecated functions; this one serves gpucrfs's own calls, which nest
 * only a little.
 */
static __thread struct {
	unsigned int count;
	int devices[8]; /* the current device before each push */
} pushed;

CUresult gcr_hip_cuCtxPushCurrent_v2(CUcontext context)
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
	return gcr_hip_result(error);
}

CUresult gcr_hip_cuCtxPopCurrent_v2(CUcontext *ret_context)
{
	int device;
	hipError_t error;

	if (!pushed.count)
		return CUDA_ERROR_INVALID_CONTEXT;
	error = HIP(hipGetDevice)(&device);
	if (error == hipSuccess)
		error = HIP(hipSetDevice)(pushed.devices[pushed.count - 1]);
	if (error != hipSuccess)
		return gcr_hip_result(error);
	pushed.count--;
	if (ret_context)
		*ret_context = gcr_hip_context(device);
	return CUDA_SUCCESS;
}

CUresult gcr_hip_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	if (!peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	return gcr_hip_result(HIP(hipDeviceEnablePeerAccess)(gcr_hip_device(peer), flags));
}

CUresult gcr_hip_cuCtxDisablePeerAccess(CUcontext peer)
{
	if (!peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	return gcr_hip_result(HIP(hipDeviceDisablePeerAccess)(gcr_hip_device(peer)));
}

/* Does HIP have this limit, with CUDA's number? HIP reports other limits as an invalid value. */
static bool is_limit(CUlimit limit)
{
	return limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ||
	       limit == CU_LIMIT_MALLOC_HEAP_SIZE;
}

CUresult gcr_hip_cuCtxGetLimit(size_t *ret_value, CUlimit limit)
{
	if (!is_limit(limit))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	return gcr_hip_result(HIP(hipDeviceGetLimit)(ret_value, (enum hipLimit_t)limit));
}

CUresult gcr_hip_cuCtxSetLimit(CUlimit limit, size_t value)
{
	if (!is_limit(limit))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	return gcr_hip_result(HIP(hipDeviceSetLimit)((enum hipLimit_t)limit, value));
}

/* HIP would dereference the handle of the legacy default stream as a stream's address. */
CUresult gcr_hip_cuStreamGetCtx(CUstream stream, CUcontext *ret_context)
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
	return gcr_hip_result(error);
}

/* ---- lookup of adapters ---- */

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

/* ---- functions without a counterpart in CUDA ---- */

int gcr_hip_architecture(CUdevice device, gcr_hip_look_up *look_up, void *argument, char *ret_name,
			 size_t room)
{
	/* Larger than both structures, in case they grow. */
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

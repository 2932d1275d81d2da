/* SPDX-License-Identifier: MIT */
/*
 * What stands for CUDA's functions on HIP: which are found in which version, and what the adapters
 * make of a library that says it is of any version and answers what it is told to.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cuda/driver.h"
#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"
#include "test/unit/test.h"

#define HIP_VERSION_OF(major, minor) (10000000 * (major) + 100000 * (minor) + 44000)
#define MAPPINGS_MAX		     4
#define MIB			     ((size_t)1 << 20)

/* The library: what it is told to answer, and what it has been asked. */
static struct {
	int version;
	const char *absent[4]; /* functions that this version does not have */
	hipError_t error;      /* what every function answers, if it is one */
	int devices, current;
	unsigned int calls;
	int device, set_devices[8]; /* what it was last asked about; what was made current */
	unsigned int set_count, flags;
	unsigned long long number; /* an attribute, a limit, a type, a size */
	void *pointer;
	int imported_fd, imported_as_value;
	bool is_quiet;		 /* refuses to map and unmap, and says that it was done */
	hipError_t range_error;	 /* of hipMemGetAddressRange */
	unsigned char answer[8]; /* what is written for a pointer's attribute */
	size_t answer_bytes;
	struct mapping {
		char *start;
		size_t bytes;
	} mappings[MAPPINGS_MAX];
	char *unmapped[MAPPINGS_MAX];
	size_t unmapped_bytes[MAPPINGS_MAX], unmapped_count;
	char uuid[16];
	const char *place, *architecture;
} hip;

static void reset(int version)
{
	memset(&hip, 0, sizeof(hip));
	hip.version = version;
	hip.devices = 3;
}

#define ANSWER()                          \
	do {                              \
		hip.calls++;              \
		if (hip.error)            \
			return hip.error; \
	} while (0)

static hipError_t fake_hipRuntimeGetVersion(int *version)
{
	*version = hip.version;
	return hipSuccess;
}

static hipError_t fake_hipGetDeviceCount(int *count)
{
	ANSWER();
	*count = hip.devices;
	return hip.devices ? hipSuccess : hipErrorNoDevice;
}

static hipError_t fake_hipGetDevice(int *device)
{
	ANSWER();
	*device = hip.current;
	return hipSuccess;
}

static hipError_t fake_hipSetDevice(int device)
{
	ANSWER();
	if (device < 0 || device >= hip.devices)
		return hipErrorInvalidDevice;
	hip.set_devices[hip.set_count++ % 8] = device;
	hip.current = device;
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device)
{
	ANSWER();
	hip.number = attribute;
	hip.device = device;
	*value = 1000 + (int)attribute;
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device)
{
	ANSWER();
	memcpy(uuid->bytes, hip.uuid, sizeof(uuid->bytes));
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetPCIBusId(char *place, int room, int device)
{
	ANSWER();
	snprintf(place, (size_t)room, "%s", hip.place);
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetLimit(size_t *value, enum hipLimit_t limit)
{
	ANSWER();
	hip.number = limit;
	*value = 77;
	return hipSuccess;
}

static hipError_t fake_hipDeviceSetLimit(enum hipLimit_t limit, size_t value)
{
	ANSWER();
	hip.number = 100 * limit + value;
	return hipSuccess;
}

static hipError_t fake_hipDeviceEnablePeerAccess(int device, unsigned int flags)
{
	ANSWER();
	hip.device = device;
	hip.flags = flags;
	return hipSuccess;
}

static hipError_t fake_hipDeviceDisablePeerAccess(int device)
{
	ANSWER();
	hip.device = device;
	return hipSuccess;
}

static hipError_t fake_hipStreamGetDevice(hipStream_t stream, hipDevice_t *device)
{
	ANSWER();
	/* Where HIP would follow it. */
	CHECK((uintptr_t)stream > 2);
	hip.pointer = stream;
	*device = 2;
	return hipSuccess;
}

static const char *fake_hipGetErrorName(hipError_t error)
{
	return error == hipErrorNotReady ? "hipErrorNotReady" : "hipErrorUnknown";
}

static const char *fake_hipGetErrorString(hipError_t error)
{
	return error == hipErrorNotReady ? "device not ready" : "unknown error";
}

static hipError_t fake_hipHostMalloc(void **pointer, size_t size, unsigned int flags)
{
	ANSWER();
	hip.flags = flags;
	hip.number = size;
	*pointer = &hip;
	return hipSuccess;
}

static hipError_t fake_hipHostRegister(void *pointer, size_t size, unsigned int flags)
{
	ANSWER();
	hip.flags = flags;
	hip.number = size;
	hip.pointer = pointer;
	return hipSuccess;
}

static hipError_t fake_hipMemGetAllocationGranularity(size_t *bytes,
						      const hipMemAllocationProp *properties,
						      hipMemAllocationGranularity_flags option)
{
	ANSWER();
	hip.device = properties->location.id;
	*bytes = hip.number;
	return hipSuccess;
}

static hipError_t fake_hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t size,
				    const hipMemAllocationProp *properties,
				    unsigned long long flags)
{
	ANSWER();
	CHECK(properties->type == hipMemAllocationTypePinned);
	CHECK(properties->requestedHandleType == hipMemHandleTypePosixFileDescriptor);
	CHECK(properties->location.type == hipMemLocationTypeDevice);
	hip.device = hip.current; /* whose memory it is */
	hip.number = size;
	*handle = (hipMemGenericAllocationHandle_t)(uintptr_t)0x5000;
	return hipSuccess;
}

static hipError_t fake_hipMemExportToShareableHandle(void *os_handle,
						     hipMemGenericAllocationHandle_t handle,
						     hipMemAllocationHandleType type,
						     unsigned long long flags)
{
	ANSWER();
	hip.pointer = handle;
	hip.number = type;
	*(int *)os_handle = 42;
	return hipSuccess;
}

static hipError_t fake_hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle,
						       void *os_handle,
						       hipMemAllocationHandleType type)
{
	ANSWER();
	if (!os_handle)
		return hipErrorInvalidValue;
	hip.imported_as_value = (uintptr_t)os_handle < 4096;
	hip.imported_fd = hip.imported_as_value ? (int)(intptr_t)os_handle : *(int *)os_handle;
	CHECK(fcntl(hip.imported_fd, F_GETFD) >= 0);
	*handle = (hipMemGenericAllocationHandle_t)(uintptr_t)0x6000;
	return hipSuccess;
}

static struct mapping *mapping_of(const char *at)
{
	for (size_t i = 0; i < MAPPINGS_MAX; i++)
		if (hip.mappings[i].bytes && at >= hip.mappings[i].start &&
		    at < hip.mappings[i].start + hip.mappings[i].bytes)
			return &hip.mappings[i];
	return NULL;
}

static hipError_t fake_hipMemGetAddressRange(hipDeviceptr_t *base, size_t *bytes,
					     hipDeviceptr_t pointer)
{
	struct mapping *mapping = mapping_of(pointer);

	ANSWER();
	if (hip.range_error)
		return hip.range_error;
	if (!mapping)
		return hipErrorNotFound;
	*base = mapping->start; /* both, wanted or not */
	*bytes = mapping->bytes;
	return hipSuccess;
}

static hipError_t fake_hipMemMap(void *start, size_t size, size_t offset,
				 hipMemGenericAllocationHandle_t handle, unsigned long long flags)
{
	ANSWER();
	CHECK(!offset && !flags && handle == (hipMemGenericAllocationHandle_t)(uintptr_t)0x5000);
	if (!hip.is_quiet)
		hip.mappings[3] = (struct mapping){start, size};
	return hipSuccess;
}

static hipError_t fake_hipMemSetAccess(void *start, size_t size, const hipMemAccessDesc *access,
				       size_t count)
{
	ANSWER();
	hip.pointer = start;
	hip.number = size;
	return hipSuccess;
}

/* One whole mapping, and there has to be one. */
static hipError_t fake_hipMemUnmap(void *start, size_t size)
{
	struct mapping *mapping = mapping_of(start);

	ANSWER();
	CHECK(mapping);
	if (mapping->start != start || mapping->bytes != size)
		return hipErrorInvalidValue;
	if (hip.is_quiet)
		return hipSuccess;
	hip.unmapped[hip.unmapped_count] = start;
	hip.unmapped_bytes[hip.unmapped_count++] = size;
	mapping->bytes = 0;
	return hipSuccess;
}

static hipError_t fake_hipMemcpyPeer(void *to, int to_device, const void *from, int from_device,
				     size_t size)
{
	ANSWER();
	hip.number = size;
	hip.device = 10 * to_device + from_device;
	return hipSuccess;
}

static hipError_t fake_hipMemcpyPeerAsync(void *to, int to_device, const void *from,
					  int from_device, size_t size, hipStream_t stream)
{
	ANSWER();
	hip.number = size;
	hip.device = 10 * to_device + from_device;
	hip.pointer = stream;
	return hipSuccess;
}

static hipError_t fake_hipMemAdvise(const void *pointer, size_t size, hipMemoryAdvise advice,
				    int device)
{
	ANSWER();
	hip.number = advice;
	hip.device = device;
	return hipSuccess;
}

static hipError_t fake_hipMemPrefetchAsync(const void *pointer, size_t size, int device,
					   hipStream_t stream)
{
	ANSWER();
	hip.number = size;
	hip.device = device;
	hip.pointer = stream;
	return hipSuccess;
}

static hipError_t fake_hipPointerGetAttribute(void *data, hipPointer_attribute attribute,
					      hipDeviceptr_t pointer)
{
	ANSWER();
	hip.number = attribute;
	memcpy(data, hip.answer, hip.answer_bytes);
	return hipSuccess;
}

static hipError_t fake_hipGetDevicePropertiesR0600(struct gcr_hip_properties *properties,
						   int device)
{
	ANSWER();
	memset(properties, 'x', sizeof(*properties));
	memset(properties->gcnArchName, 0, sizeof(properties->gcnArchName));
	strncpy(properties->gcnArchName, hip.architecture, sizeof(properties->gcnArchName) - 1);
	return hipSuccess;
}

static hipError_t fake_hipGetDeviceProperties(struct gcr_hip_properties_5 *properties, int device)
{
	ANSWER();
	memset(properties, 'x', sizeof(*properties));
	memset(properties->gcnArchName, 0, sizeof(properties->gcnArchName));
	strncpy(properties->gcnArchName, "gfx906:old", sizeof(properties->gcnArchName) - 1);
	return hipSuccess;
}

/* A second library. */
static hipError_t other_hipGetDevice(int *device)
{
	*device = 7;
	return hipSuccess;
}

static const struct {
	const char *name;
	void *function;
} fakes[] = {
#define FAKE(name)                         \
	{                                  \
#name, (void *)fake_##name \
	}
	FAKE(hipDeviceDisablePeerAccess),
	FAKE(hipDeviceEnablePeerAccess),
	FAKE(hipDeviceGetAttribute),
	FAKE(hipDeviceGetLimit),
	FAKE(hipDeviceGetPCIBusId),
	FAKE(hipDeviceGetUuid),
	FAKE(hipDeviceSetLimit),
	FAKE(hipGetDevice),
	FAKE(hipGetDeviceCount),
	FAKE(hipGetDeviceProperties),
	FAKE(hipGetDevicePropertiesR0600),
	FAKE(hipGetErrorName),
	FAKE(hipGetErrorString),
	FAKE(hipHostMalloc),
	FAKE(hipHostRegister),
	FAKE(hipMemAdvise),
	FAKE(hipMemCreate),
	FAKE(hipMemExportToShareableHandle),
	FAKE(hipMemGetAddressRange),
	FAKE(hipMemGetAllocationGranularity),
	FAKE(hipMemImportFromShareableHandle),
	FAKE(hipMemMap),
	FAKE(hipMemPrefetchAsync),
	FAKE(hipMemSetAccess),
	FAKE(hipMemUnmap),
	FAKE(hipMemcpyPeer),
	FAKE(hipMemcpyPeerAsync),
	FAKE(hipPointerGetAttribute),
	FAKE(hipRuntimeGetVersion),
	FAKE(hipSetDevice),
	FAKE(hipStreamGetDevice),
};

static void *look_up(void *argument, const char *name)
{
	bool is_other = argument != NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(hip.absent); i++)
		if (hip.absent[i] && !strcmp(hip.absent[i], name))
			return NULL;
	if (is_other && !strcmp(name, "hipGetDevice"))
		return (void *)other_hipGetDevice;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(fakes); i++)
		if (!strcmp(fakes[i].name, name))
			return fakes[i].function;
	return NULL;
}

/* Anything is there, under an address that tells its name. */
static void *look_up_any(void *argument, const char *name)
{
	*(const char **)argument = name;
	return (void *)(uintptr_t)0x1234;
}

#define FIND(name) ((__typeof__(name) *)gcr_hip_find(#name, look_up, NULL))

/* ---- the table ---- */

static const char *const declared[] = {
#define FUNCTION(since, result, name, arguments) #name,
#include "backend/rocm/hip_functions.def"
#undef FUNCTION
};

static bool is_declared(const char *name)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(declared); i++)
		if (!strcmp(declared[i], name))
			return true;
	return false;
}

static void test_table(void)
{
	const char *asked;

#define ALIKE(cuda, hip)                                                              \
	CHECK(!strcmp(gcr_hip_name(#cuda), #hip) && is_declared(#hip));               \
	CHECK(gcr_hip_find(#cuda, look_up_any, &asked) == (void *)(uintptr_t)0x1234); \
	CHECK(!strcmp(asked, #hip));
#define ADAPTED(cuda, hip) CHECK(!strcmp(gcr_hip_name(#cuda), #hip) && is_declared(#hip));
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED
	/* All that the worker needs, and nothing of what HIP has not. */
#define NEEDED(name) CHECK(gcr_hip_name(#name));
	GCR_DRIVER_CALLS(NEEDED)
#undef NEEDED
	asked = NULL;
#define MISSING(name) \
	CHECK(!gcr_hip_name(#name) && !gcr_hip_find(#name, look_up_any, &asked) && !asked);
	GCR_DRIVER_CHECKPOINT_CALLS(MISSING)
	MISSING(cuCtxRecordEvent)
	MISSING(cuMulticastCreate)
	MISSING(cuGreenCtxCreate)
#undef MISSING
}

/* What came with a later version, or goes, is as if there were no such function. */
static void test_versions(void)
{
	reset(HIP_VERSION_OF(5, 2));
	hip.absent[0] = "hipStreamGetDevice";
	hip.absent[1] = "hipDeviceSetLimit";
	CHECK(!FIND(cuStreamGetCtx) && !FIND(cuCtxSetLimit));
	CHECK(FIND(cuCtxGetLimit) && FIND(cuGetErrorName));
	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuStreamGetCtx) && FIND(cuCtxSetLimit));
	CHECK(!FIND(cuMemAddressReserve)); /* the library of this test has none */
	CHECK(gcr_hip_version() == HIP_VERSION_OF(6, 4));
}

/* As hipRuntimeGetVersion tells them. */
static void test_unsuitable(void)
{
	static const int cannot_hand_over[] = {50731921, 60140093};
	static const int do_not_free[] = {60241134, 60342131, 60342133, 60443482, 60443483};
	static const int suitable[] = {60342134, 60443484, 70051830, 70125424, 70226015, 71500000};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cannot_hand_over); i++)
		CHECK(strstr(gcr_hip_unsuitable(cannot_hand_over[i]), "cannot hand memory"));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(do_not_free); i++)
		CHECK(strstr(gcr_hip_unsuitable(do_not_free[i]), "does not free the memory"));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(suitable); i++)
		CHECK(!gcr_hip_unsuitable(suitable[i]));
	CHECK(strstr(gcr_hip_unsuitable(71460850), "loses track"));
}

/* Closed, and another one opened. */
static void test_other_library(void)
{
	CUcontext context;

	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && gcr_hip_device(context) == 0);
	CHECK(gcr_hip_find("cuCtxGetCurrent", look_up, &hip) == (void *)FIND(cuCtxGetCurrent));
	CHECK(gcr_hip_find("cuCtxGetCurrent", look_up, &hip));
	CHECK(((__typeof__(cuCtxGetCurrent) *)gcr_hip_find("cuCtxGetCurrent", look_up, &hip))(
		      &context) == CUDA_SUCCESS);
	CHECK(gcr_hip_device(context) == 7);
	CHECK(FIND(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && gcr_hip_device(context) == 0);
}

/* ---- adapters ---- */

static void test_errors(void)
{
	static const struct {
		hipError_t hip;
		CUresult cuda;
	} same[] = {
		{hipErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY},
		{hipErrorNoDevice, CUDA_ERROR_NO_DEVICE},
		{hipErrorNotReady, CUDA_ERROR_NOT_READY},
		{hipErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED},
		{hipErrorInvalidDevicePointer, CUDA_ERROR_INVALID_VALUE},
		{hipErrorInvalidConfiguration, CUDA_ERROR_INVALID_VALUE},
		{hipErrorInsufficientDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER},
		{hipErrorPriorLaunchFailure, CUDA_ERROR_LAUNCH_FAILED},
		{hipErrorInvalidDeviceFunction, CUDA_ERROR_INVALID_HANDLE},
		{hipErrorRuntimeMemory, CUDA_ERROR_OUT_OF_MEMORY},
		{hipErrorRuntimeOther, CUDA_ERROR_UNKNOWN},
		{(hipError_t)4711, (CUresult)4711},
	};
	const char *words = NULL;
	void *pointer = NULL;
	int number = 5;

	reset(HIP_VERSION_OF(6, 4));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(same); i++) {
		hip.error = same[i].hip;
		CHECK(FIND(cuMemHostAlloc)(&pointer, 1, 0) == same[i].cuda);
	}
	CHECK(!pointer);
	CHECK(FIND(cuGetErrorName)(CUDA_ERROR_NOT_READY, &words) == CUDA_SUCCESS);
	CHECK(!strcmp(words, "hipErrorNotReady"));
	CHECK(FIND(cuGetErrorString)(CUDA_ERROR_NOT_READY, &words) == CUDA_SUCCESS);
	CHECK(!strcmp(words, "device not ready"));
	CHECK(FIND(cuGetErrorName)(CUDA_ERROR_NOT_READY, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuGetErrorString)(CUDA_ERROR_NOT_READY, NULL) == CUDA_ERROR_INVALID_VALUE);

	reset(HIP_VERSION_OF(7, 14));
	CHECK(FIND(cuDriverGetVersion)(&number) == CUDA_SUCCESS && number == 7140);
	reset(0);
	CHECK(FIND(cuDriverGetVersion)(&number) == CUDA_ERROR_NOT_INITIALIZED && number == 7140);
}

static void test_devices(void)
{
	CUuuid uuid;
	int number = 5;

	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuDeviceGetCount)(&number) == CUDA_SUCCESS && number == 3);
	hip.devices = 0;
	CHECK(FIND(cuDeviceGetCount)(&number) == CUDA_SUCCESS && number == 0);
	hip.error = hipErrorInitializationError;
	CHECK(FIND(cuDeviceGetCount)(&number) == CUDA_ERROR_NOT_INITIALIZED && number == 0);

	reset(HIP_VERSION_OF(6, 4));
	memcpy(hip.uuid, "0123456789abcdef", 16);
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "0123456789abcdef", 16));
	memcpy(hip.uuid, "XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
	hip.place = "0000:c3:00.0";
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "XX0000:c3:00.0\0\0", 16));
	CHECK(FIND(cuDeviceGetUuid)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "XX0000:c3:00.0\0\0", 16));
	hip.place = "00000000:c3:00.0 and more";
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "XX00000000:c3:00", 16));
	hip.error = hipErrorInvalidDevice;
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_ERROR_INVALID_DEVICE);
}

static void test_attributes(void)
{
	int value = 5;

	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2) ==
	      CUDA_SUCCESS);
	CHECK(hip.number == hipDeviceAttributeMultiprocessorCount && hip.device == 2);
	CHECK(value == 1000 + hipDeviceAttributeMultiprocessorCount);
	CHECK(FIND(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 2) ==
		      CUDA_SUCCESS &&
	      value == 0);
	value = 5;
	CHECK(FIND(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 2) ==
		      CUDA_ERROR_INVALID_VALUE &&
	      value == 5);
	CHECK(FIND(cuDeviceGetAttribute)(
		      &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 2) ==
	      CUDA_SUCCESS);
	CHECK(hip.number == hipDeviceAttributeVirtualMemoryManagementSupported && value);
	hip.error = hipErrorInvalidDevice;
	value = 5;
	CHECK(FIND(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 2) ==
		      CUDA_ERROR_INVALID_DEVICE &&
	      value == 5);
	reset(HIP_VERSION_OF(6, 1));
	CHECK(FIND(cuDeviceGetAttribute)(
		      &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 2) ==
	      CUDA_SUCCESS);
	CHECK(value == 0);
}

static void test_contexts(void)
{
	CUcontext context = NULL, other;
	CUresult result = CUDA_SUCCESS;
	unsigned int depth;

	reset(HIP_VERSION_OF(6, 4));
	CHECK(gcr_hip_device(NULL) == -1 && gcr_hip_device(gcr_hip_context(0)) == 0);
	CHECK(FIND(cuDevicePrimaryCtxRetain)(&context, 2) == CUDA_SUCCESS);
	CHECK(context == gcr_hip_context(2) && context);
	CHECK(FIND(cuDevicePrimaryCtxRetain)(&context, 3) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(FIND(cuDevicePrimaryCtxRetain)(&context, -1) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(context == gcr_hip_context(2));
	CHECK(FIND(cuDevicePrimaryCtxRelease_v2)(2) == CUDA_SUCCESS);
	CHECK(FIND(cuDevicePrimaryCtxRelease_v2)(3) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(hip.current == 0 && !hip.set_count);

	CHECK(FIND(cuCtxSetCurrent)(context) == CUDA_SUCCESS && hip.current == 2);
	CHECK(FIND(cuCtxSetCurrent)(NULL) == CUDA_SUCCESS && hip.current == 2);
	CHECK(FIND(cuCtxGetCurrent)(&other) == CUDA_SUCCESS && other == context);
	CHECK(FIND(cuCtxSetCurrent)(gcr_hip_context(3)) == CUDA_ERROR_INVALID_DEVICE);

	CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_ERROR_INVALID_CONTEXT);
	CHECK(FIND(cuCtxPushCurrent_v2)(gcr_hip_context(1)) == CUDA_SUCCESS && hip.current == 1);
	CHECK(FIND(cuCtxPushCurrent_v2)(gcr_hip_context(0)) == CUDA_SUCCESS && hip.current == 0);
	CHECK(FIND(cuCtxPushCurrent_v2)(gcr_hip_context(9)) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(FIND(cuCtxPushCurrent_v2)(NULL) == CUDA_ERROR_INVALID_CONTEXT && hip.current == 0);
	CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_SUCCESS && other == gcr_hip_context(0));
	CHECK(hip.current == 1);
	CHECK(FIND(cuCtxPopCurrent_v2)(NULL) == CUDA_SUCCESS && hip.current == 2);
	for (depth = 0; result == CUDA_SUCCESS && depth < 100; depth++)
		result = FIND(cuCtxPushCurrent_v2)(gcr_hip_context(1));
	CHECK(result == CUDA_ERROR_INVALID_VALUE && depth > 4 && depth < 100);
	while (--depth)
		CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_SUCCESS);
	CHECK(hip.current == 2);
	CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_ERROR_INVALID_CONTEXT);

	CHECK(FIND(cuCtxEnablePeerAccess)(gcr_hip_context(1), 9) == CUDA_SUCCESS);
	CHECK(hip.device == 1 && hip.flags == 9);
	CHECK(FIND(cuCtxDisablePeerAccess)(gcr_hip_context(0)) == CUDA_SUCCESS && hip.device == 0);
	hip.calls = 0;
	CHECK(FIND(cuCtxEnablePeerAccess)(NULL, 0) == CUDA_ERROR_INVALID_CONTEXT);
	CHECK(FIND(cuCtxDisablePeerAccess)(NULL) == CUDA_ERROR_INVALID_CONTEXT && !hip.calls);
}

static void test_streams_and_limits(void)
{
	CUcontext context = NULL;
	size_t value = 0;

	reset(HIP_VERSION_OF(6, 4));
	hip.current = 1;
	CHECK(FIND(cuStreamGetCtx)(NULL, &context) == CUDA_SUCCESS &&
	      context == gcr_hip_context(1));
	CHECK(FIND(cuStreamGetCtx)(CU_STREAM_LEGACY, &context) == CUDA_SUCCESS);
	CHECK(FIND(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &context) == CUDA_SUCCESS);
	CHECK(context == gcr_hip_context(1) && !hip.pointer);
	CHECK(FIND(cuStreamGetCtx)((CUstream)&hip, &context) == CUDA_SUCCESS);
	CHECK(context == gcr_hip_context(2) && hip.pointer == &hip);

	CHECK(FIND(cuCtxGetLimit)(&value, CU_LIMIT_MALLOC_HEAP_SIZE) == CUDA_SUCCESS &&
	      value == 77);
	CHECK(hip.number == hipLimitMallocHeapSize);
	CHECK(FIND(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, 5) == CUDA_SUCCESS);
	CHECK(hip.number == 100 * hipLimitPrintfFifoSize + 5);
	hip.calls = 0;
	CHECK(FIND(cuCtxGetLimit)(&value, CU_LIMIT_MAX_L2_FETCH_GRANULARITY) ==
	      CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(FIND(cuCtxSetLimit)(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 5) ==
	      CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(!hip.calls);
}

static void test_host_memory(void)
{
	void *pointer;

	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuMemHostAlloc)(&pointer, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
	CHECK(hip.flags == (hipHostMallocPortable | hipHostMallocCoherent) && hip.number == 4096);
	CHECK(FIND(cuMemHostRegister_v2)(&hip, 8192,
					 CU_MEMHOSTREGISTER_PORTABLE |
						 CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
	CHECK(hip.flags == hipHostRegisterPortable && hip.number == 8192 && hip.pointer == &hip);
}

static CUmemAllocationProp properties_of(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
}

static void test_create(void)
{
	CUmemAllocationProp properties = properties_of(2);
	CUmemGenericAllocationHandle handle = 0;
	size_t bytes = 0;

	reset(HIP_VERSION_OF(7, 2));
	hip.number = 4096;
	CHECK(FIND(cuMemGetAllocationGranularity)(
		      &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
	CHECK(bytes == 2 * MIB && hip.device == 2);
	hip.number = 64 * MIB;
	CHECK(FIND(cuMemGetAllocationGranularity)(
		      &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
	      bytes == 64 * MIB);

	/* On the device that is meant, and then back. */
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, &properties, 0) == CUDA_SUCCESS);
	CHECK(handle == 0x5000 && hip.number == 4 * MIB && hip.device == 2 && hip.current == 0);
	hip.set_count = 0;
	properties = properties_of(0);
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, &properties, 0) == CUDA_SUCCESS);
	CHECK(hip.device == 0 && !hip.set_count);
	properties = properties_of(5);
	handle = 0;
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, &properties, 0) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(!handle && hip.current == 0);
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, NULL, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void test_sharing(void)
{
	CUmemGenericAllocationHandle handle = 0;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), exported = -1, saved;

	CHECK(fd > 2);
	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuMemExportToShareableHandle)(&exported, 0x5000,
						 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
						 0) == CUDA_SUCCESS);
	CHECK(exported == 42 && hip.pointer == (void *)(uintptr_t)0x5000);
	CHECK(hip.number == hipMemHandleTypePosixFileDescriptor);
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CHECK(handle == 0x6000 && hip.imported_fd == fd && !hip.imported_as_value);
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_FABRIC) ==
	      CUDA_ERROR_NOT_SUPPORTED);

	reset(HIP_VERSION_OF(7, 0));
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CHECK(hip.imported_fd == fd && !hip.imported_as_value);

	reset(HIP_VERSION_OF(7, 1));
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CHECK(hip.imported_fd == fd && hip.imported_as_value);
	/* Descriptor 0 would be none. */
	saved = fcntl(0, F_DUPFD_CLOEXEC, 3);
	CHECK(dup2(fd, 0) == 0);
	CHECK(FIND(cuMemImportFromShareableHandle)(
		      &handle, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
	CHECK(hip.imported_fd > 2 && hip.imported_as_value);
	CHECK(fcntl(hip.imported_fd, F_GETFD) < 0 && errno == EBADF);
	close(0);
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, NULL,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_ERROR_INVALID_VALUE);
	if (saved >= 0)
		CHECK(dup2(saved, 0) == 0 && close(saved) == 0);

	/* What would not come back is not given away. */
	for (size_t i = 0; i < 2; i++) {
		reset(i ? HIP_VERSION_OF(7, 14) : HIP_VERSION_OF(6, 1));
		CHECK(FIND(cuMemExportToShareableHandle)(&exported, 0x5000,
							 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
							 0) == CUDA_ERROR_NOT_SUPPORTED);
		CHECK(FIND(cuMemImportFromShareableHandle)(
			      &handle, (void *)(intptr_t)fd,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
		      CUDA_ERROR_NOT_SUPPORTED);
		CHECK(!hip.calls);
	}
	close(fd);
}

static void test_ranges(void)
{
	char *start = (char *)(uintptr_t)0x7f0000000000;
	CUdeviceptr at = (CUdeviceptr)start, base;
	size_t bytes;

	reset(HIP_VERSION_OF(6, 4));
	hip.mappings[0] = (struct mapping){start, 2 * MIB};
	hip.mappings[1] = (struct mapping){start + 2 * MIB, 4 * MIB};
	hip.mappings[2] = (struct mapping){start + 8 * MIB, 2 * MIB};
	CHECK(FIND(cuMemGetAddressRange_v2)(&base, &bytes, at + 3 * MIB) == CUDA_SUCCESS);
	CHECK(base == at + 2 * MIB && bytes == 4 * MIB);
	CHECK(FIND(cuMemGetAddressRange_v2)(NULL, NULL, at) == CUDA_SUCCESS);
	base = 5;
	CHECK(FIND(cuMemGetAddressRange_v2)(&base, NULL, at + 7 * MIB) == CUDA_ERROR_NOT_FOUND);
	CHECK(base == 5);

	/* Where nothing is mapped HIP is not asked; several go one by one. */
	CHECK(FIND(cuMemUnmap)(at + 6 * MIB, 2 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuMemUnmap)(at, 8 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuMemUnmap)(0, 8 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuMemUnmap)(at, 0) == CUDA_ERROR_INVALID_VALUE && !hip.unmapped_count);
	CHECK(FIND(cuMemUnmap)(at, MIB) == CUDA_ERROR_INVALID_VALUE && !hip.unmapped_count);
	CHECK(FIND(cuMemUnmap)(at + MIB, MIB) == CUDA_ERROR_INVALID_VALUE && !hip.unmapped_count);
	CHECK(FIND(cuMemUnmap)(at, 6 * MIB) == CUDA_SUCCESS && hip.unmapped_count == 2);
	CHECK(hip.unmapped[0] == start && hip.unmapped_bytes[0] == 2 * MIB);
	CHECK(hip.unmapped[1] == start + 2 * MIB && hip.unmapped_bytes[1] == 4 * MIB);
	CHECK(FIND(cuMemUnmap)(at + 8 * MIB, 2 * MIB) == CUDA_SUCCESS && hip.unmapped_count == 3);
}

/* HIP 6 says that it was done also when it was not. */
static void test_mapping(void)
{
	CUdeviceptr at = 0x7f0000000000;

	reset(HIP_VERSION_OF(6, 4));
	hip.is_quiet = true;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_ERROR_UNKNOWN);
	hip.is_quiet = false;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_SUCCESS);
	hip.is_quiet = true;
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_ERROR_UNKNOWN && !hip.unmapped_count);
	hip.is_quiet = false;
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_SUCCESS && hip.unmapped_count == 1);
	hip.error = hipErrorOutOfMemory;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_ERROR_OUT_OF_MEMORY);
	/* Where it cannot be said it is believed: what is mapped must not count as missing. */
	reset(HIP_VERSION_OF(6, 4));
	hip.range_error = hipErrorUnknown;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_SUCCESS);
	/* Nothing is unmapped unseen. */
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_ERROR_INVALID_VALUE && !hip.unmapped_count);
	hip.range_error = hipSuccess;
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_SUCCESS && hip.unmapped_count == 1);
	/* Later ones are believed, whatever they tell of the range. */
	reset(HIP_VERSION_OF(7, 0));
	hip.is_quiet = true;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_SUCCESS);
}

/* Is this flag among those of the memory at @at, as /proc/self/smaps tells them? */
static bool has_flag(const void *at, const char *flag)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	bool inside = false, has = false;
	unsigned long start, end;
	char line[512];

	CHECK(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = (uintptr_t)at >= start && (uintptr_t)at < end;
		else if (inside && !strncmp(line, "VmFlags:", 8))
			has = strstr(line + 8, flag) != NULL;
	}
	fclose(smaps);
	return has;
}

/* What ROCr 7.2 maps there is not inherited, and not left behind. */
static void test_host_mapping(void)
{
	const CUmemAccessDesc access[] = {
		{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
		 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
		{.location = {.type = CU_MEM_LOCATION_TYPE_HOST},
		 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
	};
	int fd = memfd_create("memory", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, 2 * MIB) == 0);
	for (int minor = 0; minor <= 2; minor += 2) {
		char *start = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CUdeviceptr at = (CUdeviceptr)start;

		CHECK(start != MAP_FAILED);
		reset(HIP_VERSION_OF(7, minor));
		hip.mappings[0] = (struct mapping){start, 2 * MIB};
		CHECK(FIND(cuMemSetAccess)(at, 2 * MIB, access, 2) == CUDA_SUCCESS);
		CHECK(!has_flag(start, " dc"));
		hip.error = hipErrorInvalidValue;
		CHECK(FIND(cuMemSetAccess)(at, 2 * MIB, access, 1) == CUDA_ERROR_INVALID_VALUE);
		CHECK(!has_flag(start, " dc"));
		hip.error = hipSuccess;
		CHECK(FIND(cuMemSetAccess)(at, 2 * MIB, access, 1) == CUDA_SUCCESS);
		CHECK(hip.pointer == start && hip.number == 2 * MIB);
		CHECK(has_flag(start, " dc") == (minor == 2));
		CHECK(has_flag(start, " sh") && has_flag(start, " rd"));
		CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_SUCCESS && hip.unmapped_count == 1);
		CHECK(has_flag(start, " sh") == (minor == 0));
		CHECK(has_flag(start, " rd") == (minor == 0));
		CHECK(!has_flag(start, " dc"));
		munmap(start, 2 * MIB);
	}
	close(fd);
}

static void test_copies_and_places(void)
{
	const CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 2};
	const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 9};

	reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuMemcpyPeer)(1, gcr_hip_context(2), 3, gcr_hip_context(1), 64) == CUDA_SUCCESS);
	CHECK(hip.device == 21 && hip.number == 64);
	CHECK(FIND(cuMemcpyPeerAsync)(1, gcr_hip_context(1), 3, gcr_hip_context(2), 65,
				      (CUstream)&hip) == CUDA_SUCCESS);
	CHECK(hip.device == 12 && hip.number == 65 && hip.pointer == &hip);

	CHECK(FIND(cuMemAdvise_v2)(1, 2, CU_MEM_ADVISE_SET_ACCESSED_BY, device) == CUDA_SUCCESS);
	CHECK(hip.device == 2 && hip.number == hipMemAdviseSetAccessedBy);
	CHECK(FIND(cuMemAdvise_v2)(1, 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host) ==
	      CUDA_SUCCESS);
	CHECK(hip.device == hipCpuDeviceId && hip.number == hipMemAdviseSetPreferredLocation);
	CHECK(FIND(cuMemPrefetchAsync_v2)(1, 2, host, 0, (CUstream)&fakes) == CUDA_SUCCESS);
	CHECK(hip.device == hipCpuDeviceId && hip.number == 2 && hip.pointer == &fakes);
	hip.calls = 0;
	CHECK(FIND(cuMemPrefetchAsync_v2)(1, 2, device, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!hip.calls);
}

static void answer_with(uint64_t value, size_t bytes)
{
	memcpy(hip.answer, &value, sizeof(hip.answer));
	hip.answer_bytes = bytes;
}

static unsigned int memory_type(int version, unsigned int type)
{
	unsigned int read = 99;

	reset(version);
	answer_with(type, 4);
	CHECK(FIND(cuPointerGetAttribute)(&read, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 1) ==
	      CUDA_SUCCESS);
	return read;
}

static void test_pointers(void)
{
	CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
					CU_POINTER_ATTRIBUTE_BUFFER_ID};
	unsigned long long number = ~0ull;
	unsigned int word = ~0u;
	CUcontext context = NULL;
	size_t bytes = 0;
	int device = 5;
	void *data[] = {&device, &number};

	CHECK(memory_type(HIP_VERSION_OF(5, 7), 0) == CU_MEMORYTYPE_HOST);
	CHECK(memory_type(HIP_VERSION_OF(5, 7), 1) == CU_MEMORYTYPE_DEVICE);
	CHECK(memory_type(HIP_VERSION_OF(5, 7), 4) == CU_MEMORYTYPE_DEVICE);
	CHECK(memory_type(HIP_VERSION_OF(5, 7), 2) == CU_MEMORYTYPE_ARRAY);
	CHECK(memory_type(HIP_VERSION_OF(6, 4), 1) == CU_MEMORYTYPE_HOST);
	CHECK(memory_type(HIP_VERSION_OF(6, 4), 2) == CU_MEMORYTYPE_DEVICE);
	CHECK(memory_type(HIP_VERSION_OF(6, 4), 3) == CU_MEMORYTYPE_DEVICE);
	CHECK(memory_type(HIP_VERSION_OF(6, 4), 11) == CU_MEMORYTYPE_UNIFIED);

	/* Of fewer bytes than CUDA's. */
	reset(HIP_VERSION_OF(6, 4));
	answer_with(1, 1);
	CHECK(FIND(cuPointerGetAttribute)(&word, CU_POINTER_ATTRIBUTE_IS_MANAGED, 1) ==
		      CUDA_SUCCESS &&
	      word == 1);
	answer_with(7, 4);
	CHECK(FIND(cuPointerGetAttribute)(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, 1) ==
		      CUDA_SUCCESS &&
	      number == 7);
	hip.mappings[0] = (struct mapping){(char *)(uintptr_t)0x7f0000000000, (size_t)5 << 32};
	CHECK(FIND(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
					  0x7f0000001000) == CUDA_SUCCESS);
	CHECK(bytes == (size_t)5 << 32);
	answer_with(2, 4);
	CHECK(FIND(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, 1) ==
		      CUDA_SUCCESS &&
	      context == gcr_hip_context(2));
	CHECK(hip.number == HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);

	hip.calls = 0;
	CHECK(FIND(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 1) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuPointerGetAttribute)(NULL, CU_POINTER_ATTRIBUTE_MAPPED, 1) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuPointerGetAttribute)(&word, CU_POINTER_ATTRIBUTE_MAPPED, 0) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(!hip.calls);

	/* Of memory that is not HIP's. */
	hip.error = hipErrorInvalidValue;
	word = 5;
	CHECK(FIND(cuPointerGetAttribute)(&word, CU_POINTER_ATTRIBUTE_MAPPED, 1) ==
		      CUDA_ERROR_INVALID_VALUE &&
	      word == 5);
	CHECK(FIND(cuPointerGetAttributes)(2, wanted, data, 1) == CUDA_SUCCESS);
	CHECK(device == CU_DEVICE_INVALID && number == 0);
	hip.error = hipSuccess;
	answer_with(1, 4);
	CHECK(FIND(cuPointerGetAttributes)(2, wanted, data, 1) == CUDA_SUCCESS);
	CHECK(device == 1 && number == 1);
	wanted[1] = CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
	CHECK(FIND(cuPointerGetAttributes)(2, wanted, data, 1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuPointerGetAttributes)(0, wanted, data, 1) == CUDA_ERROR_INVALID_VALUE);
}

static void test_architecture(void)
{
	char name[64] = "", small[8] = "";
	char endless[400];

	reset(HIP_VERSION_OF(6, 4));
	hip.architecture = "gfx90a:sramecc+:xnack-";
	CHECK(gcr_hip_architecture(1, look_up, NULL, name, sizeof(name)) == 0);
	CHECK(!strcmp(name, "gfx90a:sramecc+:xnack-"));
	CHECK(gcr_hip_architecture(1, look_up, NULL, small, sizeof(small)) == -ENAMETOOLONG);
	CHECK(!small[0]);
	memset(endless, 'a', sizeof(endless) - 1);
	endless[sizeof(endless) - 1] = 0;
	hip.architecture = endless;
	CHECK(gcr_hip_architecture(1, look_up, NULL, name, sizeof(name)) == -ENAMETOOLONG);
	hip.architecture = "";
	CHECK(gcr_hip_architecture(1, look_up, NULL, name, sizeof(name)) == -ENODEV);
	hip.absent[0] = "hipGetDevicePropertiesR0600";
	CHECK(gcr_hip_architecture(1, look_up, NULL, name, sizeof(name)) == 0);
	CHECK(!strcmp(name, "gfx906:old"));
	hip.error = hipErrorInvalidDevice;
	CHECK(gcr_hip_architecture(1, look_up, NULL, name, sizeof(name)) == -ENODEV);
	hip.absent[1] = "hipGetDeviceProperties";
	CHECK(gcr_hip_architecture(1, look_up, NULL, name, sizeof(name)) == -ENODEV);
}

int main(void)
{
	test_table();
	test_versions();
	test_unsuitable();
	test_other_library();
	test_errors();
	test_devices();
	test_attributes();
	test_contexts();
	test_streams_and_limits();
	test_host_memory();
	test_create();
	test_sharing();
	test_ranges();
	test_mapping();
	test_host_mapping();
	test_copies_and_places();
	test_pointers();
	test_architecture();
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The adapters that stand for CUDA's functions on HIP: which functions are found in which version,
 * and the adapters' results with a fake library whose version and answers the test sets.
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
#include "test/unit/rocm/adapt_hip.h"
#include "test/unit/test.h"

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

#define ALIKE(cuda, hip)                                                                        \
	CHECK(!strcmp(gcr_hip_name(#cuda), #hip) && is_declared(#hip));                         \
	CHECK(gcr_hip_find(#cuda, adapt_hip_look_up_any, &asked) == (void *)(uintptr_t)0x1234); \
	CHECK(!strcmp(asked, #hip));
#define ADAPTED(cuda, hip) CHECK(!strcmp(gcr_hip_name(#cuda), #hip) && is_declared(#hip));
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED
	/* The table has all functions that the worker needs, and none that HIP lacks. */
#define NEEDED(name) CHECK(gcr_hip_name(#name));
	GCR_DRIVER_CALLS(NEEDED)
#undef NEEDED
	asked = NULL;
#define MISSING(name)                                                                        \
	CHECK(!gcr_hip_name(#name) && !gcr_hip_find(#name, adapt_hip_look_up_any, &asked) && \
	      !asked);
	GCR_DRIVER_CHECKPOINT_CALLS(MISSING)
	MISSING(cuCtxRecordEvent)
	MISSING(cuMulticastCreate)
	MISSING(cuGreenCtxCreate)
#undef MISSING
}

/* A function that came with a later version, or is absent from the library, is not found. */
static void test_versions(void)
{
	adapt_hip_reset(HIP_VERSION_OF(5, 2));
	adapt_hip.absent[0] = "hipStreamGetDevice";
	adapt_hip.absent[1] = "hipDeviceSetLimit";
	CHECK(!FIND(cuStreamGetCtx) && !FIND(cuCtxSetLimit));
	CHECK(FIND(cuCtxGetLimit) && FIND(cuGetErrorName));
	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuStreamGetCtx) && FIND(cuCtxSetLimit));
	CHECK(!FIND(cuMemAddressReserve)); /* the library of this test has none */
	CHECK(gcr_hip_version() == HIP_VERSION_OF(6, 4));
}

/* Versions as hipRuntimeGetVersion returns them. */
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

/* The library is closed, and another one opened. */
static void test_other_library(void)
{
	CUcontext context;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && gcr_hip_device(context) == 0);
	CHECK(gcr_hip_find("cuCtxGetCurrent", adapt_hip_look_up, &adapt_hip) ==
	      (void *)FIND(cuCtxGetCurrent));
	CHECK(gcr_hip_find("cuCtxGetCurrent", adapt_hip_look_up, &adapt_hip));
	CHECK(((__typeof__(cuCtxGetCurrent) *)gcr_hip_find("cuCtxGetCurrent", adapt_hip_look_up,
							   &adapt_hip))(&context) == CUDA_SUCCESS);
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

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(same); i++) {
		adapt_hip.error = same[i].hip;
		CHECK(FIND(cuMemHostAlloc)(&pointer, 1, 0) == same[i].cuda);
	}
	CHECK(!pointer);
	CHECK(FIND(cuGetErrorName)(CUDA_ERROR_NOT_READY, &words) == CUDA_SUCCESS);
	CHECK(!strcmp(words, "hipErrorNotReady"));
	CHECK(FIND(cuGetErrorString)(CUDA_ERROR_NOT_READY, &words) == CUDA_SUCCESS);
	CHECK(!strcmp(words, "device not ready"));
	CHECK(FIND(cuGetErrorName)(CUDA_ERROR_NOT_READY, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuGetErrorString)(CUDA_ERROR_NOT_READY, NULL) == CUDA_ERROR_INVALID_VALUE);

	adapt_hip_reset(HIP_VERSION_OF(7, 14));
	CHECK(FIND(cuDriverGetVersion)(&number) == CUDA_SUCCESS && number == 7140);
	adapt_hip_reset(0);
	CHECK(FIND(cuDriverGetVersion)(&number) == CUDA_ERROR_NOT_INITIALIZED && number == 7140);
}

static void test_devices(void)
{
	CUuuid uuid;
	int number = 5;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuDeviceGetCount)(&number) == CUDA_SUCCESS && number == 3);
	adapt_hip.devices = 0;
	CHECK(FIND(cuDeviceGetCount)(&number) == CUDA_SUCCESS && number == 0);
	adapt_hip.error = hipErrorInitializationError;
	CHECK(FIND(cuDeviceGetCount)(&number) == CUDA_ERROR_NOT_INITIALIZED && number == 0);

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	memcpy(adapt_hip.uuid, "0123456789abcdef", 16);
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "0123456789abcdef", 16));
	memcpy(adapt_hip.uuid, "XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
	adapt_hip.place = "0000:c3:00.0";
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "XX0000:c3:00.0\0\0", 16));
	CHECK(FIND(cuDeviceGetUuid)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "XX0000:c3:00.0\0\0", 16));
	adapt_hip.place = "00000000:c3:00.0 and more";
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
	CHECK(!memcmp(uuid.bytes, "XX00000000:c3:00", 16));
	adapt_hip.error = hipErrorInvalidDevice;
	CHECK(FIND(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_ERROR_INVALID_DEVICE);
}

static void test_attributes(void)
{
	int value = 5;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2) ==
	      CUDA_SUCCESS);
	CHECK(adapt_hip.number == hipDeviceAttributeMultiprocessorCount && adapt_hip.device == 2);
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
	CHECK(adapt_hip.number == hipDeviceAttributeVirtualMemoryManagementSupported && value);
	adapt_hip.error = hipErrorInvalidDevice;
	value = 5;
	CHECK(FIND(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 2) ==
		      CUDA_ERROR_INVALID_DEVICE &&
	      value == 5);
	adapt_hip_reset(HIP_VERSION_OF(6, 1));
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

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(gcr_hip_device(NULL) == -1 && gcr_hip_device(gcr_hip_context(0)) == 0);
	CHECK(FIND(cuDevicePrimaryCtxRetain)(&context, 2) == CUDA_SUCCESS);
	CHECK(context == gcr_hip_context(2) && context);
	CHECK(FIND(cuDevicePrimaryCtxRetain)(&context, 3) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(FIND(cuDevicePrimaryCtxRetain)(&context, -1) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(context == gcr_hip_context(2));
	CHECK(FIND(cuDevicePrimaryCtxRelease_v2)(2) == CUDA_SUCCESS);
	CHECK(FIND(cuDevicePrimaryCtxRelease_v2)(3) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(adapt_hip.current == 0 && !adapt_hip.set_count);

	CHECK(FIND(cuCtxSetCurrent)(context) == CUDA_SUCCESS && adapt_hip.current == 2);
	CHECK(FIND(cuCtxSetCurrent)(NULL) == CUDA_SUCCESS && adapt_hip.current == 2);
	CHECK(FIND(cuCtxGetCurrent)(&other) == CUDA_SUCCESS && other == context);
	CHECK(FIND(cuCtxSetCurrent)(gcr_hip_context(3)) == CUDA_ERROR_INVALID_DEVICE);

	CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_ERROR_INVALID_CONTEXT);
	CHECK(FIND(cuCtxPushCurrent_v2)(gcr_hip_context(1)) == CUDA_SUCCESS &&
	      adapt_hip.current == 1);
	CHECK(FIND(cuCtxPushCurrent_v2)(gcr_hip_context(0)) == CUDA_SUCCESS &&
	      adapt_hip.current == 0);
	CHECK(FIND(cuCtxPushCurrent_v2)(gcr_hip_context(9)) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(FIND(cuCtxPushCurrent_v2)(NULL) == CUDA_ERROR_INVALID_CONTEXT &&
	      adapt_hip.current == 0);
	CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_SUCCESS && other == gcr_hip_context(0));
	CHECK(adapt_hip.current == 1);
	CHECK(FIND(cuCtxPopCurrent_v2)(NULL) == CUDA_SUCCESS && adapt_hip.current == 2);
	for (depth = 0; result == CUDA_SUCCESS && depth < 100; depth++)
		result = FIND(cuCtxPushCurrent_v2)(gcr_hip_context(1));
	CHECK(result == CUDA_ERROR_INVALID_VALUE && depth > 4 && depth < 100);
	while (--depth)
		CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_SUCCESS);
	CHECK(adapt_hip.current == 2);
	CHECK(FIND(cuCtxPopCurrent_v2)(&other) == CUDA_ERROR_INVALID_CONTEXT);

	CHECK(FIND(cuCtxEnablePeerAccess)(gcr_hip_context(1), 9) == CUDA_SUCCESS);
	CHECK(adapt_hip.device == 1 && adapt_hip.flags == 9);
	CHECK(FIND(cuCtxDisablePeerAccess)(gcr_hip_context(0)) == CUDA_SUCCESS &&
	      adapt_hip.device == 0);
	adapt_hip.calls = 0;
	CHECK(FIND(cuCtxEnablePeerAccess)(NULL, 0) == CUDA_ERROR_INVALID_CONTEXT);
	CHECK(FIND(cuCtxDisablePeerAccess)(NULL) == CUDA_ERROR_INVALID_CONTEXT && !adapt_hip.calls);
}

static void test_streams_and_limits(void)
{
	CUcontext context = NULL;
	size_t value = 0;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	adapt_hip.current = 1;
	CHECK(FIND(cuStreamGetCtx)(NULL, &context) == CUDA_SUCCESS &&
	      context == gcr_hip_context(1));
	CHECK(FIND(cuStreamGetCtx)(CU_STREAM_LEGACY, &context) == CUDA_SUCCESS);
	CHECK(FIND(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &context) == CUDA_SUCCESS);
	CHECK(context == gcr_hip_context(1) && !adapt_hip.pointer);
	CHECK(FIND(cuStreamGetCtx)((CUstream)&adapt_hip, &context) == CUDA_SUCCESS);
	CHECK(context == gcr_hip_context(2) && adapt_hip.pointer == &adapt_hip);

	CHECK(FIND(cuCtxGetLimit)(&value, CU_LIMIT_MALLOC_HEAP_SIZE) == CUDA_SUCCESS &&
	      value == 77);
	CHECK(adapt_hip.number == hipLimitMallocHeapSize);
	CHECK(FIND(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, 5) == CUDA_SUCCESS);
	CHECK(adapt_hip.number == 100 * hipLimitPrintfFifoSize + 5);
	adapt_hip.calls = 0;
	CHECK(FIND(cuCtxGetLimit)(&value, CU_LIMIT_MAX_L2_FETCH_GRANULARITY) ==
	      CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(FIND(cuCtxSetLimit)(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 5) ==
	      CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(!adapt_hip.calls);
}

static void test_host_memory(void)
{
	void *pointer;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuMemHostAlloc)(&pointer, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
	CHECK(adapt_hip.flags == (hipHostMallocPortable | hipHostMallocCoherent) &&
	      adapt_hip.number == 4096);
	CHECK(FIND(cuMemHostRegister_v2)(&adapt_hip, 8192,
					 CU_MEMHOSTREGISTER_PORTABLE |
						 CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
	CHECK(adapt_hip.flags == hipHostRegisterPortable && adapt_hip.number == 8192 &&
	      adapt_hip.pointer == &adapt_hip);
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

	adapt_hip_reset(HIP_VERSION_OF(7, 2));
	adapt_hip.number = 4096;
	CHECK(FIND(cuMemGetAllocationGranularity)(
		      &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
	CHECK(bytes == 2 * MIB && adapt_hip.device == 2);
	adapt_hip.number = 64 * MIB;
	CHECK(FIND(cuMemGetAllocationGranularity)(
		      &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
	      bytes == 64 * MIB);

	/* On the device of the properties; afterwards the current device is as before. */
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, &properties, 0) == CUDA_SUCCESS);
	CHECK(handle == 0x5000 && adapt_hip.number == 4 * MIB && adapt_hip.device == 2 &&
	      adapt_hip.current == 0);
	adapt_hip.set_count = 0;
	properties = properties_of(0);
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, &properties, 0) == CUDA_SUCCESS);
	CHECK(adapt_hip.device == 0 && !adapt_hip.set_count);
	properties = properties_of(5);
	handle = 0;
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, &properties, 0) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(!handle && adapt_hip.current == 0);
	CHECK(FIND(cuMemCreate)(&handle, 4 * MIB, NULL, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void test_sharing(void)
{
	CUmemGenericAllocationHandle handle = 0;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), exported = -1, saved;

	CHECK(fd > 2);
	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuMemExportToShareableHandle)(&exported, 0x5000,
						 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
						 0) == CUDA_SUCCESS);
	CHECK(exported == 42 && adapt_hip.pointer == (void *)(uintptr_t)0x5000);
	CHECK(adapt_hip.number == hipMemHandleTypePosixFileDescriptor);
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CHECK(handle == 0x6000 && adapt_hip.imported_fd == fd && !adapt_hip.imported_as_value);
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_FABRIC) ==
	      CUDA_ERROR_NOT_SUPPORTED);

	adapt_hip_reset(HIP_VERSION_OF(7, 0));
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CHECK(adapt_hip.imported_fd == fd && !adapt_hip.imported_as_value);

	adapt_hip_reset(HIP_VERSION_OF(7, 1));
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CHECK(adapt_hip.imported_fd == fd && adapt_hip.imported_as_value);
	/* Descriptor 0 would be a null pointer: the adapter duplicates it. */
	saved = fcntl(0, F_DUPFD_CLOEXEC, 3);
	CHECK(dup2(fd, 0) == 0);
	CHECK(FIND(cuMemImportFromShareableHandle)(
		      &handle, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
	CHECK(adapt_hip.imported_fd > 2 && adapt_hip.imported_as_value);
	CHECK(fcntl(adapt_hip.imported_fd, F_GETFD) < 0 && errno == EBADF);
	close(0);
	CHECK(FIND(cuMemImportFromShareableHandle)(&handle, NULL,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_ERROR_INVALID_VALUE);
	if (saved >= 0)
		CHECK(dup2(saved, 0) == 0 && close(saved) == 0);

	/* Export is refused in versions that could not import the memory again. */
	for (size_t i = 0; i < 2; i++) {
		adapt_hip_reset(i ? HIP_VERSION_OF(7, 14) : HIP_VERSION_OF(6, 1));
		CHECK(FIND(cuMemExportToShareableHandle)(&exported, 0x5000,
							 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
							 0) == CUDA_ERROR_NOT_SUPPORTED);
		CHECK(FIND(cuMemImportFromShareableHandle)(
			      &handle, (void *)(intptr_t)fd,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
		      CUDA_ERROR_NOT_SUPPORTED);
		CHECK(!adapt_hip.calls);
	}
	close(fd);
}

static void test_ranges(void)
{
	char *start = (char *)(uintptr_t)0x7f0000000000;
	CUdeviceptr at = (CUdeviceptr)start, base;
	size_t bytes;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	adapt_hip.mappings[0] = (struct mapping){start, 2 * MIB};
	adapt_hip.mappings[1] = (struct mapping){start + 2 * MIB, 4 * MIB};
	adapt_hip.mappings[2] = (struct mapping){start + 8 * MIB, 2 * MIB};
	CHECK(FIND(cuMemGetAddressRange_v2)(&base, &bytes, at + 3 * MIB) == CUDA_SUCCESS);
	CHECK(base == at + 2 * MIB && bytes == 4 * MIB);
	CHECK(FIND(cuMemGetAddressRange_v2)(NULL, NULL, at) == CUDA_SUCCESS);
	base = 5;
	CHECK(FIND(cuMemGetAddressRange_v2)(&base, NULL, at + 7 * MIB) == CUDA_ERROR_NOT_FOUND);
	CHECK(base == 5);

	/*
	 * A range with unmapped parts is refused without a call of HIP; several mappings are
	 * unmapped one by one.
	 */
	CHECK(FIND(cuMemUnmap)(at + 6 * MIB, 2 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuMemUnmap)(at, 8 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuMemUnmap)(0, 8 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuMemUnmap)(at, 0) == CUDA_ERROR_INVALID_VALUE && !adapt_hip.unmapped_count);
	CHECK(FIND(cuMemUnmap)(at, MIB) == CUDA_ERROR_INVALID_VALUE && !adapt_hip.unmapped_count);
	CHECK(FIND(cuMemUnmap)(at + MIB, MIB) == CUDA_ERROR_INVALID_VALUE &&
	      !adapt_hip.unmapped_count);
	CHECK(FIND(cuMemUnmap)(at, 6 * MIB) == CUDA_SUCCESS && adapt_hip.unmapped_count == 2);
	CHECK(adapt_hip.unmapped[0] == start && adapt_hip.unmapped_bytes[0] == 2 * MIB);
	CHECK(adapt_hip.unmapped[1] == start + 2 * MIB && adapt_hip.unmapped_bytes[1] == 4 * MIB);
	CHECK(FIND(cuMemUnmap)(at + 8 * MIB, 2 * MIB) == CUDA_SUCCESS &&
	      adapt_hip.unmapped_count == 3);
}

/* HIP 6 returns success also if it has not mapped or unmapped. */
static void test_mapping(void)
{
	CUdeviceptr at = 0x7f0000000000;

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	adapt_hip.is_quiet = true;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_ERROR_UNKNOWN);
	adapt_hip.is_quiet = false;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_SUCCESS);
	adapt_hip.is_quiet = true;
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_ERROR_UNKNOWN && !adapt_hip.unmapped_count);
	adapt_hip.is_quiet = false;
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_SUCCESS && adapt_hip.unmapped_count == 1);
	adapt_hip.error = hipErrorOutOfMemory;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_ERROR_OUT_OF_MEMORY);
	/*
	 * If the check of the mapping fails, HIP's success is believed: mapped memory must not
	 * count as missing.
	 */
	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	adapt_hip.range_error = hipErrorUnknown;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_SUCCESS);
	/* Memory whose mapping cannot be checked is not unmapped. */
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_ERROR_INVALID_VALUE &&
	      !adapt_hip.unmapped_count);
	adapt_hip.range_error = hipSuccess;
	CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_SUCCESS && adapt_hip.unmapped_count == 1);
	/* Later versions are believed, whatever they return for the range. */
	adapt_hip_reset(HIP_VERSION_OF(7, 0));
	adapt_hip.is_quiet = true;
	CHECK(FIND(cuMemMap)(at, 2 * MIB, 0, 0x5000, 0) == CUDA_SUCCESS);
}

/* Does /proc/self/smaps show @flag among the VmFlags of the memory at @at? */
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

/*
 * The host mapping that ROCr 7.2 makes at that address is not inherited by a child and not left
 * behind.
 */
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
		adapt_hip_reset(HIP_VERSION_OF(7, minor));
		adapt_hip.mappings[0] = (struct mapping){start, 2 * MIB};
		CHECK(FIND(cuMemSetAccess)(at, 2 * MIB, access, 2) == CUDA_SUCCESS);
		CHECK(!has_flag(start, " dc"));
		adapt_hip.error = hipErrorInvalidValue;
		CHECK(FIND(cuMemSetAccess)(at, 2 * MIB, access, 1) == CUDA_ERROR_INVALID_VALUE);
		CHECK(!has_flag(start, " dc"));
		adapt_hip.error = hipSuccess;
		CHECK(FIND(cuMemSetAccess)(at, 2 * MIB, access, 1) == CUDA_SUCCESS);
		CHECK(adapt_hip.pointer == start && adapt_hip.number == 2 * MIB);
		CHECK(has_flag(start, " dc") == (minor == 2));
		CHECK(has_flag(start, " sh") && has_flag(start, " rd"));
		CHECK(FIND(cuMemUnmap)(at, 2 * MIB) == CUDA_SUCCESS &&
		      adapt_hip.unmapped_count == 1);
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

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	CHECK(FIND(cuMemcpyPeer)(1, gcr_hip_context(2), 3, gcr_hip_context(1), 64) == CUDA_SUCCESS);
	CHECK(adapt_hip.device == 21 && adapt_hip.number == 64);
	CHECK(FIND(cuMemcpyPeerAsync)(1, gcr_hip_context(1), 3, gcr_hip_context(2), 65,
				      (CUstream)&adapt_hip) == CUDA_SUCCESS);
	CHECK(adapt_hip.device == 12 && adapt_hip.number == 65 && adapt_hip.pointer == &adapt_hip);

	CHECK(FIND(cuMemAdvise_v2)(1, 2, CU_MEM_ADVISE_SET_ACCESSED_BY, device) == CUDA_SUCCESS);
	CHECK(adapt_hip.device == 2 && adapt_hip.number == hipMemAdviseSetAccessedBy);
	CHECK(FIND(cuMemAdvise_v2)(1, 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host) ==
	      CUDA_SUCCESS);
	CHECK(adapt_hip.device == hipCpuDeviceId &&
	      adapt_hip.number == hipMemAdviseSetPreferredLocation);
	CHECK(FIND(cuMemPrefetchAsync_v2)(1, 2, host, 0, (CUstream)adapt_hip.uuid) == CUDA_SUCCESS);
	CHECK(adapt_hip.device == hipCpuDeviceId && adapt_hip.number == 2 &&
	      adapt_hip.pointer == adapt_hip.uuid);
	adapt_hip.calls = 0;
	CHECK(FIND(cuMemPrefetchAsync_v2)(1, 2, device, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!adapt_hip.calls);
}

static void answer_with(uint64_t value, size_t bytes)
{
	memcpy(adapt_hip.answer, &value, sizeof(adapt_hip.answer));
	adapt_hip.answer_bytes = bytes;
}

static unsigned int memory_type(int version, unsigned int type)
{
	unsigned int read = 99;

	adapt_hip_reset(version);
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

	/* Attributes that have fewer bytes in HIP than in CUDA. */
	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	answer_with(1, 1);
	CHECK(FIND(cuPointerGetAttribute)(&word, CU_POINTER_ATTRIBUTE_IS_MANAGED, 1) ==
		      CUDA_SUCCESS &&
	      word == 1);
	answer_with(7, 4);
	CHECK(FIND(cuPointerGetAttribute)(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, 1) ==
		      CUDA_SUCCESS &&
	      number == 7);
	adapt_hip.mappings[0] =
		(struct mapping){(char *)(uintptr_t)0x7f0000000000, (size_t)5 << 32};
	CHECK(FIND(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
					  0x7f0000001000) == CUDA_SUCCESS);
	CHECK(bytes == (size_t)5 << 32);
	answer_with(2, 4);
	CHECK(FIND(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, 1) ==
		      CUDA_SUCCESS &&
	      context == gcr_hip_context(2));
	CHECK(adapt_hip.number == HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);

	adapt_hip.calls = 0;
	CHECK(FIND(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 1) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuPointerGetAttribute)(NULL, CU_POINTER_ATTRIBUTE_MAPPED, 1) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(FIND(cuPointerGetAttribute)(&word, CU_POINTER_ATTRIBUTE_MAPPED, 0) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(!adapt_hip.calls);

	/* Attributes of memory that is not HIP's. */
	adapt_hip.error = hipErrorInvalidValue;
	word = 5;
	CHECK(FIND(cuPointerGetAttribute)(&word, CU_POINTER_ATTRIBUTE_MAPPED, 1) ==
		      CUDA_ERROR_INVALID_VALUE &&
	      word == 5);
	CHECK(FIND(cuPointerGetAttributes)(2, wanted, data, 1) == CUDA_SUCCESS);
	CHECK(device == CU_DEVICE_INVALID && number == 0);
	adapt_hip.error = hipSuccess;
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

	adapt_hip_reset(HIP_VERSION_OF(6, 4));
	adapt_hip.architecture = "gfx90a:sramecc+:xnack-";
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, name, sizeof(name)) == 0);
	CHECK(!strcmp(name, "gfx90a:sramecc+:xnack-"));
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, small, sizeof(small)) ==
	      -ENAMETOOLONG);
	CHECK(!small[0]);
	memset(endless, 'a', sizeof(endless) - 1);
	endless[sizeof(endless) - 1] = 0;
	adapt_hip.architecture = endless;
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, name, sizeof(name)) ==
	      -ENAMETOOLONG);
	adapt_hip.architecture = "";
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, name, sizeof(name)) == -ENODEV);
	adapt_hip.absent[0] = "hipGetDevicePropertiesR0600";
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, name, sizeof(name)) == 0);
	CHECK(!strcmp(name, "gfx906:old"));
	adapt_hip.error = hipErrorInvalidDevice;
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, name, sizeof(name)) == -ENODEV);
	adapt_hip.absent[1] = "hipGetDeviceProperties";
	CHECK(gcr_hip_architecture(1, adapt_hip_look_up, NULL, name, sizeof(name)) == -ENODEV);
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

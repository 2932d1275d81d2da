/* SPDX-License-Identifier: MIT */
/* backend/rocm/hip_api.h has the values, layouts and prototypes of the installed HIP. */
#include <string.h>

#include "backend/cuda/cuda_api.h"
#include "backend/rocm/hip_api.h"
#include "test/unit/test.h"
#include "test/unit/rocm/test_hip_api.h"

static const struct hip_api_number ours[] = {
#define CONSTANT(since, name)			 PRESENT(#name, #since, (intptr_t)(name))
#define TYPE(since, type)			 PRESENT("sizeof " #type, #since, sizeof(type))
#define FIELD(since, type, name)		 PRESENT(#type "." #name, #since, offsetof(type, name))
#define CONSTANT_AS(since, before, ours, theirs) PRESENT(#ours, #since, (intptr_t)(ours))
#define TYPE_AS(since, before, ours, theirs)	 PRESENT("sizeof " #ours, #since, sizeof(ours))
#define FIELD_AS(since, before, ours, theirs, name) \
	PRESENT(#ours "." #name, #since, offsetof(ours, name))
#include "test/unit/rocm/hip_api_list.h"
};

/* Compare a value that is passed unchanged between callers of CUDA's functions and HIP. */
#define SAME_NUMBER(cuda, hip)                                                                  \
	do {                                                                                    \
		if ((long long)(intptr_t)(cuda) != (long long)(intptr_t)(hip)) {                \
			fprintf(stderr, "%s is %lld, %s %lld\n", #cuda,                         \
				(long long)(intptr_t)(cuda), #hip, (long long)(intptr_t)(hip)); \
			different++;                                                            \
		}                                                                               \
	} while (0)
#define SAME_FIELD(cuda, cuda_field, hip, hip_field) \
	SAME_NUMBER(offsetof(cuda, cuda_field), offsetof(hip, hip_field))

static int compare_with_cuda(void)
{
	int different = 0;

	SAME_NUMBER(CUDA_SUCCESS, hipSuccess);
	SAME_NUMBER(CUDA_ERROR_INVALID_VALUE, hipErrorInvalidValue);
	SAME_NUMBER(CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory);
	SAME_NUMBER(CUDA_ERROR_NOT_INITIALIZED, hipErrorNotInitialized);
	SAME_NUMBER(CUDA_ERROR_DEINITIALIZED, hipErrorDeinitialized);
	SAME_NUMBER(CUDA_ERROR_NO_DEVICE, hipErrorNoDevice);
	SAME_NUMBER(CUDA_ERROR_INVALID_DEVICE, hipErrorInvalidDevice);
	SAME_NUMBER(CUDA_ERROR_INVALID_IMAGE, hipErrorInvalidImage);
	SAME_NUMBER(CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext);
	SAME_NUMBER(CUDA_ERROR_NO_BINARY_FOR_GPU, hipErrorNoBinaryForGpu);
	SAME_NUMBER(CUDA_ERROR_UNSUPPORTED_LIMIT, hipErrorUnsupportedLimit);
	SAME_NUMBER(CUDA_ERROR_INVALID_HANDLE, hipErrorInvalidHandle);
	SAME_NUMBER(CUDA_ERROR_ILLEGAL_STATE, hipErrorIllegalState);
	SAME_NUMBER(CUDA_ERROR_NOT_FOUND, hipErrorNotFound);
	SAME_NUMBER(CUDA_ERROR_NOT_READY, hipErrorNotReady);
	SAME_NUMBER(CUDA_ERROR_ILLEGAL_ADDRESS, hipErrorIllegalAddress);
	SAME_NUMBER(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, hipErrorPeerAccessAlreadyEnabled);
	SAME_NUMBER(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, hipErrorPeerAccessNotEnabled);
	SAME_NUMBER(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, hipErrorHostMemoryAlreadyRegistered);
	SAME_NUMBER(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, hipErrorHostMemoryNotRegistered);
	SAME_NUMBER(CUDA_ERROR_LAUNCH_FAILED, hipErrorLaunchFailure);
	SAME_NUMBER(CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported);
	SAME_NUMBER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, hipErrorStreamCaptureUnsupported);
	SAME_NUMBER(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, hipErrorStreamCaptureImplicit);
	SAME_NUMBER(CUDA_ERROR_CAPTURED_EVENT, hipErrorCapturedEvent);
	SAME_NUMBER(CUDA_ERROR_UNKNOWN, hipErrorUnknown);

	SAME_NUMBER(CU_STREAM_LEGACY, hipStreamLegacy);
	SAME_NUMBER(CU_STREAM_PER_THREAD, hipStreamPerThread);
	SAME_NUMBER(CU_STREAM_NON_BLOCKING, hipStreamNonBlocking);
	SAME_NUMBER(CU_EVENT_BLOCKING_SYNC, hipEventBlockingSync);
	SAME_NUMBER(CU_EVENT_DISABLE_TIMING, hipEventDisableTiming);
	SAME_NUMBER(CU_EVENT_INTERPROCESS, hipEventInterprocess);
	SAME_NUMBER(CU_MEM_ATTACH_GLOBAL, hipMemAttachGlobal);
	SAME_NUMBER(CU_MEM_ATTACH_HOST, hipMemAttachHost);
	SAME_NUMBER(CU_MEM_ATTACH_SINGLE, hipMemAttachSingle);
	SAME_NUMBER(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, hipIpcMemLazyEnablePeerAccess);
	SAME_NUMBER(CU_MEMHOSTALLOC_PORTABLE, hipHostMallocPortable);
	SAME_NUMBER(CU_MEMHOSTALLOC_DEVICEMAP, hipHostMallocMapped);
	SAME_NUMBER(CU_MEMHOSTALLOC_WRITECOMBINED, hipHostMallocWriteCombined);
	SAME_NUMBER(CU_MEMHOSTREGISTER_PORTABLE, hipHostRegisterPortable);
	SAME_NUMBER(CU_MEMHOSTREGISTER_DEVICEMAP, hipHostRegisterMapped);
	SAME_NUMBER(CU_MEMHOSTREGISTER_IOMEMORY, hipHostRegisterIoMemory);
	SAME_NUMBER(CU_DEVICE_CPU, hipCpuDeviceId);
	SAME_NUMBER(CU_LIMIT_STACK_SIZE, hipLimitStackSize);
	SAME_NUMBER(CU_LIMIT_PRINTF_FIFO_SIZE, hipLimitPrintfFifoSize);
	SAME_NUMBER(CU_LIMIT_MALLOC_HEAP_SIZE, hipLimitMallocHeapSize);
	SAME_NUMBER(CU_STREAM_CAPTURE_STATUS_NONE, hipStreamCaptureStatusNone);
	SAME_NUMBER(CU_STREAM_CAPTURE_STATUS_ACTIVE, hipStreamCaptureStatusActive);
	SAME_NUMBER(CU_STREAM_CAPTURE_STATUS_INVALIDATED, hipStreamCaptureStatusInvalidated);
	SAME_NUMBER(CU_STREAM_CAPTURE_MODE_GLOBAL, hipStreamCaptureModeGlobal);
	SAME_NUMBER(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal);
	SAME_NUMBER(CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed);
	SAME_NUMBER(CU_MEM_ADVISE_SET_READ_MOSTLY, hipMemAdviseSetReadMostly);
	SAME_NUMBER(CU_MEM_ADVISE_UNSET_ACCESSED_BY, hipMemAdviseUnsetAccessedBy);
	SAME_NUMBER(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, hipMemRangeAttributeReadMostly);
	SAME_NUMBER(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
		    hipMemRangeAttributePreferredLocation);
	SAME_NUMBER(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, hipMemRangeAttributeAccessedBy);
	SAME_NUMBER(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
		    hipMemRangeAttributeLastPrefetchLocation);
	SAME_NUMBER(CU_POINTER_ATTRIBUTE_CONTEXT, HIP_POINTER_ATTRIBUTE_CONTEXT);
	SAME_NUMBER(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS);
	SAME_NUMBER(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
	SAME_NUMBER(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
		    HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
	SAME_NUMBER(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		    HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

	SAME_NUMBER(CU_MEM_LOCATION_TYPE_DEVICE, hipMemLocationTypeDevice);
	SAME_NUMBER(CU_MEM_ACCESS_FLAGS_PROT_NONE, hipMemAccessFlagsProtNone);
	SAME_NUMBER(CU_MEM_ACCESS_FLAGS_PROT_READ, hipMemAccessFlagsProtRead);
	SAME_NUMBER(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, hipMemAccessFlagsProtReadWrite);
	SAME_NUMBER(CU_MEM_ALLOCATION_TYPE_PINNED, hipMemAllocationTypePinned);
	SAME_NUMBER(CU_MEM_HANDLE_TYPE_NONE, hipMemHandleTypeNone);
	SAME_NUMBER(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, hipMemHandleTypePosixFileDescriptor);
	SAME_NUMBER(CU_MEM_ALLOC_GRANULARITY_MINIMUM, hipMemAllocationGranularityMinimum);
	SAME_NUMBER(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, hipMemAllocationGranularityRecommended);
	SAME_NUMBER(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, hipMemPoolAttrReleaseThreshold);
	SAME_NUMBER(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, hipMemPoolAttrUsedMemCurrent);
	SAME_NUMBER(sizeof(CUmemLocation), sizeof(hipMemLocation));
	SAME_FIELD(CUmemLocation, id, hipMemLocation, id);
	SAME_NUMBER(sizeof(CUmemAccessDesc), sizeof(hipMemAccessDesc));
	SAME_FIELD(CUmemAccessDesc, flags, hipMemAccessDesc, flags);
	SAME_NUMBER(sizeof(CUmemAllocationProp), sizeof(hipMemAllocationProp));
	SAME_FIELD(CUmemAllocationProp, requestedHandleTypes, hipMemAllocationProp,
		   requestedHandleType);
	SAME_FIELD(CUmemAllocationProp, location, hipMemAllocationProp, location);
	SAME_FIELD(CUmemAllocationProp, win32HandleMetaData, hipMemAllocationProp,
		   win32HandleMetaData);
	SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable, hipMemAllocationProp,
		   allocFlags.gpuDirectRDMACapable);
	SAME_FIELD(CUmemAllocationProp, allocFlags.usage, hipMemAllocationProp, allocFlags.usage);
	SAME_NUMBER(sizeof(CUmemPoolProps), sizeof(hipMemPoolProps));
	SAME_FIELD(CUmemPoolProps, location, hipMemPoolProps, location);
	SAME_NUMBER(sizeof(CUipcMemHandle), sizeof(hipIpcMemHandle_t));
	SAME_NUMBER(sizeof(CUipcEventHandle), sizeof(hipIpcEventHandle_t));
	SAME_NUMBER(sizeof(CUuuid), sizeof(hipUUID));
	SAME_NUMBER(sizeof(CUdeviceptr), sizeof(hipDeviceptr_t));
	SAME_NUMBER(sizeof(CUmemGenericAllocationHandle), sizeof(hipMemGenericAllocationHandle_t));
	return different;
}

static int compare_numbers(void)
{
	int different = 0;

	CHECK(hip_api_reference_count == sizeof(ours) / sizeof(ours[0]));
	for (size_t i = 0; i < hip_api_reference_count; i++) {
		const struct hip_api_number *theirs = &hip_api_reference[i];

		CHECK(!strcmp(ours[i].name, theirs->name));
		if (theirs->is_there && ours[i].value != theirs->value) {
			fprintf(stderr, "%s: %lld, the header has %lld\n", ours[i].name,
				ours[i].value, theirs->value);
			different++;
		}
	}
	return different;
}

static int compare_functions(void)
{
	int different = 0;

	for (size_t i = 0; i < hip_api_functions_count; i++) {
		const struct hip_api_function *function = &hip_api_functions[i];

		if (!function->is_there) {
			printf("%s came with ROCm %s: not compared\n", function->name,
			       function->since);
		} else if (!function->is_same) {
			fprintf(stderr, "%s: another prototype than the header's\n",
				function->name);
			different++;
		}
	}
	return different;
}

int main(void)
{
	int different = compare_with_cuda();

	if (!hip_api_reference_version && !different)
		SKIP("no HIP headers when this was built");
	if (hip_api_reference_version) {
		printf("the headers of ROCm %d.%d\n", hip_api_reference_version / 100,
		       hip_api_reference_version % 100);
		different += compare_numbers() + compare_functions();
	}
	return different != 0;
}

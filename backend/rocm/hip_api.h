/* SPDX-License-Identifier: MIT */
/*
 * The part of AMD's HIP API (libamdhip64) that gpucrfs uses, so that the build needs no ROCm.
 * Names, values and layouts are those of <hip/hip_runtime_api.h> of ROCm 6, valid for 5.2 to 7
 * unless a comment says otherwise. test/unit/rocm/test_hip_api.c compares them with the installed
 * headers.
 *
 * With GCR_HIP_HEADERS (meson's option hip_headers) the installed header is used instead, and this
 * file adds only definitions that are missing in older headers.
 */
#ifndef GPUCR_HIP_API_H
#define GPUCR_HIP_API_H

#include <stddef.h>
#include <stdint.h>

#if GCR_HIP_HEADERS

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hip/hip_version.h>

#define GCR_HIP_HEADERS_SINCE(major, minor) \
	(HIP_VERSION_MAJOR > (major) ||     \
	 (HIP_VERSION_MAJOR == (major) && HIP_VERSION_MINOR >= (minor)))

/*
 * The header of 5.2 has the fields of hipMemAllocationProp in alphabetical order. No usable library
 * has that layout, so the header's names are renamed out of the way.
 */
#if !GCR_HIP_HEADERS_SINCE(5, 3)
#define hipMemAllocationProp			gcr_hip_5_2_properties
#define hipMemCreate				gcr_hip_5_2_create
#define hipMemGetAllocationGranularity		gcr_hip_5_2_get_granularity
#define hipMemGetAllocationPropertiesFromHandle gcr_hip_5_2_get_properties
#endif
#include <hip/hip_runtime_api.h>
#undef hipMemAllocationProp
#undef hipMemCreate
#undef hipMemGetAllocationGranularity
#undef hipMemGetAllocationPropertiesFromHandle

/* Whether a function still exists is checked at run time. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#else

#define GCR_HIP_HEADERS_SINCE(major, minor) 0

/* Handles. A device is its ordinal; arrays are opaque. */
typedef int hipDevice_t;
typedef void *hipDeviceptr_t;
typedef struct ihipCtx_t *hipCtx_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct ihipMemPoolHandle_t *hipMemPool_t;
typedef struct ihipMemGenericAllocationHandle *hipMemGenericAllocationHandle_t;
typedef struct hipArray *hipArray_t;
typedef struct ihipGraph *hipGraph_t;
typedef struct hipGraphNode *hipGraphNode_t;
typedef struct hipGraphExec *hipGraphExec_t;

#define hipStreamPerThread ((hipStream_t)2)
#define hipCpuDeviceId	   ((int)-1)
#define hipInvalidDeviceId ((int)-2)

typedef struct dim3 {
	uint32_t x;
	uint32_t y;
	uint32_t z;
} dim3;

typedef struct hipUUID_t {
	char bytes[16];
} hipUUID;

#define HIP_IPC_HANDLE_SIZE		64

typedef struct hipIpcMemHandle_st {
	char reserved[HIP_IPC_HANDLE_SIZE];
} hipIpcMemHandle_t;

typedef struct hipIpcEventHandle_st {
	char reserved[HIP_IPC_HANDLE_SIZE];
} hipIpcEventHandle_t;

/* Result codes. A number that CUDA's driver also has means the same. */
typedef enum hipError_t {
	hipSuccess = 0,
	hipErrorInvalidValue = 1,
	hipErrorOutOfMemory = 2,
	hipErrorMemoryAllocation = 2,
	hipErrorNotInitialized = 3,
	hipErrorInitializationError = 3,
	hipErrorDeinitialized = 4,
	hipErrorProfilerDisabled = 5,
	hipErrorProfilerNotInitialized = 6,
	hipErrorProfilerAlreadyStarted = 7,
	hipErrorProfilerAlreadyStopped = 8,
	hipErrorInvalidConfiguration = 9,
	hipErrorInvalidPitchValue = 12,
	hipErrorInvalidSymbol = 13,
	hipErrorInvalidDevicePointer = 17,
	hipErrorInvalidMemcpyDirection = 21,
	hipErrorInsufficientDriver = 35,
	hipErrorMissingConfiguration = 52,
	hipErrorPriorLaunchFailure = 53,
	hipErrorInvalidDeviceFunction = 98,
	hipErrorNoDevice = 100,
	hipErrorInvalidDevice = 101,
	hipErrorInvalidImage = 200,
	hipErrorInvalidContext = 201,
	hipErrorContextAlreadyCurrent = 202,
	hipErrorMapFailed = 205,
	hipErrorUnmapFailed = 206,
	hipErrorArrayIsMapped = 207,
	hipErrorAlreadyMapped = 208,
	hipErrorNoBinaryForGpu = 209,
	hipErrorAlreadyAcquired = 210,
	hipErrorNotMapped = 211,
	hipErrorNotMappedAsArray = 212,
	hipErrorNotMappedAsPointer = 213,
	hipErrorECCNotCorrectable = 214,
	hipErrorUnsupportedLimit = 215,
	hipErrorContextAlreadyInUse = 216,
	hipErrorPeerAccessUnsupported = 217,
	hipErrorInvalidKernelFile = 218,
	hipErrorInvalidGraphicsContext = 219,
	hipErrorInvalidSource = 300,
	hipErrorFileNotFound = 301,
	hipErrorSharedObjectSymbolNotFound = 302,
	hipErrorSharedObjectInitFailed = 303,
	hipErrorOperatingSystem = 304,
	hipErrorInvalidHandle = 400,
	hipErrorIllegalState = 401,
	hipErrorNotFound = 500,
	hipErrorNotReady = 600,
	hipErrorIllegalAddress = 700,
	hipErrorLaunchOutOfResources = 701,
	hipErrorLaunchTimeOut = 702,
	hipErrorPeerAccessAlreadyEnabled = 704,
	hipErrorPeerAccessNotEnabled = 705,
	hipErrorSetOnActiveProcess = 708,
	hipErrorContextIsDestroyed = 709,
	hipErrorAssert = 710,
	hipErrorHostMemoryAlreadyRegistered = 712,
	hipErrorHostMemoryNotRegistered = 713,
	hipErrorLaunchFailure = 719,
	hipErrorCooperativeLaunchTooLarge = 720,
	hipErrorNotSupported = 801,
	hipErrorStreamCaptureUnsupported = 900,
	hipErrorStreamCaptureInvalidated = 901,
	hipErrorStreamCaptureMerge = 902,
	hipErrorStreamCaptureUnmatched = 903,
	hipErrorStreamCaptureUnjoined = 904,
	hipErrorStreamCaptureIsolation = 905,
	hipErrorStreamCaptureImplicit = 906,
	hipErrorCapturedEvent = 907,
	hipErrorStreamCaptureWrongThread = 908,
	hipErrorGraphExecUpdateFailure = 910,
	hipErrorUnknown = 999,
	hipErrorRuntimeMemory = 1052,
	hipErrorRuntimeOther = 1053,
} hipError_t;

/* Flags. */
#define hipStreamDefault		0x00
#define hipStreamNonBlocking		0x01
#define hipEventDefault			0x0
#define hipEventBlockingSync		0x1
#define hipEventDisableTiming		0x2
#define hipEventInterprocess		0x4
#define hipEventReleaseToDevice		0x40000000
#define hipEventReleaseToSystem		0x80000000
#define hipHostMallocDefault		0x0
#define hipHostMallocPortable		0x1
#define hipHostMallocMapped		0x2
#define hipHostMallocWriteCombined	0x4
#define hipHostMallocNumaUser		0x20000000
#define hipHostMallocCoherent		0x40000000
#define hipHostMallocNonCoherent	0x80000000
#define hipHostRegisterDefault		0x0
#define hipHostRegisterPortable		0x1
#define hipHostRegisterMapped		0x2
#define hipHostRegisterIoMemory		0x4
#define hipExtHostRegisterCoarseGrained 0x8
#define hipMemAttachGlobal		0x01
#define hipMemAttachHost		0x02
#define hipMemAttachSingle		0x04
#define hipDeviceMallocDefault		0x0
#define hipDeviceMallocFinegrained	0x1
#define hipMallocSignalMemory		0x2
#define hipDeviceScheduleAuto		0x0
#define hipDeviceScheduleSpin		0x1
#define hipDeviceScheduleYield		0x2
#define hipDeviceScheduleBlockingSync	0x4
#define hipDeviceScheduleMask		0x7
#define hipDeviceMapHost		0x8
#define hipDeviceLmemResizeToMax	0x10
#define hipIpcMemLazyEnablePeerAccess	0x01 /* 0 in the headers of 5.x */
#define hipStreamWaitValueGte		0x0
#define hipStreamWaitValueEq		0x1
#define hipStreamWaitValueAnd		0x2
#define hipStreamWaitValueNor		0x3

/* The numbers differ from CUDA's. Attributes of textures and surfaces are left out. */
typedef enum hipDeviceAttribute_t {
	hipDeviceAttributeEccEnabled = 0,
	hipDeviceAttributeAccessPolicyMaxWindowSize = 1,
	hipDeviceAttributeAsyncEngineCount = 2,
	hipDeviceAttributeCanMapHostMemory = 3,
	hipDeviceAttributeCanUseHostPointerForRegisteredMem = 4,
	hipDeviceAttributeClockRate = 5,
	hipDeviceAttributeComputeMode = 6,
	hipDeviceAttributeComputePreemptionSupported = 7,
	hipDeviceAttributeConcurrentKernels = 8,
	hipDeviceAttributeConcurrentManagedAccess = 9,
	hipDeviceAttributeCooperativeLaunch = 10,
	hipDeviceAttributeCooperativeMultiDeviceLaunch = 11,
	hipDeviceAttributeDeviceOverlap = 12,
	hipDeviceAttributeDirectManagedMemAccessFromHost = 13,
	hipDeviceAttributeIntegrated = 16,
	hipDeviceAttributeKernelExecTimeout = 18,
	hipDeviceAttributeL2CacheSize = 19,
	hipDeviceAttributeComputeCapabilityMajor = 23,
	hipDeviceAttributeManagedMemory = 24,
	hipDeviceAttributeMaxBlocksPerMultiProcessor = 25,
	hipDeviceAttributeMaxBlockDimX = 26,
	hipDeviceAttributeMaxBlockDimY = 27,
	hipDeviceAttributeMaxBlockDimZ = 28,
	hipDeviceAttributeMaxGridDimX = 29,
	hipDeviceAttributeMaxGridDimY = 30,
	hipDeviceAttributeMaxGridDimZ = 31,
	hipDeviceAttributeMaxThreadsPerBlock = 56,
	hipDeviceAttributeMaxThreadsPerMultiProcessor = 57,
	hipDeviceAttributeMaxPitch = 58,
	hipDeviceAttributeMemoryBusWidth = 59,
	hipDeviceAttributeMemoryClockRate = 60,
	hipDeviceAttributeComputeCapabilityMinor = 61,
	hipDeviceAttributeMultiprocessorCount = 63,
	hipDeviceAttributePageableMemoryAccess = 65,
	hipDeviceAttributePageableMemoryAccessUsesHostPageTables = 66,
	hipDeviceAttributePciBusId = 67,
	hipDeviceAttributePciDeviceId = 68,
	hipDeviceAttributePciDomainID = 69,
	hipDeviceAttributePersistingL2CacheMaxSize = 70,
	hipDeviceAttributeMaxRegistersPerBlock = 71,
	hipDeviceAttributeMaxRegistersPerMultiprocessor = 72,
	hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
	hipDeviceAttributeSharedMemPerBlockOptin = 75,
	hipDeviceAttributeSharedMemPerMultiprocessor = 76,
	hipDeviceAttributeStreamPrioritiesSupported = 78,
	hipDeviceAttributeTccDriver = 80,
	hipDeviceAttributeTextureAlignment = 81,
	hipDeviceAttributeTotalConstantMemory = 83,
	hipDeviceAttributeTotalGlobalMem = 84,
	hipDeviceAttributeUnifiedAddressing = 85,
	hipDeviceAttributeWarpSize = 87,
	hipDeviceAttributeMemoryPoolsSupported = 88,
	hipDeviceAttributeVirtualMemoryManagementSupported = 89,
	hipDeviceAttributeHostRegisterSupported = 90,
	hipDeviceAttributeMemoryPoolSupportedHandleTypes = 91,
	hipDeviceAttributeCudaCompatibleEnd = 9999,
	hipDeviceAttributeClockInstructionRate = 10000,
	hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 10002,
	hipDeviceAttributeHdpMemFlushCntl = 10005,
	hipDeviceAttributeHdpRegFlushCntl = 10006,
	hipDeviceAttributeIsLargeBar = 10011,
	hipDeviceAttributeAsicRevision = 10012,
	hipDeviceAttributeCanUseStreamWaitValue = 10013,
	hipDeviceAttributeImageSupport = 10014,
	hipDeviceAttributePhysicalMultiProcessorCount = 10015,
	hipDeviceAttributeFineGrainSupport = 10016,
	hipDeviceAttributeWallClockRate = 10017,
} hipDeviceAttribute_t;

typedef enum hipDeviceP2PAttr {
	hipDevP2PAttrPerformanceRank = 0,
	hipDevP2PAttrAccessSupported,
	hipDevP2PAttrNativeAtomicSupported,
	hipDevP2PAttrHipArrayAccessSupported,
} hipDeviceP2PAttr;

enum hipLimit_t {
	hipLimitStackSize = 0,
	hipLimitPrintfFifoSize = 1,
	hipLimitMallocHeapSize = 2,
};

/* Same numbers as CUDA's CUpointer_attribute. */
typedef enum hipPointer_attribute {
	HIP_POINTER_ATTRIBUTE_CONTEXT = 1,
	HIP_POINTER_ATTRIBUTE_MEMORY_TYPE,
	HIP_POINTER_ATTRIBUTE_DEVICE_POINTER,
	HIP_POINTER_ATTRIBUTE_HOST_POINTER,
	HIP_POINTER_ATTRIBUTE_P2P_TOKENS,
	HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS,
	HIP_POINTER_ATTRIBUTE_BUFFER_ID,
	HIP_POINTER_ATTRIBUTE_IS_MANAGED,
	HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
	HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE,
	HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR,
	HIP_POINTER_ATTRIBUTE_RANGE_SIZE,
	HIP_POINTER_ATTRIBUTE_MAPPED,
	HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
	HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
	HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS,
	HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
} hipPointer_attribute;

/* Since 6.0; see GCR_HIP_5_MEMORY_TYPE_. */
typedef enum hipMemoryType {
	hipMemoryTypeUnregistered = 0,
	hipMemoryTypeHost = 1,
	hipMemoryTypeDevice = 2,
	hipMemoryTypeManaged = 3,
	hipMemoryTypeArray = 10,
	hipMemoryTypeUnified = 11,
} hipMemoryType;

/* The first field is `memoryType` in 5.x. */
typedef struct hipPointerAttribute_t {
	enum hipMemoryType type;
	int device;
	void *devicePointer;
	void *hostPointer;
	int isManaged;
	unsigned int allocationFlags;
} hipPointerAttribute_t;

typedef enum hipMemcpyKind {
	hipMemcpyHostToHost = 0,
	hipMemcpyHostToDevice = 1,
	hipMemcpyDeviceToHost = 2,
	hipMemcpyDeviceToDevice = 3,
	hipMemcpyDefault = 4,
} hipMemcpyKind;

typedef struct hip_Memcpy2D {
	size_t srcXInBytes;
	size_t srcY;
	hipMemoryType srcMemoryType;
	const void *srcHost;
	hipDeviceptr_t srcDevice;
	hipArray_t srcArray;
	size_t srcPitch;
	size_t dstXInBytes;
	size_t dstY;
	hipMemoryType dstMemoryType;
	void *dstHost;
	hipDeviceptr_t dstDevice;
	hipArray_t dstArray;
	size_t dstPitch;
	size_t WidthInBytes;
	size_t Height;
} hip_Memcpy2D;

/* Managed memory. The first six numbers are CUDA's. */
typedef enum hipMemoryAdvise {
	hipMemAdviseSetReadMostly = 1,
	hipMemAdviseUnsetReadMostly = 2,
	hipMemAdviseSetPreferredLocation = 3,
	hipMemAdviseUnsetPreferredLocation = 4,
	hipMemAdviseSetAccessedBy = 5,
	hipMemAdviseUnsetAccessedBy = 6,
	hipMemAdviseSetCoarseGrain = 100,
	hipMemAdviseUnsetCoarseGrain = 101,
} hipMemoryAdvise;

typedef enum hipMemRangeAttribute {
	hipMemRangeAttributeReadMostly = 1,
	hipMemRangeAttributePreferredLocation = 2,
	hipMemRangeAttributeAccessedBy = 3,
	hipMemRangeAttributeLastPrefetchLocation = 4,
	hipMemRangeAttributeCoherencyMode = 100,
} hipMemRangeAttribute;

/* Virtual memory: numbers and layouts are CUDA's. */
typedef enum hipMemLocationType {
	hipMemLocationTypeInvalid = 0,
	hipMemLocationTypeDevice = 1,
} hipMemLocationType;

typedef struct hipMemLocation {
	hipMemLocationType type;
	int id;
} hipMemLocation;

typedef enum hipMemAccessFlags {
	hipMemAccessFlagsProtNone = 0,
	hipMemAccessFlagsProtRead = 1,
	hipMemAccessFlagsProtReadWrite = 3,
} hipMemAccessFlags;

typedef struct hipMemAccessDesc {
	hipMemLocation location;
	hipMemAccessFlags flags;
} hipMemAccessDesc;

typedef enum hipMemAllocationType {
	hipMemAllocationTypeInvalid = 0,
	hipMemAllocationTypePinned = 1,
	hipMemAllocationTypeMax = 0x7fffffff,
} hipMemAllocationType;

typedef enum hipMemAllocationHandleType {
	hipMemHandleTypeNone = 0,
	hipMemHandleTypePosixFileDescriptor = 1,
	hipMemHandleTypeWin32 = 2,
	hipMemHandleTypeWin32Kmt = 4,
} hipMemAllocationHandleType;

typedef enum hipMemAllocationGranularity_flags {
	hipMemAllocationGranularityMinimum = 0,
	hipMemAllocationGranularityRecommended = 1,
} hipMemAllocationGranularity_flags;

/* Stream-ordered memory. */
typedef enum hipMemPoolAttr {
	hipMemPoolReuseFollowEventDependencies = 1,
	hipMemPoolReuseAllowOpportunistic = 2,
	hipMemPoolReuseAllowInternalDependencies = 3,
	hipMemPoolAttrReleaseThreshold = 4,
	hipMemPoolAttrReservedMemCurrent = 5,
	hipMemPoolAttrReservedMemHigh = 6,
	hipMemPoolAttrUsedMemCurrent = 7,
	hipMemPoolAttrUsedMemHigh = 8,
} hipMemPoolAttr;

typedef struct hipMemPoolProps {
	hipMemAllocationType allocType;
	hipMemAllocationHandleType handleTypes;
	hipMemLocation location;
	void *win32SecurityAttributes;
	unsigned char reserved[64]; /* since 6.2 the first 8 bytes are maxSize */
} hipMemPoolProps;

typedef struct hipMemPoolPtrExportData {
	unsigned char reserved[64];
} hipMemPoolPtrExportData;

/* Streams, capture, graphs. */
typedef void (*hipStreamCallback_t)(hipStream_t stream, hipError_t status, void *user_data);
typedef void (*hipHostFn_t)(void *user_data);

typedef enum hipStreamCaptureMode {
	hipStreamCaptureModeGlobal = 0,
	hipStreamCaptureModeThreadLocal,
	hipStreamCaptureModeRelaxed,
} hipStreamCaptureMode;

typedef enum hipStreamCaptureStatus {
	hipStreamCaptureStatusNone = 0,
	hipStreamCaptureStatusActive,
	hipStreamCaptureStatusInvalidated,
} hipStreamCaptureStatus;

/* Since 5.5; 5.2 starts at 1. */
typedef enum hipGraphNodeType {
	hipGraphNodeTypeKernel = 0,
	hipGraphNodeTypeMemcpy = 1,
	hipGraphNodeTypeMemset = 2,
	hipGraphNodeTypeHost = 3,
	hipGraphNodeTypeGraph = 4,
	hipGraphNodeTypeEmpty = 5,
	hipGraphNodeTypeWaitEvent = 6,
	hipGraphNodeTypeEventRecord = 7,
	hipGraphNodeTypeExtSemaphoreSignal = 8,
	hipGraphNodeTypeExtSemaphoreWait = 9,
	hipGraphNodeTypeMemAlloc = 10,
	hipGraphNodeTypeMemFree = 11,
	hipGraphNodeTypeMemcpyFromSymbol = 12,
	hipGraphNodeTypeMemcpyToSymbol = 13,
} hipGraphNodeType;

typedef enum hipGraphInstantiateFlags {
	hipGraphInstantiateFlagAutoFreeOnLaunch = 1,
} hipGraphInstantiateFlags;

/* Kernels. */
#define HIP_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define HIP_LAUNCH_PARAM_BUFFER_SIZE	((void *)0x02)
#define HIP_LAUNCH_PARAM_END		((void *)0x03)

typedef enum hipFuncCache_t {
	hipFuncCachePreferNone,
	hipFuncCachePreferShared,
	hipFuncCachePreferL1,
	hipFuncCachePreferEqual,
} hipFuncCache_t;

typedef enum hipFuncAttribute {
	hipFuncAttributeMaxDynamicSharedMemorySize = 8,
	hipFuncAttributePreferredSharedMemoryCarveout = 9,
	hipFuncAttributeMax = 10,
} hipFuncAttribute;

typedef enum hipFunction_attribute {
	HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
	HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
	HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
	HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
	HIP_FUNC_ATTRIBUTE_NUM_REGS,
	HIP_FUNC_ATTRIBUTE_PTX_VERSION,
	HIP_FUNC_ATTRIBUTE_BINARY_VERSION,
	HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA,
	HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
	HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
	HIP_FUNC_ATTRIBUTE_MAX,
} hipFunction_attribute;

/* Equal to CUDA's numbers only by accident: none of these options is passed on. */
typedef enum hipJitOption {
	hipJitOptionMaxRegisters = 0,
	hipJitOptionNumOptions = 17,
} hipJitOption;

#endif /* GCR_HIP_HEADERS */

#if !GCR_HIP_HEADERS_SINCE(5, 3)

/* `requestedHandleType` is requestedHandleTypes in CUDA; no `reserved` after `usage`. */
typedef struct hipMemAllocationProp {
	hipMemAllocationType type;
	hipMemAllocationHandleType requestedHandleType;
	hipMemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
	} allocFlags;
} hipMemAllocationProp;

#endif

/* ---- definitions missing in older installed headers ---- */

#if GCR_HIP_HEADERS && !GCR_HIP_HEADERS_SINCE(5, 3)
#define hipLimitStackSize ((enum hipLimit_t)0)
#endif

#if GCR_HIP_HEADERS && !GCR_HIP_HEADERS_SINCE(5, 5)
#define hipDeviceAttributeVirtualMemoryManagementSupported ((hipDeviceAttribute_t)89)
#define hipDeviceAttributeWallClockRate			   ((hipDeviceAttribute_t)10017)
#endif

#if GCR_HIP_HEADERS && !GCR_HIP_HEADERS_SINCE(6, 0)
#define hipDeviceAttributeHostRegisterSupported ((hipDeviceAttribute_t)90)
#endif

#if !GCR_HIP_HEADERS_SINCE(6, 2)

#define hipStreamLegacy ((hipStream_t)1)

typedef enum hipDriverProcAddressQueryResult {
	HIP_GET_PROC_ADDRESS_SUCCESS = 0,
	HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
	HIP_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
} hipDriverProcAddressQueryResult;

#endif

#if GCR_HIP_HEADERS && !GCR_HIP_HEADERS_SINCE(6, 2)
#define hipDeviceAttributeMemoryPoolSupportedHandleTypes ((hipDeviceAttribute_t)91)
#endif

/* ---- differences between versions, whatever header is installed ---- */

/* Kinds of memory in 5.x; 6.0 and later use those of hipMemoryType. */
#define GCR_HIP_5_MEMORY_TYPE_HOST	   0
#define GCR_HIP_5_MEMORY_TYPE_DEVICE	   1
#define GCR_HIP_5_MEMORY_TYPE_ARRAY	   2
#define GCR_HIP_5_MEMORY_TYPE_UNIFIED	   3
#define GCR_HIP_5_MEMORY_TYPE_MANAGED	   4
#define GCR_HIP_6_MEMORY_TYPE_UNREGISTERED 0
#define GCR_HIP_6_MEMORY_TYPE_HOST	   1
#define GCR_HIP_6_MEMORY_TYPE_DEVICE	   2
#define GCR_HIP_6_MEMORY_TYPE_MANAGED	   3
#define GCR_HIP_6_MEMORY_TYPE_ARRAY	   10
#define GCR_HIP_6_MEMORY_TYPE_UNIFIED	   11

/*
 * hipDeviceProp_t as filled in by hipGetDevicePropertiesR0600 since 6.0: the fields used here, at
 * their offsets, and the full size.
 */
struct gcr_hip_properties {
	char name[256];
	hipUUID uuid;
	char reserved0[16];
	size_t totalGlobalMem;
	char reserved1[12];
	int warpSize;
	char reserved2[8];
	int maxThreadsPerBlock;
	char reserved3[24];
	int clockRate;
	char reserved4[36];
	int multiProcessorCount;
	char reserved5[192];
	int pciBusID;
	int pciDeviceID;
	int pciDomainID;
	char reserved6[564];
	char gcnArchName[256];
	char reserved7[56];
};

/* The same as filled in by hipGetDeviceProperties in all versions: the layout of 5.x. */
struct gcr_hip_properties_5 {
	char name[256];
	size_t totalGlobalMem;
	char reserved0[12];
	int warpSize;
	char reserved1[116];
	char gcnArchName[256];
	char reserved2[140];
};

typedef hipError_t gcr_hip_get_properties(struct gcr_hip_properties *properties, int device);
typedef hipError_t gcr_hip_get_properties_5(struct gcr_hip_properties_5 *properties, int device);

/* Since 7.0 hipMemcpyHtoD takes a const source, and hipCtxGetApiVersion writes an unsigned. */
#if GCR_HIP_HEADERS && !GCR_HIP_HEADERS_SINCE(7, 0)
typedef void gcr_hip_source;
typedef int gcr_hip_api_version;
#else
typedef const void gcr_hip_source;
typedef unsigned int gcr_hip_api_version;
#endif

/* ---- functions: all, or those missing in an older installed header ---- */

#define GCR_HIP_DECLARE(result, name, arguments) result name arguments;

#if GCR_HIP_HEADERS_SINCE(5, 0)
#define GCR_HIP_FUNCTION_5_0(...)
#else
#define GCR_HIP_FUNCTION_5_0(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(5, 2)
#define GCR_HIP_FUNCTION_5_2(...)
#else
#define GCR_HIP_FUNCTION_5_2(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(5, 3)
#define GCR_HIP_FUNCTION_5_3(...)
#else
#define GCR_HIP_FUNCTION_5_3(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(5, 4)
#define GCR_HIP_FUNCTION_5_4(...)
#else
#define GCR_HIP_FUNCTION_5_4(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(5, 5)
#define GCR_HIP_FUNCTION_5_5(...)
#else
#define GCR_HIP_FUNCTION_5_5(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(5, 6)
#define GCR_HIP_FUNCTION_5_6(...)
#else
#define GCR_HIP_FUNCTION_5_6(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(5, 7)
#define GCR_HIP_FUNCTION_5_7(...)
#else
#define GCR_HIP_FUNCTION_5_7(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(6, 0)
#define GCR_HIP_FUNCTION_6_0(...)
#else
#define GCR_HIP_FUNCTION_6_0(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(6, 1)
#define GCR_HIP_FUNCTION_6_1(...)
#else
#define GCR_HIP_FUNCTION_6_1(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(6, 2)
#define GCR_HIP_FUNCTION_6_2(...)
#else
#define GCR_HIP_FUNCTION_6_2(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(6, 3)
#define GCR_HIP_FUNCTION_6_3(...)
#else
#define GCR_HIP_FUNCTION_6_3(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif
#if GCR_HIP_HEADERS_SINCE(7, 0)
#define GCR_HIP_FUNCTION_7_0(...)
#else
#define GCR_HIP_FUNCTION_7_0(...) GCR_HIP_DECLARE(__VA_ARGS__)
#endif

#define FUNCTION(since, ...) GCR_HIP_FUNCTION_##since(__VA_ARGS__)
#include "backend/rocm/hip_functions.def"
#undef FUNCTION

#endif

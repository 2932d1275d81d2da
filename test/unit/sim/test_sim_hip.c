/* SPDX-License-Identifier: MIT */
/*
 * HIP on the simulator: initialisation, the current device, memory, copies, streams, kernels, and
 * the differences between HIP and CUDA. Facts about the real HIP were read in ROCm/clr (6.2).
 */
#include "test/unit/sim_hip.h"

#include <pthread.h>

/* No call needs an earlier call, and every thread starts with device 0. */
static void *other_thread(void *data)
{
	int device = -1;

	OK(HIP(hipGetDevice)(&device));
	CHECK(device == 0);
	OK(HIP(hipSetDevice)(1));
	return NULL;
}

static void test_device(void)
{
	int device, count, active;
	unsigned flags;
	hipCtx_t context, other;
	pthread_t thread;

	OK(HIP(hipSetDevice)(1)); /* the first call of all */
	OK(HIP(hipGetDevice)(&device));
	CHECK(device == 1);
	OK(HIP(hipGetDeviceCount)(&count));
	CHECK(count == 2);
	RESULT(HIP(hipSetDevice)(2), hipErrorInvalidDevice);
	RESULT(HIP(hipSetDevice)(-1), hipErrorInvalidDevice);
	RESULT(HIP(hipInit)(1), hipErrorInvalidValue);
	OK(HIP(hipInit)(0));
	CHECK(!pthread_create(&thread, NULL, other_thread, NULL));
	CHECK(!pthread_join(thread, NULL));
	OK(HIP(hipGetDevice)(&device));
	CHECK(device == 1);

	/* A context stands for its device; the last call that set a context or a device counts. */
	OK(HIP(hipCtxGetCurrent)(&context));
	OK(HIP(hipDevicePrimaryCtxRetain)(&other, 1));
	CHECK(context == other);
	OK(HIP(hipDevicePrimaryCtxRetain)(&other, 0));
	OK(HIP(hipCtxPushCurrent)(other));
	OK(HIP(hipGetDevice)(&device));
	CHECK(device == 0);
	OK(HIP(hipCtxPopCurrent)(&context));
	CHECK(context == other);
	OK(HIP(hipGetDevice)(&device));
	CHECK(device == 0); /* a pop does not restore the device before */
	RESULT(HIP(hipCtxPopCurrent)(&context), hipErrorInvalidContext);
	RESULT(HIP(hipDevicePrimaryCtxSetFlags)(0, 0), hipErrorContextAlreadyInUse);

	/*
	 * Queries and setters do not activate a device; hipDeviceSynchronize does, and takes
	 * memory.
	 */
	OK(HIP(hipDevicePrimaryCtxGetState)(0, &flags, &active));
	CHECK(!active);
	CHECK(sim_hip_free_bytes() == 64 * MIB);
	OK(HIP(hipDeviceSynchronize)());
	OK(HIP(hipDevicePrimaryCtxGetState)(0, &flags, &active));
	CHECK(active);
	CHECK(sim_hip_free_bytes() < 64 * MIB);
}

static void test_properties(void)
{
	struct gcr_hip_properties properties;
	struct gcr_hip_properties_5 old;
	char text[32];
	hipUUID uuid, second;
	int value, version;

	OK(HIP(hipDeviceGetUuid)(&uuid, 0));
	OK(HIP(hipDeviceGetUuid)(&second, 1));
	CHECK(memcmp(&uuid, &second, sizeof(uuid)) != 0);
	for (size_t i = 0; i < sizeof(uuid.bytes); i++)
		CHECK(strchr("0123456789abcdef", uuid.bytes[i]) && uuid.bytes[i]);
	OK(((hipError_t(*)(struct gcr_hip_properties *, int))sim_hip_symbol(
		"hipGetDevicePropertiesR0600"))(&properties, 1));
	CHECK(!memcmp(&properties.uuid, &second, sizeof(second)));
	CHECK(properties.totalGlobalMem == 64 * MIB && properties.warpSize == 64);
	CHECK(!strcmp(properties.gcnArchName, "gfx90a:sramecc+:xnack-"));
	OK(((hipError_t(*)(struct gcr_hip_properties_5 *, int))sim_hip_symbol(
		"hipGetDeviceProperties"))(&old, 1));
	CHECK(old.totalGlobalMem == 64 * MIB && !strcmp(old.gcnArchName, "gfx90a:sramecc+:xnack-"));

	OK(HIP(hipDeviceGetPCIBusId)(text, sizeof(text), 1));
	OK(HIP(hipDeviceGetByPCIBusId)(&value, text));
	CHECK(value == 1);
	RESULT(HIP(hipDeviceGetPCIBusId)(text, 12, 1),
	       hipErrorInvalidValue); /* 12 characters need 13 bytes */
	RESULT(HIP(hipDeviceGetByPCIBusId)(&value, "0000:01:00.0"), hipErrorInvalidValue);
	OK(HIP(hipDeviceGetAttribute)(&value, hipDeviceAttributeVirtualMemoryManagementSupported,
				      0));
	CHECK(value == 1);
	RESULT(HIP(hipDeviceGetAttribute)(&value, (hipDeviceAttribute_t)5000, 0),
	       hipErrorInvalidValue);
	OK(HIP(hipDeviceComputeCapability)(&value, &version, 0));
	CHECK(value == 9 && version == 0);

	OK(HIP(hipRuntimeGetVersion)(&version));
	CHECK(version / 100000 == 604);
	setenv("GPUCR_SIM_HIP_VERSION", "7.1", 1);
	OK(HIP(hipRuntimeGetVersion)(&version));
	CHECK(version == 70100000);
	unsetenv("GPUCR_SIM_HIP_VERSION");
}

/* Every call sets the last error, a successful call too. */
static void test_errors(void)
{
	const char *text;
	int device;

	RESULT(HIP(hipSetDevice)(7), hipErrorInvalidDevice);
	RESULT(HIP(hipPeekAtLastError)(), hipErrorInvalidDevice);
	RESULT(HIP(hipGetLastError)(), hipErrorInvalidDevice);
	OK(HIP(hipGetLastError)());
	RESULT(HIP(hipSetDevice)(7), hipErrorInvalidDevice);
	OK(HIP(hipGetDevice)(&device));
	OK(HIP(hipGetLastError)());
	CHECK(!strcmp(HIP(hipGetErrorName)(hipErrorInvalidDevice), "hipErrorInvalidDevice"));
	CHECK(!strcmp(HIP(hipGetErrorName)(2), "hipErrorOutOfMemory"));
	CHECK(!strcmp(HIP(hipGetErrorName)(54321), "hipErrorUnknown"));
	RESULT(HIP(hipDrvGetErrorName)(54321, &text), hipErrorInvalidValue);
	OK(HIP(hipDrvGetErrorName)(hipErrorNotReady, &text));
	CHECK(!strcmp(text, "hipErrorNotReady"));
}

static void test_memory(void)
{
	hipPointerAttribute_t attributes;
	unsigned char bool_bytes[4] = {9, 9, 9, 9};
	unsigned int bytes32[2] = {7, 7}, flags;
	void *memory, *host, *pointer;
	hipDeviceptr_t base;
	size_t size;
	int on_stack;

	OK(HIP(hipFree)(NULL));
	OK(HIP(hipHostFree)(NULL));
	pointer = &on_stack;
	OK(HIP(hipMalloc)(&pointer, 0));
	CHECK(!pointer);
	RESULT(HIP(hipMalloc)(NULL, 4), hipErrorInvalidValue);
	RESULT(HIP(hipMalloc)(&pointer, 1ull << 40), hipErrorOutOfMemory);
	CHECK(!pointer);
	RESULT(HIP(hipFree)(&on_stack), hipErrorInvalidValue);

	OK(HIP(hipMalloc)(&memory, 3 * MIB));
	RESULT(HIP(hipFree)((char *)memory + 4096), hipErrorInvalidValue);
	OK(HIP(hipMemGetAddressRange)(&base, &size, (char *)memory + MIB));
	CHECK(base == memory && size == 3 * MIB);
	RESULT(HIP(hipMemGetAddressRange)(&base, &size, &on_stack), hipErrorNotFound);
	OK(HIP(hipPointerGetAttributes)(&attributes, (char *)memory + 5));
	CHECK(attributes.type == hipMemoryTypeDevice && attributes.device == 0);
	CHECK(attributes.devicePointer == (char *)memory + 5 && !attributes.hostPointer);
	/* For this call an unknown pointer is not an error. */
	OK(HIP(hipPointerGetAttributes)(&attributes, &on_stack));
	CHECK(attributes.type == hipMemoryTypeUnregistered &&
	      attributes.device == hipInvalidDeviceId);

	/* The call writes as many bytes as the real HIP does. */
	OK(HIP(hipPointerGetAttribute)(bytes32, HIP_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
	CHECK(bytes32[0] == 3 * MIB && bytes32[1] == 7);
	OK(HIP(hipPointerGetAttribute)(bool_bytes, HIP_POINTER_ATTRIBUTE_IS_MANAGED, memory));
	CHECK(bool_bytes[0] == 0 && bool_bytes[1] == 9);
	RESULT(HIP(hipPointerGetAttribute)(bytes32, HIP_POINTER_ATTRIBUTE_CONTEXT, memory),
	       hipErrorNotSupported);
	RESULT(HIP(hipPointerGetAttribute)(bytes32, HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory),
	       hipErrorNotSupported);
	RESULT(HIP(hipPointerGetAttribute)(&on_stack, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
					   &on_stack),
	       hipErrorInvalidValue);
	CHECK(on_stack == -2);
	OK(HIP(hipFree)(memory));

	/* Device and host memory are one kind of object: either call frees either. */
	OK(HIP(hipHostMalloc)(&host, MIB, hipHostMallocNonCoherent));
	OK(HIP(hipHostGetFlags)(&flags, host));
	CHECK(flags == hipHostMallocNonCoherent);
	OK(HIP(hipPointerGetAttributes)(&attributes, host));
	CHECK(attributes.type == hipMemoryTypeHost && attributes.hostPointer == host);
	OK(HIP(hipFree)(host));
	OK(HIP(hipMalloc)(&memory, MIB));
	OK(HIP(hipHostFree)(memory));
	RESULT(HIP(hipHostMalloc)(&host, MIB, hipHostMallocCoherent | hipHostMallocNonCoherent),
	       hipErrorInvalidValue);

	OK(HIP(hipMallocManaged)(&memory, MIB, hipMemAttachGlobal));
	OK(HIP(hipPointerGetAttributes)(&attributes, memory));
	CHECK(attributes.type == hipMemoryTypeManaged && attributes.isManaged);
	*(volatile int *)memory = 5;
	CHECK(sim_hip_word(memory) == 5);
	OK(HIP(hipFree)(memory));

	/* hipHostGetFlags does not report the flags of registered memory. */
	host = malloc(8192);
	OK(HIP(hipHostRegister)(host, 8192, hipHostRegisterMapped));
	RESULT(HIP(hipHostGetFlags)(&flags, host), hipErrorInvalidValue);
	OK(HIP(hipHostGetDevicePointer)(&pointer, (char *)host + 8, 0));
	CHECK(pointer == (char *)host + 8);
	OK(HIP(hipHostUnregister)(host));
	RESULT(HIP(hipHostUnregister)(host), hipErrorHostMemoryNotRegistered);
	free(host);
}

static void test_copies(void)
{
	unsigned words[16], back[16];
	hipStream_t stream;
	void *memory, *second;

	for (unsigned i = 0; i < 16; i++)
		words[i] = 100 + i;
	OK(HIP(hipStreamCreate)(&stream));
	OK(HIP(hipMalloc)(&memory, MIB));
	OK(HIP(hipMalloc)(&second, MIB));
	OK(HIP(hipMemcpy)(memory, words, sizeof(words), hipMemcpyHostToDevice));
	OK(HIP(hipMemcpyDtoDAsync)(second, memory, sizeof(words), stream));
	OK(HIP(hipMemcpyAsync)(back, second, sizeof(back), hipMemcpyDeviceToHost, stream));
	OK(HIP(hipStreamSynchronize)(stream));
	CHECK(!memcmp(words, back, sizeof(words)));
	OK(HIP(hipMemcpyHtoD)((char *)memory + 8, words, 4));
	CHECK(sim_hip_word((char *)memory + 8) == 100);
	RESULT(HIP(hipMemcpy)(memory, words, 4, (hipMemcpyKind)9), hipErrorInvalidMemcpyDirection);
	RESULT(HIP(hipMemcpy)(memory, NULL, 4, hipMemcpyDefault), hipErrorInvalidValue);
	OK(HIP(hipMemcpy)(memory, NULL, 0, hipMemcpyDefault)); /* nothing to do */
	RESULT(HIP(hipMemcpy)((char *)memory + MIB - 4, words, 2 * MIB, hipMemcpyDefault),
	       hipErrorInvalidValue);

	OK(HIP(hipMemset)(memory, 0x11, 64));
	OK(HIP(hipMemsetD32)((char *)memory + 4, 0x22222222, 1));
	CHECK(sim_hip_word(memory) == 0x11111111);
	CHECK(sim_hip_word((char *)memory + 4) == 0x22222222);
	RESULT(HIP(hipMemset)(words, 0, 4), hipErrorInvalidValue);
	OK(HIP(hipMemset2D)(memory, 16, 0x33, 4, 2));
	CHECK(sim_hip_word((char *)memory + 16) == 0x33333333);
	CHECK(sim_hip_word((char *)memory + 20) == 0x11111111);
	OK(HIP(hipMemcpy2D)(second, 4, memory, 16, 4, 2, hipMemcpyDeviceToDevice));
	CHECK(sim_hip_word((char *)second + 4) == 0x33333333);
	OK(HIP(hipFree)(memory));
	OK(HIP(hipFree)(second));
	OK(HIP(hipStreamDestroy)(stream));
	RESULT(HIP(hipMemcpyAsync)(words, back, 4, hipMemcpyDefault, stream),
	       hipErrorContextIsDestroyed);
}

static void callback(hipStream_t stream, hipError_t status, void *data)
{
	*(int *)data += status == hipSuccess;
}

static void function(void *data)
{
	++*(int *)data;
}

static void test_streams(void)
{
	hipStream_t stream, priority_stream;
	hipEvent_t event, second, of_other;
	int priority, calls = 0;
	unsigned flags;
	float milliseconds;
	void *flag;

	RESULT(HIP(hipStreamDestroy)(NULL), hipErrorInvalidHandle);
	RESULT(HIP(hipStreamGetFlags)(NULL, &flags), hipErrorInvalidValue);
	RESULT(HIP(hipStreamCreateWithFlags)(&stream, 2), hipErrorInvalidValue);
	OK(HIP(hipStreamCreateWithFlags)(&stream, hipStreamNonBlocking));
	OK(HIP(hipStreamGetFlags)(stream, &flags));
	CHECK(flags == hipStreamNonBlocking);
	/* Priorities range from 1, the lowest, to -1. */
	OK(HIP(hipStreamCreateWithPriority)(&priority_stream, hipStreamDefault, 5));
	OK(HIP(hipStreamGetPriority)(priority_stream, &priority));
	CHECK(priority == 1);
	OK(HIP(hipStreamDestroy)(priority_stream));
	RESULT(HIP(hipStreamQuery)(priority_stream), hipErrorContextIsDestroyed);

	OK(HIP(hipHostMalloc)(&flag, 4, 0));
	*(volatile unsigned *)flag = 0;
	OK(HIP(hipEventCreate)(&event));
	OK(HIP(hipEventCreateWithFlags)(&second, hipEventReleaseToSystem));
	RESULT(HIP(hipEventCreateWithFlags)(&of_other,
					    hipEventReleaseToSystem | hipEventReleaseToDevice),
	       hipErrorInvalidValue);
	RESULT(HIP(hipEventCreateWithFlags)(&of_other, hipEventInterprocess), hipErrorInvalidValue);
	OK(HIP(hipEventQuery)(event)); /* never recorded */
	RESULT(HIP(hipEventElapsedTime)(&milliseconds, event, second), hipErrorInvalidHandle);
	OK(HIP(hipEventRecord)(event, stream));
	/* Only the masked bits are compared. */
	OK(HIP(hipStreamWaitValue32)(stream, flag, 0x10, hipStreamWaitValueEq, 0xf0));
	OK(HIP(hipStreamAddCallback)(stream, callback, &calls, 0));
	OK(HIP(hipLaunchHostFunc)(stream, function, &calls));
	OK(HIP(hipEventRecord)(second, stream));
	RESULT(HIP(hipEventQuery)(second), hipErrorNotReady);
	RESULT(HIP(hipStreamQuery)(stream), hipErrorNotReady);
	__atomic_store_n((unsigned *)flag, 0x9000f, __ATOMIC_RELEASE);
	RESULT(HIP(hipEventQuery)(second), hipErrorNotReady);
	__atomic_store_n((unsigned *)flag, 0x1f, __ATOMIC_RELEASE);
	OK(HIP(hipEventSynchronize)(second));
	CHECK(calls == 2);
	OK(HIP(hipEventElapsedTime)(&milliseconds, event, second));
	CHECK(milliseconds > 0);
	RESULT(HIP(hipStreamWaitEvent)(stream, event, 1), hipErrorInvalidValue);
	OK(HIP(hipStreamWaitEvent)(stream, event, 0));
	RESULT(HIP(hipStreamWaitEvent)(stream, NULL, 0), hipErrorInvalidHandle);

	/* An event belongs to the device on which it was created. */
	OK(HIP(hipSetDevice)(1));
	OK(HIP(hipEventCreate)(&of_other));
	OK(HIP(hipSetDevice)(0));
	RESULT(HIP(hipEventRecord)(of_other, stream), hipErrorInvalidHandle);
	OK(HIP(hipEventDestroy)(of_other));
	RESULT(HIP(hipEventDestroy)(of_other), hipErrorContextIsDestroyed);
	RESULT(HIP(hipEventDestroy)(NULL), hipErrorInvalidHandle);
	OK(HIP(hipEventDestroy)(event));
	OK(HIP(hipEventDestroy)(second));
	OK(HIP(hipStreamDestroy)(stream));
	OK(HIP(hipFree)(flag));
}

static void test_launch(void)
{
	unsigned seed = 5;
	unsigned long long words = 1000;
	unsigned char packed[20];
	size_t packed_bytes = sizeof(packed);
	void *memory, *params[] = {&memory, &words, &seed};
	void *extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, packed, HIP_LAUNCH_PARAM_BUFFER_SIZE,
			 &packed_bytes, HIP_LAUNCH_PARAM_END};
	hipFunction_t fill = sim_hip_kernel("gpucr_fill"), none;
	hipModule_t module;

	OK(HIP(hipMalloc)(&memory, 4096));
	OK(sim_hip_launch(fill, NULL, params));
	OK(HIP(hipDeviceSynchronize)());
	CHECK(sim_hip_word(memory) == 5 && sim_hip_word((char *)memory + 4) == (5 ^ 2654435761u));
	/* The value that ends the list is 3, not 0. */
	seed = 6;
	memcpy(packed, &memory, 8);
	memcpy(packed + 8, &words, 8);
	memcpy(packed + 16, &seed, 4);
	OK(HIP(hipModuleLaunchKernel)(fill, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
	CHECK(sim_hip_word(memory) == 6);
	extra[4] = NULL;
	RESULT(HIP(hipModuleLaunchKernel)(fill, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, extra),
	       hipErrorInvalidValue);
	RESULT(HIP(hipModuleLaunchKernel)(fill, 0, 1, 1, 64, 1, 1, 0, NULL, params, NULL),
	       hipErrorInvalidValue);
	RESULT(HIP(hipModuleLaunchKernel)(fill, 1, 1, 1, 0, 1, 1, 0, NULL, params, NULL),
	       hipErrorInvalidConfiguration);
	RESULT(HIP(hipModuleLaunchKernel)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
	       hipErrorInvalidImage);
	OK(HIP(hipModuleLoadData)(&module, "gpucrfs simulated code\nkernel gpucr_add\n"));
	RESULT(HIP(hipModuleGetFunction)(&none, module, "gpucr_fill"), hipErrorNotFound);
	OK(HIP(hipModuleUnload)(module));
	RESULT(HIP(hipModuleLoadData)(&module, "something else\n"), hipErrorNoBinaryForGpu);
	OK(HIP(hipFree)(memory));
}

static void test_capture(void)
{
	hipStreamCaptureStatus status;
	hipStream_t stream;
	hipGraphExec_t exec;
	hipGraph_t graph;
	size_t nodes = 0;
	void *memory;

	OK(HIP(hipMalloc)(&memory, 4096));
	OK(HIP(hipStreamCreate)(&stream));
	OK(HIP(hipStreamBeginCapture)(stream, hipStreamCaptureModeRelaxed));
	OK(HIP(hipMemsetAsync)(memory, 0x77, 4096, stream));
	OK(HIP(hipStreamEndCapture)(stream, &graph));
	OK(HIP(hipGraphGetNodes)(graph, NULL, &nodes));
	CHECK(nodes == 1);
	OK(HIP(hipGraphInstantiate)(&exec, graph, NULL, NULL, 0));
	OK(HIP(hipMemset)(memory, 0, 4096));
	OK(HIP(hipGraphLaunch)(exec, stream));
	OK(HIP(hipStreamSynchronize)(stream));
	CHECK(sim_hip_word(memory) == 0x77777777);
	OK(HIP(hipGraphExecDestroy)(exec));
	OK(HIP(hipGraphDestroy)(graph));

	/* A synchronous copy invalidates every capture, whatever its mode, with error 906. */
	OK(HIP(hipStreamBeginCapture)(stream, hipStreamCaptureModeRelaxed));
	RESULT(HIP(hipMemset)(memory, 0, 4096), hipErrorStreamCaptureImplicit);
	OK(HIP(hipStreamIsCapturing)(stream, &status));
	CHECK(status == hipStreamCaptureStatusInvalidated);
	RESULT(HIP(hipStreamEndCapture)(stream, &graph), hipErrorStreamCaptureInvalidated);
	/* A wait for the device does so too, with error 900. */
	OK(HIP(hipStreamBeginCapture)(stream, hipStreamCaptureModeRelaxed));
	RESULT(HIP(hipDeviceSynchronize)(), hipErrorStreamCaptureUnsupported);
	RESULT(HIP(hipStreamEndCapture)(stream, &graph), hipErrorStreamCaptureInvalidated);
	/* Allocating and freeing is forbidden unless the mode is relaxed. */
	OK(HIP(hipStreamBeginCapture)(stream, hipStreamCaptureModeGlobal));
	RESULT(HIP(hipFree)(memory), hipErrorStreamCaptureUnsupported);
	RESULT(HIP(hipStreamEndCapture)(stream, &graph), hipErrorStreamCaptureInvalidated);
	OK(HIP(hipStreamDestroy)(stream));
	OK(HIP(hipFree)(memory));
}

static void test_pools(void)
{
	hipMemAccessDesc access = {.location = {.type = hipMemLocationTypeDevice, .id = 1},
				   .flags = hipMemAccessFlagsProtNone};
	hipMemPoolProps props = {.allocType = hipMemAllocationTypePinned,
				 .location = {.type = hipMemLocationTypeDevice}};
	hipMemPool_t pool, other;
	hipStream_t stream;
	void *memory;

	OK(HIP(hipStreamCreate)(&stream));
	OK(HIP(hipMallocAsync)(&memory, 0, stream));
	CHECK(!memory);
	RESULT(HIP(hipFreeAsync)(NULL, stream), hipErrorInvalidValue);
	RESULT(HIP(hipMallocAsync)(&memory, 4096, (hipStream_t)&props), hipErrorInvalidHandle);
	OK(HIP(hipMallocAsync)(&memory, 4096, stream));
	OK(HIP(hipMemsetAsync)(memory, 1, 4096, stream));
	OK(HIP(hipFreeAsync)(memory, stream));
	/* hipFreeAsync frees memory of no pool at once; hipFree also frees memory of a pool. */
	OK(HIP(hipMalloc)(&memory, 4096));
	OK(HIP(hipFreeAsync)(memory, stream));
	RESULT(HIP(hipFree)(memory), hipErrorInvalidValue);
	OK(HIP(hipMallocAsync)(&memory, 4096, stream));
	OK(HIP(hipFree)(memory));

	OK(HIP(hipMemPoolCreate)(&pool, &props));
	RESULT(HIP(hipMemPoolSetAccess)(pool, &access, 1), hipErrorInvalidDevice);
	OK(HIP(hipDeviceGetDefaultMemPool)(&other, 0));
	RESULT(HIP(hipMemPoolDestroy)(other), hipErrorInvalidValue);
	RESULT(HIP(hipDeviceSetMemPool)(1, pool), hipErrorInvalidDevice);
	OK(HIP(hipMallocFromPoolAsync)(&memory, 4096, pool, stream));
	OK(HIP(hipFreeAsync)(memory, stream));
	OK(HIP(hipMemPoolDestroy)(pool));
	OK(HIP(hipStreamDestroy)(stream));
}

static void test_peers(void)
{
	unsigned seed = 3;
	unsigned long long words = 8;
	void *memory, *params[] = {&memory, &words, &seed};
	int can;

	OK(HIP(hipDeviceCanAccessPeer)(&can, 0, 1));
	CHECK(can);
	RESULT(HIP(hipDeviceDisablePeerAccess)(1), hipErrorPeerAccessNotEnabled);
	RESULT(HIP(hipDeviceEnablePeerAccess)(0, 0), hipErrorInvalidDevice);
	RESULT(HIP(hipDeviceEnablePeerAccess)(1, 1), hipErrorInvalidValue);
	OK(HIP(hipDeviceEnablePeerAccess)(1, 0));
	RESULT(HIP(hipDeviceEnablePeerAccess)(1, 0), hipErrorPeerAccessAlreadyEnabled);
	OK(HIP(hipSetDevice)(1));
	OK(HIP(hipMalloc)(&memory, 4096));
	OK(HIP(hipSetDevice)(0));
	OK(sim_hip_launch(sim_hip_kernel("gpucr_fill"), NULL, params));
	CHECK(sim_hip_word(memory) == 3);
	OK(HIP(hipMemcpyPeer)(memory, 1, (char *)memory + 4, 1, 4));
	OK(HIP(hipFree)(memory));
}

static void test_proc_address(void)
{
	hipDriverProcAddressQueryResult status;
	void *address;

	OK(HIP(hipGetProcAddress)("hipMemCreate", &address, 602, 0, &status));
	CHECK(address == sim_hip_symbol("hipMemCreate") && status == HIP_GET_PROC_ADDRESS_SUCCESS);
	OK(HIP(hipGetProcAddress)("hipGetDeviceProperties", &address, 602, 0, NULL));
	CHECK(address == sim_hip_symbol("hipGetDevicePropertiesR0600"));
	RESULT(HIP(hipGetProcAddress)("cuMemCreate", &address, 602, 0, &status),
	       hipErrorInvalidValue);
	CHECK(!address && status == HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

/*
 * A rule may name HIP's function or the CUDA function behind it; `*` stands for HIP's functions
 * only.
 */
static void test_faults(void)
{
	char path[128], log[256] = "";
	void *memory;
	int fd;

	sim_set_faults("hipMalloc error=hipErrorOutOfMemory times=1");
	RESULT(HIP(hipMalloc)(&memory, 4096), hipErrorOutOfMemory);
	OK(HIP(hipMalloc)(&memory, 4096));
	sim_set_faults("cuMemFree error=999 times=1");
	RESULT(HIP(hipFree)(memory), hipErrorUnknown);
	snprintf(path, sizeof(path), "%s/faults.log", sim_state_directory);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	sim_set_faults("* delay_ms=1");
	OK(HIP(hipFree)(memory));
	sim_set_faults(NULL);
	CHECK(read(fd, log, sizeof(log) - 1) > 0);
	CHECK(strstr(log, " hipFree\n") && !strstr(log, " cuMem"));
	close(fd);
}

/* HIP and CUDA in one process, each with its own devices and memory. */
static void test_beside_cuda(void)
{
	CUdeviceptr pointer;
	void *memory;
	int count;

	setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	sim_context();
	unsetenv("CUDA_VISIBLE_DEVICES");
	OK(CU(cuDeviceGetCount)(&count));
	CHECK(count == 1);
	OK(HIP(hipGetDeviceCount)(&count));
	CHECK(count == 2);
	OK(CU(cuMemAlloc_v2)(&pointer, 4096));
	OK(HIP(hipMalloc)(&memory, 4096));
	CHECK((CUdeviceptr)memory != pointer);
	RESULT(HIP(hipFree)((void *)pointer), hipErrorInvalidValue);
	RESULT(CU(cuMemFree_v2)((CUdeviceptr)memory), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemFree_v2)(pointer));
	OK(HIP(hipFree)(memory));
}

int main(void)
{
	sim_hip_begin("2", "64M");
	test_device();
	test_properties();
	test_errors();
	test_memory();
	test_copies();
	test_streams();
	test_launch();
	test_capture();
	test_pools();
	test_peers();
	test_proc_address();
	test_faults();
	test_beside_cuda();
	return 0;
}

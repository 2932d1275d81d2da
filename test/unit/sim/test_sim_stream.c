/* SPDX-License-Identifier: MIT */
/* Streams, events, capture, kernels and pools of the simulator. */
#include "test/unit/sim.h"

static uint64_t expected_checksum(const uint32_t *words, uint64_t count)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < count; i++)
		sum += ((uint64_t)words[i] + 1) * (2 * i + 1);
	return sum;
}

static void test_kernels(void)
{
	enum { WORDS = 1000 };
	static uint32_t words[WORDS];
	CUdeviceptr data, result, address;
	uint64_t count = WORDS, first = 10, some = 5, sum = 0;
	uint32_t seed = 7, value = 3;
	void *fill[] = {&data, &count, &seed}, *checksum[] = {&data, &count, &result};
	struct {
		uint64_t pointer, first, count;
		uint32_t value;
	} packed;
	size_t packed_size = sizeof(packed), size;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &packed_size, CU_LAUNCH_PARAM_END};
	CUfunction add = sim_kernel("gpucr_add"), none;
	CUmodule module;

	OK(CU(cuMemAlloc_v2)(&data, sizeof(words)));
	OK(CU(cuMemAlloc_v2)(&result, 8));
	OK(CU(cuMemsetD8_v2)(result, 0, 8));
	OK(sim_launch(sim_kernel("gpucr_fill"), NULL, fill));
	packed.pointer = data;
	packed.first = first;
	packed.count = some;
	packed.value = value;
	OK(CU(cuLaunchKernel)(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	OK(sim_launch(sim_kernel("gpucr_checksum"), NULL, checksum));
	OK(CU(cuMemcpyDtoH_v2)(words, data, sizeof(words)));
	OK(CU(cuMemcpyDtoH_v2)(&sum, result, sizeof(sum)));
	for (uint32_t i = 0; i < WORDS; i++)
		CHECK(words[i] ==
		      (seed ^ i * 2654435761u) + (i >= first && i < first + some ? value : 0));
	CHECK(sum == expected_checksum(words, WORDS));

	OK(CU(cuModuleLoadData)(&module, sim_ptx));
	RESULT(CU(cuModuleGetFunction)(&none, module, "gpucr_fil"), CUDA_ERROR_NOT_FOUND);
	RESULT(CU(cuModuleGetFunction)(&none, module, "other"), CUDA_ERROR_NOT_FOUND);
	OK(CU(cuModuleGetGlobal_v2)(&address, &size, module, "table"));
	CHECK(size == 64);
	OK(CU(cuMemsetD8_v2)(address, 1, 64));
	RESULT(CU(cuMemFree_v2)(address), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuModuleUnload)(module));
	RESULT(CU(cuModuleLoadData)(&module, "no ptx"), CUDA_ERROR_INVALID_PTX);
	OK(CU(cuMemFree_v2)(data));
	OK(CU(cuMemFree_v2)(result));
}

static void count_call(void *data)
{
	int device;

	/* The driver may not be called from a host function. */
	if (CU(cuCtxGetDevice)(&device) == CUDA_ERROR_NOT_PERMITTED)
		__atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST);
}

static void test_order(void)
{
	CUdeviceptr flag, data;
	CUstream a, b, blocking;
	CUevent event, start, end;
	void *spin[] = {&flag};
	int calls = 0;
	float ms;

	OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamCreateWithPriority)(&b, CU_STREAM_NON_BLOCKING, -2));
	OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
	OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
	OK(CU(cuEventCreate)(&start, CU_EVENT_DEFAULT));
	OK(CU(cuEventCreate)(&end, CU_EVENT_DEFAULT));
	OK(CU(cuMemAlloc_v2)(&flag, 4));
	OK(CU(cuMemAlloc_v2)(&data, 4));
	OK(CU(cuMemsetD32_v2)(flag, 0, 1));
	OK(CU(cuMemsetD32_v2)(data, 1, 1));
	OK(CU(cuCtxSynchronize)());
	OK(CU(cuEventQuery)(event));

	/* Stream b waits for a's kernel; an unrelated stream does not. */
	OK(CU(cuEventRecord)(start, a));
	OK(sim_launch(sim_kernel("gpucr_spin"), a, spin));
	OK(CU(cuEventRecord)(event, a));
	OK(CU(cuStreamWaitEvent)(b, event, 0));
	OK(CU(cuMemsetD32Async)(data, 2, 1, b));
	OK(CU(cuLaunchHostFunc)(b, count_call, &calls));
	RESULT(CU(cuStreamQuery)(a), CUDA_ERROR_NOT_READY);
	RESULT(CU(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
	RESULT(CU(cuStreamQuery)(b), CUDA_ERROR_NOT_READY);
	CHECK(sim_word(data) == 1);
	/* Unmapping other memory does not wait for the kernel. */
	{
		CUmemAllocationProp prop = sim_prop();
		CUmemGenericAllocationHandle handle;
		CUdeviceptr mapped;

		OK(CU(cuMemCreate)(&handle, 2 * MIB, &prop, 0));
		mapped = sim_map(handle, 2 * MIB);
		OK(CU(cuMemUnmap)(mapped, 2 * MIB));
		OK(CU(cuMemRelease)(handle));
	}
	OK(CU(cuMemsetD32_v2)(flag, 1, 1));
	OK(CU(cuStreamSynchronize)(b));
	OK(CU(cuEventRecord)(end, a));
	OK(CU(cuEventSynchronize)(end));
	OK(CU(cuEventElapsedTime_v2)(&ms, start, end));
	CHECK(ms > 0);
	CHECK(calls == 1);
	CHECK(sim_word(data) == 2);

	/* The legacy default stream waits for blocking streams, and they wait for it. */
	OK(CU(cuMemsetD32_v2)(flag, 0, 1));
	OK(CU(cuCtxSynchronize)());
	OK(sim_launch(sim_kernel("gpucr_spin"), blocking, spin));
	OK(CU(cuMemsetD32_v2)(data, 3, 1));
	RESULT(CU(cuStreamQuery)(NULL), CUDA_ERROR_NOT_READY);
	OK(CU(cuStreamQuery)(a));
	RESULT(((__typeof__(cuStreamQuery) *)sim_symbol("cuStreamQuery_ptsz"))(NULL), CUDA_SUCCESS);
	OK(CU(cuStreamWriteValue32_v2)(a, flag, 1, 0));
	OK(CU(cuStreamSynchronize)(NULL));
	CHECK(sim_word(data) == 3);

	RESULT(CU(cuStreamQuery)((CUstream)0x1234), CUDA_ERROR_INVALID_HANDLE);
	OK(CU(cuStreamDestroy_v2)(a));
	RESULT(CU(cuStreamQuery)(a), CUDA_ERROR_INVALID_HANDLE);
	OK(CU(cuStreamDestroy_v2)(b));
	OK(CU(cuStreamDestroy_v2)(blocking));
	OK(CU(cuEventDestroy_v2)(event));
	OK(CU(cuEventDestroy_v2)(start));
	OK(CU(cuEventDestroy_v2)(end));
	OK(CU(cuMemFree_v2)(flag));
	OK(CU(cuMemFree_v2)(data));
}

static void test_capture(void)
{
	CUstreamCaptureStatus status;
	CUstream origin, side;
	CUevent fork_event, join_event;
	CUdeviceptr data, other;
	CUgraphExec exec;
	CUgraph graph;
	uint64_t first = 0, count = 256;
	uint32_t value = 1;
	void *add[] = {&data, &first, &count, &value};
	size_t nodes = 0;

	OK(CU(cuStreamCreate)(&origin, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamCreate)(&side, CU_STREAM_NON_BLOCKING));
	OK(CU(cuEventCreate)(&fork_event, CU_EVENT_DISABLE_TIMING));
	OK(CU(cuEventCreate)(&join_event, CU_EVENT_DISABLE_TIMING));
	OK(CU(cuMemAlloc_v2)(&data, 1024));
	OK(CU(cuMemsetD32_v2)(data, 5, 256));
	OK(CU(cuCtxSynchronize)());

	OK(CU(cuStreamBeginCapture_v2)(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(sim_launch(sim_kernel("gpucr_add"), origin, add));
	OK(CU(cuEventRecord)(fork_event, origin));
	OK(CU(cuStreamWaitEvent)(side, fork_event, 0));
	OK(sim_launch(sim_kernel("gpucr_add"), side, add));
	OK(CU(cuStreamIsCapturing)(side, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(CU(cuEventRecord)(join_event, side));
	OK(CU(cuStreamWaitEvent)(origin, join_event, 0));
	RESULT(CU(cuEventQuery)(join_event), CUDA_ERROR_CAPTURED_EVENT);
	OK(CU(cuStreamEndCapture)(origin, &graph));
	OK(CU(cuStreamIsCapturing)(side, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(CU(cuGraphGetNodes)(graph, NULL, &nodes));
	CHECK(nodes == 2);
	CHECK(sim_word(data) == 5); /* the captured work has not run */
	OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
	OK(CU(cuGraphDestroy)(graph));
	OK(CU(cuGraphLaunch)(exec, origin));
	OK(CU(cuGraphLaunch)(exec, origin));
	OK(CU(cuGraphExecDestroy)(exec));
	OK(CU(cuStreamSynchronize)(origin));
	CHECK(sim_word(data) == 9);

	/* A call that a capture forbids invalidates the capture. */
	OK(CU(cuStreamBeginCapture_v2)(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	RESULT(CU(cuStreamBeginCapture_v2)(origin, CU_STREAM_CAPTURE_MODE_GLOBAL),
	       CUDA_ERROR_ILLEGAL_STATE);
	RESULT(CU(cuMemAlloc_v2)(&other, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	OK(CU(cuStreamIsCapturing)(origin, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	RESULT(CU(cuStreamEndCapture)(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(!graph);
	OK(CU(cuStreamBeginCapture_v2)(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(CU(cuMemAlloc_v2)(&other, 16));
	OK(CU(cuEventRecord)(fork_event, origin));
	OK(CU(cuStreamWaitEvent)(side, fork_event, 0));
	RESULT(CU(cuStreamEndCapture)(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	RESULT(CU(cuStreamEndCapture)(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	RESULT(CU(cuStreamEndCapture)(origin, &graph), CUDA_ERROR_ILLEGAL_STATE);

	OK(CU(cuMemFree_v2)(other));
	OK(CU(cuMemFree_v2)(data));
	OK(CU(cuEventDestroy_v2)(fork_event));
	OK(CU(cuEventDestroy_v2)(join_event));
	OK(CU(cuStreamDestroy_v2)(origin));
	OK(CU(cuStreamDestroy_v2)(side));
}

static void test_copies(void)
{
	char from[64], to[64] = {0};
	CUdeviceptr data;
	size_t pitch;
	CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			      .srcHost = from,
			      .srcPitch = 8,
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			      .WidthInBytes = 8,
			      .Height = 8};

	for (unsigned i = 0; i < sizeof(from); i++)
		from[i] = (char)i;
	OK(CU(cuMemAllocPitch_v2)(&data, &pitch, 8, 8, 4));
	copy.dstDevice = data;
	copy.dstPitch = pitch;
	OK(CU(cuMemcpy2D_v2)(&copy));
	OK(CU(cuMemcpyDtoH_v2)(to, data + 3 * pitch, 8));
	CHECK(!memcmp(to, from + 24, 8));
	OK(CU(cuMemcpy)((CUdeviceptr)to, data + pitch, 8));
	CHECK(!memcmp(to, from + 8, 8));
	OK(CU(cuMemsetD16_v2)(data, 0x1234, 4));
	OK(CU(cuMemcpyDtoH_v2)(to, data, 8));
	CHECK(to[6] == 0x34 && to[7] == 0x12);
	RESULT(CU(cuMemcpyDtoH_v2)(to, data + 4 * MIB, 8), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemcpyDtoH_v2)(to, 0, 8), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemFree_v2)(data));
}

static void test_pools(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	size_t before = sim_free_bytes();
	CUmemoryPool pool, original;
	CUdeviceptr a, b;
	uint64_t value;
	CUstream stream;

	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	OK(CU(cuMemAllocAsync)(&a, 4 * MIB, stream));
	OK(CU(cuMemsetD8Async)(a, 1, 4 * MIB, stream));
	OK(CU(cuMemFreeAsync)(a, stream));
	RESULT(CU(cuMemFreeAsync)(a, stream), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuStreamSynchronize)(stream));
	CHECK(sim_free_bytes() == before);

	OK(CU(cuMemPoolCreate)(&pool, &props));
	value = UINT64_MAX;
	OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
	OK(CU(cuMemAllocFromPoolAsync)(&a, 4 * MIB, pool, stream));
	OK(CU(cuMemAllocFromPoolAsync)(&b, 1000, pool, stream));
	OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
	CHECK(value == 4 * MIB + 1000);
	OK(CU(cuMemFreeAsync)(a, stream));
	OK(CU(cuMemFreeAsync)(b, stream));
	OK(CU(cuStreamSynchronize)(stream));
	CHECK(sim_free_bytes() == before - 6 * MIB);
	OK(CU(cuMemPoolTrimTo)(pool, 0));
	CHECK(sim_free_bytes() == before);
	OK(CU(cuDeviceGetMemPool)(&original, 0));
	OK(CU(cuDeviceSetMemPool)(0, pool));
	OK(CU(cuMemAllocAsync)(&a, 16, stream));
	OK(CU(cuPointerGetAttribute)(&original, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
	CHECK(original == pool);
	OK(CU(cuMemPoolDestroy)(pool)); /* exists until its memory is free */
	OK(CU(cuMemFree_v2)(a));
	OK(CU(cuCtxSynchronize)());
	CHECK(sim_free_bytes() == before);
	OK(CU(cuStreamDestroy_v2)(stream));
}

/* An illegal access by a kernel ends its context, not the process. */
static void test_illegal_address(void)
{
	CUcontext context, primary;
	CUdeviceptr wild, data;
	CUstream stream;
	uint64_t count = 1;
	uint32_t seed = 0;
	void *fill[] = {&wild, &count, &seed};

	OK(CU(cuCtxGetCurrent)(&primary));
	OK(CU(cuCtxCreate_v4)(&context, NULL, 0, 0));
	OK(CU(cuStreamCreate)(&stream, 0));
	OK(CU(cuMemAlloc_v2)(&data, 2 * MIB));
	wild = data;
	OK(CU(cuMemFree_v2)(data));
	OK(sim_launch(sim_kernel("gpucr_fill"), stream, fill));
	RESULT(CU(cuStreamSynchronize)(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	RESULT(CU(cuMemAlloc_v2)(&data, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(CU(cuCtxDestroy_v2)(context));
	OK(CU(cuCtxSetCurrent)(primary));
	OK(CU(cuCtxSynchronize)());
}

/* An event that covers all streams of a context, and a context that waits for an event. */
static void test_context_events(void)
{
	CUcontext context;
	CUdeviceptr flag, other;
	CUstream spinning, idle, gone;
	CUstreamCaptureStatus status;
	CUgraph graph;
	CUevent all, foreign;
	CUcontext second;
	void *spin[] = {&flag};

	OK(CU(cuCtxGetCurrent)(&context));
	OK(CU(cuStreamCreate)(&spinning, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamCreate)(&idle, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamCreate)(&gone, CU_STREAM_NON_BLOCKING));
	OK(CU(cuEventCreate)(&all, CU_EVENT_DISABLE_TIMING));
	OK(CU(cuMemAlloc_v2)(&flag, 4));
	OK(CU(cuMemAlloc_v2)(&other, 4));
	OK(CU(cuMemsetD32_v2)(flag, 0, 1));
	OK(CU(cuMemsetD32_v2)(other, 0, 1));
	OK(CU(cuCtxSynchronize)());
	OK(CU(cuCtxRecordEvent)(context, all));
	OK(CU(cuEventQuery)(all));

	OK(sim_launch(sim_kernel("gpucr_spin"), spinning, spin));
	OK(sim_launch(sim_kernel("gpucr_spin"), gone, spin));
	OK(CU(cuStreamDestroy_v2)(gone)); /* its work still counts */
	OK(CU(cuCtxRecordEvent)(context, all));
	RESULT(CU(cuEventQuery)(all), CUDA_ERROR_NOT_READY);
	OK(CU(cuStreamQuery)(idle));
	OK(CU(cuCtxWaitEvent)(context, all));
	OK(CU(cuMemsetD32Async)(other, 5, 1, idle));
	RESULT(CU(cuStreamQuery)(idle), CUDA_ERROR_NOT_READY);
	/* This write does not wait for the spinning kernels. */
	*(volatile unsigned *)flag = 1;
	OK(CU(cuEventSynchronize)(all));
	OK(CU(cuStreamSynchronize)(idle));
	CHECK(sim_word(other) == 5);

	OK(CU(cuStreamBeginCapture_v2)(idle, CU_STREAM_CAPTURE_MODE_RELAXED));
	RESULT(CU(cuCtxRecordEvent)(context, all), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	OK(CU(cuStreamIsCapturing)(idle, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	RESULT(CU(cuStreamEndCapture)(idle, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	OK(CU(cuCtxCreate_v4)(&second, NULL, 0, 0));
	OK(CU(cuEventCreate)(&foreign, 0));
	RESULT(CU(cuCtxRecordEvent)(context, foreign), CUDA_ERROR_INVALID_HANDLE);
	OK(CU(cuCtxRecordEvent)(second, foreign));
	OK(CU(cuCtxWaitEvent)(second, all));
	OK(CU(cuCtxDestroy_v2)(second));
	OK(CU(cuCtxSetCurrent)(context));
	OK(CU(cuEventDestroy_v2)(all));
	OK(CU(cuStreamDestroy_v2)(spinning));
	OK(CU(cuStreamDestroy_v2)(idle));
	OK(CU(cuMemFree_v2)(flag));
	OK(CU(cuMemFree_v2)(other));
}

int main(void)
{
	sim_begin("1", "64M");
	sim_context();
	test_kernels();
	test_order();
	test_capture();
	test_copies();
	test_pools();
	test_context_events();
	test_illegal_address();
	return 0;
}

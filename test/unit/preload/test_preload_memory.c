/* SPDX-License-Identifier: MIT */
/*
 * A program's view of its device memory with libgpucr-preload.so, compared with its view without:
 * the same program prints both.
 */
#include "test/unit/preload/preload_program.h"

/* ---- the same results with and without the library ---- */

static void show_attribute(CUdeviceptr start, CUdeviceptr pointer, int attribute)
{
	uint64_t value[2] = {0, 0};
	CUresult result = CU(cuPointerGetAttribute)(value, (CUpointer_attribute)attribute, pointer);

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		value[0] = value[0] != 0;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		value[0] -= result ? 0 : start;
		break;
	case CU_POINTER_ATTRIBUTE_CONTEXT: {
		CUcontext context;

		OK(CU(cuCtxGetCurrent)(&context));
		value[0] = value[0] == (uintptr_t)context;
		break;
	}
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		/* For a small allocation the driver reports the block that it was cut from. */
		if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
			value[0] = !result && value[0] <= start;
		else
			value[0] = !result && value[0] != 0;
		break;
	}
	printf("  attribute %d: %d %llx\n", attribute, result, (unsigned long long)value[0]);
}

static void show_attributes(CUdeviceptr start, CUdeviceptr pointer)
{
	CUpointer_attribute some[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_HOST_POINTER,
		CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
		CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_MAPPED,
		CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
	};
	uint64_t values[GCR_ARRAY_SIZE(some)] = {0};
	void *data[GCR_ARRAY_SIZE(some)];

	for (int i = 1; i <= 21; i++)
		if (i != CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			show_attribute(start, pointer, i);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(some); i++)
		data[i] = &values[i];
	printf("  attributes: %d",
	       CU(cuPointerGetAttributes)(GCR_ARRAY_SIZE(some), some, data, pointer));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(some); i++) {
		if (values[i] >= start && values[i] <= start + (64 * MIB))
			values[i] -= start;
		printf(" %llx", (unsigned long long)values[i]);
	}
	printf("\n  none: %d, no data: %d\n", CU(cuPointerGetAttributes)(1, NULL, data, pointer),
	       CU(cuPointerGetAttribute)(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer));
}

static void show_range(CUdeviceptr start, CUdeviceptr pointer)
{
	CUdeviceptr base = start;
	size_t bytes = 0;
	CUresult result = CU(cuMemGetAddressRange_v2)(&base, &bytes, pointer);

	printf("  range of +%llx: %d %llx %zx, of nothing %d\n",
	       (unsigned long long)(pointer - start), result, (unsigned long long)(base - start),
	       bytes, CU(cuMemGetAddressRange_v2)(NULL, NULL, pointer));
}

static void show_refusals(CUdeviceptr pointer, size_t bytes)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	size_t rounded = (bytes + 2 * MIB - 1) & ~(2 * MIB - 1);
	CUmemAccessDesc access = device_access(0);
	CUmemGenericAllocationHandle handle = 0;
	unsigned long long flags = 0;
	CUdeviceptr again;

	printf("  retain %d\n", CU(cuMemRetainAllocationHandle)(&handle, (void *)pointer));
	printf("  unmap %d, %d\n", CU(cuMemUnmap)(pointer, rounded),
	       CU(cuMemUnmap)(pointer, bytes));
	printf("  set access %d\n", CU(cuMemSetAccess)(pointer, rounded, &access, 1));
	printf("  free addresses %d\n", CU(cuMemAddressFree)(pointer, rounded));
	printf("  get access %d\n",
	       CU(cuMemGetAccess)(&flags, &location, pointer) == CUDA_SUCCESS ? 0 : 1);
	printf("  reserved again elsewhere: %d\n",
	       CU(cuMemAddressReserve)(&again, rounded, 0, pointer & ~(2 * MIB - 1), 0));
	printf("  it is %s\n", again == pointer ? "not" : "so");
	OK(CU(cuMemAddressFree)(again, rounded));
	printf("  free of the middle %d\n", CU(cuMemFree_v2)(pointer + 256));
#ifndef GCR_HIP /* HIP's hipFreeAsync does free it */
	printf("  free async %d\n", CU(cuMemFreeAsync)(pointer, NULL));
#endif
}

static void show_sync_memops(CUdeviceptr pointer)
{
	int value = 1, got = 7;

	printf("  sync memops %d",
	       CU(cuPointerSetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
	printf(" %d", CU(cuPointerGetAttribute)(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
	printf(" %d, other %d\n", got,
	       CU(cuPointerSetAttribute)(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer));
}

static void show_sizes(void)
{
	static const size_t sizes[] = {
		0,
		1,
		512,
		MIB - 1,
		MIB,
		MIB + 1,
		2 * MIB,
		3 * MIB,
		20 * MIB + 12345,
		1ull << 40,
		1ull << 51,
		SIZE_MAX / 2,
		SIZE_MAX - 1,
		SIZE_MAX,
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(sizes); i++) {
		CUdeviceptr pointer = 0;
		CUresult result = CU(cuMemAlloc_v2)(&pointer, sizes[i]);

		printf("%zx bytes: %d, to nowhere %d\n", sizes[i], result,
		       CU(cuMemAlloc_v2)(NULL, sizes[i]));
		/* In HIP an allocation of no memory is not an error. */
		if (result || !pointer)
			continue;
		printf("  aligned %d\n", pointer % 512 == 0);
		show_range(pointer, pointer);
		show_range(pointer, pointer + sizes[i] - 1);
		show_attributes(pointer, pointer);
		show_attributes(pointer, pointer + sizes[i] - 1);
		if (sizes[i] % (2 * MIB) && sizes[i] > 2 * MIB) {
			show_range(pointer, pointer + sizes[i]);
			show_attributes(pointer, pointer + sizes[i]);
		}
		show_sync_memops(pointer);
		if (sizes[i] > 2 * MIB)
			show_refusals(pointer, sizes[i]);
		fill(pointer, sizes[i], 1);
		expect(pointer, sizes[i], 1);
		printf("  free %d, again %d\n", CU(cuMemFree_v2)(pointer),
		       CU(cuMemFree_v2)(pointer));
	}
}

static void show_pitch(void)
{
	static const struct {
		size_t width, height;
		unsigned element;
	} cases[] = {
		{100, 100, 4},
		{100, 0, 4},
		{0, 100, 4},
		{1000, 5000, 4},
		{1000, 5000, 8},
		{1000, 5000, 16},
		{1000, 5000, 3},
		{MIB + 4, 3, 4},
		{70000, 100, 4},
		{SIZE_MAX, 2, 4},
		{1ull << 40, 1ull << 40, 4},
		{512, 1ull << 50, 4},
	};
	size_t pitch;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		CUdeviceptr pointer = 0;
		CUresult result;

		pitch = 0;
		result = CU(cuMemAllocPitch_v2)(&pointer, &pitch, cases[i].width, cases[i].height,
						cases[i].element);
		printf("pitch %zx x %zx x %u: %d %zx\n", cases[i].width, cases[i].height,
		       cases[i].element, result, pitch);
		if (result || !pointer)
			continue;
		show_range(pointer, pointer + 5);
		fill(pointer, pitch * cases[i].height, 2);
		expect(pointer, pitch * cases[i].height, 2);
		printf("  free %d\n", CU(cuMemFree_v2)(pointer));
	}
	printf("no pitch %d\n", CU(cuMemAllocPitch_v2)(NULL, NULL, 1000, 5000, 4));
}

static void show_capture(void)
{
	CUdeviceptr pointer = 0, before;
	CUstream stream;
	CUgraph graph;

	OK(CU(cuMemAlloc_v2)(&before, 4 * MIB));
	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	printf("alloc in a capture: %d\n", CU(cuMemAlloc_v2)(&pointer, 4 * MIB));
	printf("end: %d\n", CU(cuStreamEndCapture)(stream, &graph));
	OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	printf("free in a capture: %d\n", CU(cuMemFree_v2)(before));
	printf("end: %d\n", CU(cuStreamEndCapture)(stream, &graph));
	printf("pitch without a capture: %d\n", CU(cuMemFree_v2)(before));
}

/* Allocates all VRAM, twice. */
static void show_fullness(void)
{
	static CUdeviceptr pointers[1024];
	size_t free_before = free_bytes();

	for (int round = 0; round < 2; round++) {
		unsigned count = 0;
		CUresult result;

		while (!(result = CU(cuMemAlloc_v2)(&pointers[count], 8 * MIB)))
			count++;
		/* The companion allocations may take one of the last pieces. */
		printf("full: %d, %s\n", result,
		       count >= (free_before / (8 * MIB)) - 1 ? "all of it" : "too early");
		while (count)
			OK(CU(cuMemFree_v2)(pointers[--count]));
	}
	printf("all free again: %d\n", free_bytes() == free_before);
}

#ifdef GCR_HIP

/* HIP has no contexts besides the GPUs; hipDeviceReset is tested in test_preload_hip_memory.c. */
static void show_contexts(void)
{
}

#else

static void show_contexts(void)
{
	CUcontext context = NULL, primary = NULL;
	CUdeviceptr pointer = 0, in_context;
	size_t before;

	OK(CU(cuCtxGetCurrent)(&primary));
	OK(CU(cuCtxSetCurrent)(NULL));
	printf("without a context: %d, pitch %d, free %d\n", CU(cuMemAlloc_v2)(&pointer, 4 * MIB),
	       CU(cuMemAllocPitch_v2)(&pointer, &before, 4096, 4096, 4), CU(cuMemFree_v2)(4096));
	OK(CU(cuCtxSetCurrent)(primary));
	OK(CU(cuCtxCreate_v2)(&context, 0, 0));
	before = free_bytes();
	OK(CU(cuMemAlloc_v2)(&in_context, 6 * MIB));
	OK(CU(cuCtxSetCurrent)(primary));
	printf("of another context:\n");
	show_attribute(in_context, in_context, CU_POINTER_ATTRIBUTE_CONTEXT);
	OK(CU(cuCtxDestroy_v2)(context));
	printf("context gone: range %d, free %d\n",
	       CU(cuMemGetAddressRange_v2)(NULL, NULL, in_context), CU(cuMemFree_v2)(in_context));
	printf("its memory is free: %d\n", free_bytes() >= before);
	OK(CU(cuMemAlloc_v2)(&in_context, 6 * MIB));
	OK(CU(cuDevicePrimaryCtxReset_v2)(0));
	use_device(0);
	printf("reset: range %d, free %d\n", CU(cuMemGetAddressRange_v2)(NULL, NULL, in_context),
	       CU(cuMemFree_v2)(in_context));
}

#endif

static void show(void)
{
	size_t before;

	use_device(0);
	before = free_bytes();
	show_sizes();
	show_pitch();
	show_capture();
	printf("all free: %d\n", free_bytes() == before);
	show_fullness();
	show_contexts();
}

/* ---- the library's record ---- */

static void expect_page(uint64_t bytes, unsigned count)
{
	const struct gcr_page *page = memory()->page();

	CHECK(page && page->device_bytes == bytes && page->extents == count);
	CHECK(page->sharings == 0 && page->obstacle[0] == '\0');
}

static void threshold(void)
{
	CUdeviceptr small, large, pitched;
	uint64_t changes;
	size_t pitch;

	use_device(0);
	CHECK(memory()->converts());
	OK(CU(cuMemAlloc_v2)(&small, MIB));
	CHECK(!memory()->owns(small));
	expect_page(0, 0);
	changes = memory()->page()->table_changes;
	OK(CU(cuMemAlloc_v2)(&large, MIB + 1));
	CHECK(memory()->owns(large) && memory()->owns(large + MIB));
	CHECK(!memory()->owns(large + MIB + 1) && !memory()->owns(large - 1));
	expect_page(2 * MIB, 1);
	CHECK(memory()->page()->table_changes > changes);
	OK(CU(cuMemAllocPitch_v2)(&pitched, &pitch, 5000, 1000, 4));
	CHECK(memory()->owns(pitched));
	expect_page(8 * MIB, 2);
	look();
	CHECK(extents_count == 2 && extents[0].address < extents[1].address);
	CHECK(extents[0].kind == GCR_MEMORY_DEVICE && extents[0].flags == 0);
	changes = memory()->page()->table_changes;
	OK(CU(cuMemFree_v2)(large));
	CHECK(memory()->page()->table_changes > changes);
	expect_page(6 * MIB, 1);
	OK(CU(cuMemFree_v2)(pitched));
	OK(CU(cuMemFree_v2)(small));
	expect_page(0, 0);
}

static void off(void)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	use_device(0);
	CHECK(!memory()->converts());
	OK(CU(cuMemAlloc_v2)(&pointer, 8 * MIB));
	CHECK(!memory()->owns(pointer));
	OK(CU(cuMemCreate)(&handle, 8 * MIB, &prop, 0));
	expect_page(0, 0);
	OK(CU(cuMemRelease)(handle));
	OK(CU(cuMemFree_v2)(pointer));
}

/* Where the virtual memory functions fail, the library calls the driver's own cuMemAlloc. */
static void falls_back(void)
{
	CUdeviceptr pointers[4];
	size_t before;

	use_device(0);
	before = free_bytes();
	for (int i = 0; i < 4; i++) {
		OK(CU(cuMemAlloc_v2)(&pointers[i], 3 * MIB));
		CHECK(memory()->owns(pointers[i]) == (i == 3));
		fill(pointers[i], 3 * MIB, (unsigned)i);
	}
	CHECK(memory()->page()->extents == 1);
	for (int i = 0; i < 4; i++) {
		expect(pointers[i], 3 * MIB, (unsigned)i);
		OK(CU(cuMemFree_v2)(pointers[i]));
	}
	CHECK(free_bytes() == before);
}

/* The driver fails in a free: the memory stays as it is, and can be freed again. */
static void free_fails(void)
{
	CUdeviceptr pointer;

	use_device(0);
	OK(CU(cuMemAlloc_v2)(&pointer, 3 * MIB));
	fill(pointer, 3 * MIB, 5);
	RESULT(CU(cuMemFree_v2)(pointer), CUDA_ERROR_LAUNCH_FAILED);
	CHECK(memory()->owns(pointer));
	expect(pointer, 3 * MIB, 5);
	OK(CU(cuMemFree_v2)(pointer));
	CHECK(!memory()->owns(pointer));
}

static const char spin_ptx[] = ".version 8.0\n.target sm_50\n.address_size 64\n"
			       ".visible .entry gpucr_spin(.param .u64 a) { ret; }\n";

static CUdeviceptr freed_pointer;
static _Atomic(int) free_done;

static void *free_in_thread(void *context)
{
	OK(CU(cuCtxSetCurrent)(context));
	OK(CU(cuMemFree_v2)(freed_pointer));
	free_done = 1;
	return NULL;
}

/* cuMemFree waits for all work that was submitted before it, whatever memory the work uses. */
static void free_waits(void)
{
	CUcontext context = use_device(0);
	CUdeviceptr flag;
	void *arguments[] = {&flag};
	CUstream stream, other;
	CUfunction spin;
	CUmodule module;
	pthread_t thread;

	OK(CU(cuModuleLoadData)(&module, spin_ptx));
	OK(CU(cuModuleGetFunction)(&spin, module, "gpucr_spin"));
	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
	OK(CU(cuMemAlloc_v2)(&flag, 4));
	OK(CU(cuMemsetD32_v2)(flag, 0, 1));
	OK(CU(cuCtxSynchronize)());
	OK(CU(cuMemAlloc_v2)(&freed_pointer, 4 * MIB));
	OK(CU(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
	OK(CU(cuMemsetD32Async)(freed_pointer, 3, MIB, stream));
	CHECK(pthread_create(&thread, NULL, free_in_thread, context) == 0);
	for (int i = 0; i < 1000 && !free_done; i++)
		sched_yield();
	CHECK(!free_done && memory()->owns(freed_pointer));
	RESULT(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
	OK(CU(cuMemsetD32Async)(flag, 1, 1, other));
	CHECK(pthread_join(thread, NULL) == 0);
	OK(CU(cuStreamQuery)(stream));
	CHECK(!memory()->owns(freed_pointer));
	OK(CU(cuCtxSynchronize)());
}

static void *hammer(void *context)
{
	CUdeviceptr pointers[16];

	OK(CU(cuCtxSetCurrent)(context));
	for (unsigned round = 0; round < 30; round++) {
		for (unsigned i = 0; i < 16; i++) {
			OK(CU(cuMemAlloc_v2)(&pointers[i], (1 + i % 3) * MIB + i + 1));
			OK(CU(cuMemsetD32_v2)(pointers[i], i, 1));
		}
		for (unsigned i = 0; i < 16; i++) {
			unsigned word = 0;

			OK(CU(cuMemcpyDtoH_v2)(&word, pointers[i], 4));
			CHECK(word == i);
			OK(CU(cuMemFree_v2)(pointers[i]));
		}
	}
	return NULL;
}

/* Many threads allocate while the main thread lists the allocations. */
static void threads(void)
{
	CUcontext context = use_device(0);
	pthread_t thread[4];

	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, hammer, context) == 0);
	for (int i = 0; i < 2000; i++) {
		size_t count = (size_t)memory()->describe(extents, GCR_ARRAY_SIZE(extents));

		CHECK(count <= 64);
		for (size_t j = 1; j < count; j++)
			CHECK(extents[j - 1].address < extents[j].address);
	}
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	expect_page(0, 0);
}

/* Contexts of another GPU reach the library's allocations when the driver permits it. */
static void peers(void)
{
	CUcontext contexts[2];
	CUdeviceptr early, late, there;

	contexts[1] = use_device(1);
	contexts[0] = use_device(0);
	OK(CU(cuMemAlloc_v2)(&early, 4 * MIB));
	fill(early, 4 * MIB, 9);
	OK(CU(cuCtxSetCurrent)(contexts[1]));
	OK(CU(cuMemAlloc_v2)(&there, 4 * MIB));
	OK(CU(cuCtxEnablePeerAccess)(contexts[0], 0));
	RESULT(CU(cuCtxEnablePeerAccess)(contexts[0], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	OK(CU(cuCtxSetCurrent)(contexts[0]));
	OK(CU(cuMemAlloc_v2)(&late, 4 * MIB));
	fill(late, 4 * MIB, 10);
	OK(CU(cuCtxSetCurrent)(contexts[1]));
	/* The copy on GPU 1's stream stands for a kernel of GPU 1. */
	OK(CU(cuMemcpyDtoDAsync_v2)(there, early, 4 * MIB, NULL));
	OK(CU(cuStreamSynchronize)(NULL));
	expect(there, 4 * MIB, 9);
	OK(CU(cuMemcpyDtoDAsync_v2)(there, late, 4 * MIB, NULL));
	OK(CU(cuStreamSynchronize)(NULL));
	expect(there, 4 * MIB, 10);
	OK(CU(cuCtxDisablePeerAccess)(contexts[0]));
	RESULT(CU(cuCtxDisablePeerAccess)(contexts[0]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	look();
	CHECK(extents_count == 3);
	/* The list is sorted by GPU first. */
	CHECK(memcmp(extents[0].gpu, extents[1].gpu, 16) == 0 &&
	      memcmp(extents[1].gpu, extents[2].gpu, 16) != 0 && extents[2].address == there);
	OK(CU(cuMemFree_v2)(early));
	OK(CU(cuMemFree_v2)(late));
	OK(CU(cuMemFree_v2)(there));
}

static void context_goes(void)
{
#ifndef GCR_HIP
	CUcontext context, primary = use_device(0);
	CUdeviceptr kept, pointer;
	size_t before;

	OK(CU(cuMemAlloc_v2)(&kept, 4 * MIB));
	fill(kept, 4 * MIB, 3);
	before = free_bytes();
	OK(CU(cuCtxCreate_v2)(&context, 0, 0));
	for (int i = 0; i < 5; i++)
		OK(CU(cuMemAlloc_v2)(&pointer, 4 * MIB));
	CHECK(memory()->page()->extents == 6);
	OK(CU(cuCtxDestroy_v2)(context));
	OK(CU(cuCtxSetCurrent)(primary));
	CHECK(memory()->page()->extents == 1 && memory()->owns(kept) && !memory()->owns(pointer));
	CHECK(free_bytes() == before);
	expect(kept, 4 * MIB, 3);
	OK(CU(cuDevicePrimaryCtxReset_v2)(0));
	CHECK(memory()->page()->extents == 0 && !memory()->owns(kept));
#endif
}

static const struct subject subjects[] = {
	{.name = "show", .run = show},
	{.name = "threshold", .run = threshold},
	{.name = "off", .run = off, .environment = "GPUCR_PRELOAD_VMM=0"},
	{.name = "create fails",
	 .run = falls_back,
	 .faults = "cuMemCreate times=3 error=CUDA_ERROR_NOT_SUPPORTED"},
	{.name = "reserve fails",
	 .run = falls_back,
	 .faults = "cuMemAddressReserve times=3 error=CUDA_ERROR_OUT_OF_MEMORY"},
	{.name = "map fails",
	 .run = falls_back,
	 .faults = "cuMemMap times=3 error=CUDA_ERROR_UNKNOWN"},
	{.name = "access fails",
	 .run = falls_back,
	 .faults = "cuMemSetAccess times=3 error=CUDA_ERROR_UNKNOWN"},
	{.name = "free fails",
	 .run = free_fails,
	 .faults = "cuMemFree nth=1 error=CUDA_ERROR_LAUNCH_FAILED"},
	{.name = "free waits", .run = free_waits, .not_on_hip = "its kernel is PTX"},
	{.name = "threads", .run = threads},
	{.name = "peers", .run = peers, .gpus = "2"},
	{.name = "context goes", .run = context_goes, .not_on_hip = "contexts are its GPUs"},
};

int main(int argc, char **argv)
{
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	test_same();
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The program's events and ranges that other processes may have: an object counts as shared from
 * the call that shares it until the program destroys its own. Functions of the test stand in for
 * the driver's.
 */
#include "test/unit/preload/test_gate.h"

#include "backend/preload/memory/obstacle.h"
#include "backend/preload/memory/shared_object.h"

static CUresult next_result;
static const char *obstacle_meanwhile;

static const char *obstacle(void)
{
	return gcr_gate_page()->obstacle;
}

/* The stand-ins only record whether an obstacle was counted while they ran. */
static CUresult called(void)
{
	obstacle_meanwhile = *obstacle() ? "some" : "none";
	return next_result;
}

static CUresult get_range(void *handle, CUdeviceptr pointer, size_t bytes,
			  CUmemRangeHandleType type, unsigned long long flags)
{
	return called();
}

static void stand_in(void)
{
#define STAND_IN(symbol, function) atomic_store(&gcr_reals[GCR_ENTRY_##symbol], (void *)(function))
	STAND_IN(cuMemGetHandleForAddressRange, get_range);
#undef STAND_IN
}

#define EXPECT(words)                                                                 \
	do {                                                                          \
		if (!*(words) ? *obstacle() : !strstr(obstacle(), words))             \
			fprintf(stderr, "'%s' instead of '%s'\n", obstacle(), words); \
		CHECK(*(words) ? strstr(obstacle(), words) != NULL : !*obstacle());   \
	} while (0)

/* A failed call has shared nothing; but during the call the object counts as shared. */
#define FAILS(call)                                             \
	do {                                                    \
		next_result = CUDA_ERROR_UNKNOWN;               \
		CHECK((call) == CUDA_ERROR_UNKNOWN);            \
		next_result = CUDA_SUCCESS;                     \
		CHECK(strcmp(obstacle_meanwhile, "some") == 0); \
	} while (0)

static void test_events(void)
{
	CUipcEventHandle handle;
	CUevent one, two;

	CHECK(cuEventCreate(&one, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
	CHECK(cuEventCreate(&two, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
	CHECK(cuIpcGetEventHandle(&handle, two) != CUDA_SUCCESS);
	EXPECT("");
	CHECK(cuIpcGetEventHandle(&handle, one) == CUDA_SUCCESS);
	CHECK(cuEventDestroy_v2(two) == CUDA_SUCCESS);
	EXPECT("an event shared");
	CHECK(cuEventDestroy_v2(one) == CUDA_SUCCESS);
	EXPECT("");
	/* An event ends with its context. */
	CHECK(cuEventCreate(&one, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
	CHECK(cuIpcGetEventHandle(&handle, one) == CUDA_SUCCESS);
	EXPECT("an event shared");
	CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
	EXPECT("");
	use_gpu();
}

/* A dma-buf of the driver's own memory, and of memory made by cuMemCreate. */
static void test_ranges(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr small, start;
	size_t bytes = 2 << 20;
	int fd;

	CHECK(cuMemAlloc_v2(&small, 4096) == CUDA_SUCCESS);
	FAILS(cuMemGetHandleForAddressRange(&fd, small, 4096, 1, 0));
	EXPECT("");
	CHECK(cuMemGetHandleForAddressRange(&fd, small + 1024, 1024, 1, 0) == CUDA_SUCCESS);
	EXPECT("a dma-buf export");
	CHECK(cuMemFree_v2(small) == CUDA_SUCCESS);
	EXPECT("");

	CHECK(cuMemAddressReserve(&start, bytes, 0, 0, 0) == CUDA_SUCCESS);
	CHECK(cuMemCreate(&handle, bytes, &prop, 0) == CUDA_SUCCESS);
	CHECK(cuMemMap(start, bytes, 0, handle, 0) == CUDA_SUCCESS);
	CHECK(cuMemSetAccess(start, bytes, &access, 1) == CUDA_SUCCESS);
	CHECK(cuMemGetHandleForAddressRange(&fd, start, bytes, 1, 0) == CUDA_SUCCESS);
	EXPECT("a dma-buf export");
	CHECK(cuMemUnmap(start, bytes) == CUDA_SUCCESS);
	EXPECT("a dma-buf export");
	CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
	EXPECT("");
	CHECK(cuMemAddressFree(start, bytes) == CUDA_SUCCESS);
}

static void with_gpu(void (*test)(void))
{
	use_gpu();
	stand_in();
	test();
}

static void events(void)
{
	with_gpu(test_events);
}

static void ranges(void)
{
	with_gpu(test_ranges);
}

static const struct linked_test tests[] = {{"events", events}, {"ranges", ranges}};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}

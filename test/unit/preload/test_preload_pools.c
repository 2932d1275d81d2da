/* SPDX-License-Identifier: MIT */
/*
 * Pools of stream-ordered memory with libgpucr-preload.so: a pool in host memory or of managed
 * memory forbids a freeze, and the obstacle names it, as long as the pool or memory of it exists;
 * other pools do not.
 */
#include "test/unit/preload/preload_program.h"

static void expect_obstacle(const char *words)
{
	const char *obstacle = memory()->page()->obstacle;

	if (*words ? !strstr(obstacle, words) : *obstacle)
		fprintf(stderr, "obstacle '%s', not '%s'\n", obstacle, words);
	CHECK(*words ? strstr(obstacle, words) != NULL : !*obstacle);
}

static CUmemoryPool make(CUmemAllocationType type, CUmemLocationType location)
{
	CUmemPoolProps props = {.allocType = type, .location = {.type = location}};
	CUmemoryPool pool;

	OK(CU(cuMemPoolCreate)(&pool, &props));
	return pool;
}

static void on_device(void)
{
	CUmemoryPool pool, own;
	CUdeviceptr pointer;

	use_device(0);
	OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
	OK(CU(cuMemAllocFromPoolAsync)(&pointer, MIB, pool, NULL));
	OK(CU(cuMemFreeAsync)(pointer, NULL));
	own = make(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
	OK(CU(cuMemAllocFromPoolAsync)(&pointer, MIB, own, NULL));
	expect_obstacle("");
	OK(CU(cuMemFree_v2)(pointer));
	OK(CU(cuMemPoolDestroy)(own));
	expect_obstacle("");
}

/*
 * The obstacle lasts from the creation of the pool until it is destroyed and all its memory is
 * free.
 */
static void special(CUmemAllocationType type, CUmemLocationType location, const char *words)
{
	CUmemoryPool pool = make(type, location), other;
	CUdeviceptr first, second, third;

	expect_obstacle(words);
	OK(CU(cuMemAllocFromPoolAsync)(&first, MIB, pool, NULL));
	OK(CU(cuMemAllocFromPoolAsync)(&second, MIB, pool, NULL));
	OK(CU(cuMemAllocFromPoolAsync)(&third, MIB, pool, NULL));
	OK(CU(cuMemFreeAsync)(second, NULL));
	OK(CU(cuStreamSynchronize)(NULL));
	RESULT(CU(cuMemFreeAsync)(second, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemPoolDestroy)(pool));
	RESULT(CU(cuMemPoolDestroy)(pool), CUDA_ERROR_INVALID_VALUE);
	expect_obstacle(words);
	OK(CU(cuMemFree_v2)(first));
	expect_obstacle(words);
	/* The end of a pool that is no obstacle does not remove the obstacle. */
	other = make(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
	OK(CU(cuMemPoolDestroy)(other));
	expect_obstacle(words);
	OK(CU(cuMemFreeAsync)(third, NULL));
	expect_obstacle("");
	OK(CU(cuStreamSynchronize)(NULL));
}

static void host(void)
{
	CUmemoryPool pool, unused;

	use_device(0);
	special(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST, "pool in host memory");
	special(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST_NUMA,
		"pool in host memory");
	unused = make(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
	OK(CU(cuMemPoolDestroy)(unused));
	pool = make(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
	unused = make(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE);
	OK(CU(cuMemPoolDestroy)(pool));
	expect_obstacle("managed");
	OK(CU(cuMemPoolDestroy)(unused));
	expect_obstacle("");
	special(CU_MEM_ALLOCATION_TYPE_PINNED, (CUmemLocationType)77, "kind that came after");
}

static void managed_memory(void)
{
	use_device(0);
	special(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE, "managed memory");
}

/* The host's default pool always exists: it counts from the first allocation on. */
static void standing(void)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_HOST};
	CUmemoryPool pool, current;
	CUdeviceptr pointer;

	use_device(0);
	OK(CU(cuMemGetDefaultMemPool)(&pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
	OK(CU(cuMemGetMemPool)(&current, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
	CHECK(pool == current);
	expect_obstacle("");
	OK(CU(cuMemAllocFromPoolAsync)(&pointer, MIB, pool, NULL));
	expect_obstacle("pool in host memory");
	OK(CU(cuMemFreeAsync)(pointer, NULL));
	/* The pool keeps freed memory. */
	expect_obstacle("pool in host memory");
}

static void *destroy(void *pool)
{
	use_device(0);
	OK(CU(cuMemPoolDestroy)(pool));
	return NULL;
}

/* The last piece of a pool is freed while another thread is destroying the pool. */
static void freed_at_the_end(void)
{
	CUmemoryPool pool, other;
	CUdeviceptr pointer;
	pthread_t thread;

	use_device(0);
	other = make(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
	pool = make(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
	OK(CU(cuMemAllocFromPoolAsync)(&pointer, MIB, pool, NULL));
	CHECK(pthread_create(&thread, NULL, destroy, pool) == 0);
	while (CU(cuMemPoolTrimTo)(pool, 0) == CUDA_SUCCESS)
		sched_yield();
	OK(CU(cuMemFreeAsync)(pointer, NULL));
	pthread_join(thread, NULL);
	/* The other pool is still counted, once. */
	expect_obstacle("pool in host memory");
	OK(CU(cuMemPoolDestroy)(other));
	expect_obstacle("");
}

static const struct subject subjects[] = {
	{.name = "on the device", .run = on_device},
	{.name = "host", .run = host},
	{.name = "managed", .run = managed_memory},
	{.name = "standing", .run = standing},
	{.name = "freed at the end",
	 .run = freed_at_the_end,
	 .faults = "cuMemPoolDestroy nth=1 when=after delay_ms=500"},
};

int main(int argc, char **argv)
{
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}

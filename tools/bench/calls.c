/* SPDX-License-Identifier: MIT */
/*
 * Measures driver calls in this process, to compare a run with the preload library and one without.
 * Each figure is the median of batches, because disturbances only make a batch longer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tools/bench/bench.h"
#include "tools/bench/role.h"

#define BATCHES	     31
#define SMALL_BYTES  (UINT64_C(64) << 10)
#define LARGE_BYTES  (UINT64_C(64) << 20)
#define STEP_WORDS   (UINT64_C(1) << 18)
#define GRID_BLOCKS  1024
#define GRID_THREADS 256

const struct bench_call_words bench_calls[BENCH_CALLS] = {
	[BENCH_CALL_GET] = {"get_current", "cuCtxGetCurrent", "hipGetDevice"},
	[BENCH_CALL_SET] = {"set_current", "cuCtxSetCurrent, which passes the gate",
			    "hipSetDevice, which passes the gate"},
	[BENCH_CALL_LAUNCH] = {"launch", "cuLaunchKernel of an empty kernel",
			       "hipModuleLaunchKernel of an empty kernel"},
	[BENCH_CALL_ALLOC_SMALL] = {"alloc_64k", "cuMemAlloc, 64 KiB", "hipMalloc, 64 KiB"},
	[BENCH_CALL_FREE_SMALL] = {"free_64k", "cuMemFree, 64 KiB", "hipFree, 64 KiB"},
	[BENCH_CALL_ALLOC_LARGE] = {"alloc_64m", "cuMemAlloc, 64 MiB", "hipMalloc, 64 MiB"},
	[BENCH_CALL_FREE_LARGE] = {"free_64m", "cuMemFree, 64 MiB", "hipFree, 64 MiB"},
	[BENCH_CALL_STEP] = {"step", "a step: 1000 kernels and a synchronise",
			     "a step: 1000 kernels and a synchronise"},
};

struct calls {
	double samples[BENCH_CALLS][BATCHES];
	CUcontext context;
	CUfunction add;
	CUdeviceptr buffer;
	unsigned int divisor; /* of repetitions: above 1 where speed is irrelevant */
};

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	const double *first = a, *second = b;

	return *first < *second ? -1 : *first > *second;
}

/* Launches a kernel on @count words of the buffer; 0: the kernel does nothing. */
static int launch(struct calls *calls, uint64_t count, unsigned int blocks)
{
	uint32_t value = 1;
	uint64_t first = 0;

	return BENCH_CU(cuLaunchKernel, calls->add, blocks, 1, 1, GRID_THREADS, 1, 1, 0, NULL,
			(void *[]){&calls->buffer, &first, &count, &value}, NULL);
}

static int measure_get(struct calls *calls, double *ret_ns)
{
	unsigned int count = 20000 / calls->divisor;
	double started_ns = now_ns();
	CUcontext context;

	for (unsigned int i = 0; i < count; i++)
		if (bench_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
			return bench_role_fail("%s fails", bench_driver_is_hip()
								   ? "hipGetDevice"
								   : "cuCtxGetCurrent");
	*ret_ns = (now_ns() - started_ns) / count;
	return 0;
}

/* Measures cuCtxSetCurrent, the cheapest call that can wait at the gate. *ret_ns: for each call. */
static int measure_set(struct calls *calls, double *ret_ns)
{
	unsigned int count = 20000 / calls->divisor;
	double started_ns = now_ns();

	for (unsigned int i = 0; i < count; i++)
		if (bench_driver.cuCtxSetCurrent(calls->context) != CUDA_SUCCESS)
			return bench_role_fail("%s fails", bench_driver_is_hip()
								   ? "hipSetDevice"
								   : "cuCtxSetCurrent");
	*ret_ns = (now_ns() - started_ns) / count;
	return 0;
}

/*
 * Measures launches of an empty kernel, fewer than the driver queues, so that none waits for the
 * GPU. *ret_ns: for each launch.
 */
static int measure_launch(struct calls *calls, double *ret_ns)
{
	unsigned int count = 400 / calls->divisor;
	double started_ns = now_ns();

	for (unsigned int i = 0; i < count; i++)
		if (launch(calls, 0, 1) < 0)
			return -1;
	*ret_ns = (now_ns() - started_ns) / count;
	return BENCH_CU(cuCtxSynchronize);
}

static int measure_memory(uint64_t bytes, double *ret_alloc_ns, double *ret_free_ns)
{
	double started_ns = now_ns(), allocated_ns;
	CUdeviceptr pointer;

	if (BENCH_CU(cuMemAlloc_v2, &pointer, bytes) < 0)
		return -1;
	allocated_ns = now_ns();
	if (BENCH_CU(cuMemFree_v2, pointer) < 0)
		return -1;
	*ret_alloc_ns = allocated_ns - started_ns;
	*ret_free_ns = now_ns() - allocated_ns;
	return 0;
}

static int measure_step(struct calls *calls, double *ret_ns)
{
	unsigned int count = 1000 / calls->divisor;
	double started_ns = now_ns();

	for (unsigned int i = 0; i < count; i++)
		if (launch(calls, STEP_WORDS, GRID_BLOCKS) < 0)
			return -1;
	if (BENCH_CU(cuCtxSynchronize) < 0)
		return -1;
	*ret_ns = now_ns() - started_ns;
	return 0;
}

static int measure_batch(struct calls *calls, double batch[BENCH_CALLS])
{
	if (measure_get(calls, &batch[BENCH_CALL_GET]) < 0 ||
	    measure_set(calls, &batch[BENCH_CALL_SET]) < 0 ||
	    measure_launch(calls, &batch[BENCH_CALL_LAUNCH]) < 0 ||
	    measure_memory(SMALL_BYTES, &batch[BENCH_CALL_ALLOC_SMALL],
			   &batch[BENCH_CALL_FREE_SMALL]) < 0 ||
	    measure_memory(LARGE_BYTES, &batch[BENCH_CALL_ALLOC_LARGE],
			   &batch[BENCH_CALL_FREE_LARGE]) < 0)
		return -1;
	return measure_step(calls, &batch[BENCH_CALL_STEP]);
}

int bench_role_calls(int argc, char **argv)
{
	static struct calls calls;
	double batch[BENCH_CALLS];

	if (argc < 2)
		return 2;
	calls.divisor = atoi(argv[1]) ? 50 : 1;
	if (bench_driver_open(atoi(argv[0])) < 0 || BENCH_CU(cuCtxGetCurrent, &calls.context) < 0 ||
	    bench_driver_kernel("gpucr_add", &calls.add) < 0 ||
	    BENCH_CU(cuMemAlloc_v2, &calls.buffer, STEP_WORDS * sizeof(uint32_t)) < 0)
		return EXIT_FAILURE;
	/* The first batch is a warm-up: clocks rise, code is loaded. */
	for (int i = -1; i < BATCHES; i++) {
		if (measure_batch(&calls, batch) < 0)
			return EXIT_FAILURE;
		for (size_t call = 0; call < BENCH_CALLS && i >= 0; call++)
			calls.samples[call][i] = batch[call];
	}
	printf("ok");
	for (size_t call = 0; call < BENCH_CALLS; call++) {
		qsort(calls.samples[call], BATCHES, sizeof(double), compare);
		printf(" %s %.2f", bench_calls[call].name, calls.samples[call][BATCHES / 2]);
	}
	putchar('\n');
	return EXIT_SUCCESS;
}

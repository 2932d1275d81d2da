/* SPDX-License-Identifier: MIT */
/*
 * ending: a short program that keeps using the driver while it ends: in handlers of atexit(3) that
 * run before the driver's own and after it, in a destructor, and in other threads.
 *
 * Usage: ending STATUS [THREADS [WHERE FIFO]]. The program prints `pid N` and `tick 1 ok`, works
 * for a moment and ends with STATUS; or with 99 if a call returns anything but success or, where
 * the driver may be closed, CUDA_ERROR_DEINITIALIZED. WHERE is `main`, or `before` or `after` the
 * driver's exit handler: there the program prints `tick 2 ok` and reads FIFO to its end.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"

#define BYTES (16u << 20)
#define WORK  20

#define CALLS(X)                        \
	X(cuInit)                       \
	X(cuDevicePrimaryCtxRetain)     \
	X(cuDevicePrimaryCtxRelease_v2) \
	X(cuCtxSetCurrent)              \
	X(cuCtxSynchronize)             \
	X(cuMemAlloc_v2)                \
	X(cuMemFree_v2)                 \
	X(cuMemsetD32_v2)               \
	X(cuMemcpyDtoH_v2)

#define MEMBER(name) __typeof__(name) *name;
static struct {
	CALLS(MEMBER)
} driver;

static CUdeviceptr early, late;
static CUcontext context;
static const char *where = "", *fifo;
static bool has_begun;

static void expect(int result, bool may_be_gone, int line)
{
	if (result == CUDA_SUCCESS || (may_be_gone && result == CUDA_ERROR_DEINITIALIZED))
		return;
	fprintf(stderr, "line %d: error %d\n", line, result);
	_exit(99);
}
#define OK(call)	 expect((int)(call), false, __LINE__)
#define OK_OR_GONE(call) expect((int)(call), true, __LINE__)

static void wait_at(const char *here)
{
	FILE *file;

	if (strcmp(where, here) != 0)
		return;
	printf("tick 2 ok\n");
	fflush(stdout);
	file = fopen(fifo, "r");
	while (file && fgetc(file) != EOF)
		;
	if (file)
		fclose(file);
}

/* Registered last, so it runs first: the driver still works. */
static void before(void)
{
	OK(driver.cuMemsetD32_v2(late, 5, BYTES / 4));
	wait_at("before");
	OK(driver.cuCtxSynchronize());
	OK(driver.cuMemFree_v2(late));
}

/*
 * Registered before the driver's handler: the driver is closed, or will be a moment later with its
 * library.
 */
static void after(void)
{
	OK_OR_GONE(driver.cuCtxSynchronize());
	wait_at("after");
	OK_OR_GONE(driver.cuMemFree_v2(early));
}

static __attribute__((destructor)) void destroy(void)
{
	CUdeviceptr pointer;

	if (!has_begun)
		return;
	OK_OR_GONE(driver.cuMemAlloc_v2(&pointer, BYTES));
	OK_OR_GONE(driver.cuCtxSynchronize());
	OK_OR_GONE(driver.cuDevicePrimaryCtxRelease_v2(0));
}

/* Runs until the process has ended. */
static void *work(void *nothing)
{
	CUdeviceptr pointer;

	OK_OR_GONE(driver.cuCtxSetCurrent(context));
	for (;;) {
		if (driver.cuMemAlloc_v2(&pointer, BYTES) != CUDA_SUCCESS)
			continue;
		OK_OR_GONE(driver.cuMemsetD32_v2(pointer, 1, BYTES / 4));
		OK_OR_GONE(driver.cuMemFree_v2(pointer));
	}
	return nothing;
}

static bool find_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return false;
#define FIND(name)                                               \
	driver.name = (__typeof__(name) *)dlsym(library, #name); \
	if (!driver.name)                                        \
		return false;
	CALLS(FIND)
	return true;
}

int main(int argc, char **argv)
{
	unsigned int word;

	if (argc > 4) {
		where = argv[3];
		fifo = argv[4];
	}
	if (argc < 2 || !find_driver()) {
		fprintf(stderr, "usage: ending STATUS [THREADS [WHERE FIFO]]; it needs a GPU\n");
		return 2;
	}
	atexit(after);
	OK(driver.cuInit(0));
	OK(driver.cuDevicePrimaryCtxRetain(&context, 0));
	OK(driver.cuCtxSetCurrent(context));
	OK(driver.cuMemAlloc_v2(&early, BYTES));
	OK(driver.cuMemAlloc_v2(&late, BYTES));
	atexit(before);
	has_begun = true;
	for (int i = argc > 2 ? atoi(argv[2]) : 0; i > 0; i--) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, work, NULL) != 0)
			return 2;
	}
	printf("pid %d\ntick 1 ok\n", (int)getpid());
	fflush(stdout);
	for (unsigned int i = 1; i <= WORK; i++) {
		OK(driver.cuMemsetD32_v2(early, i, BYTES / 4));
		OK(driver.cuMemcpyDtoH_v2(&word, early + BYTES - 4, sizeof(word)));
		if (word != i)
			return 98;
	}
	wait_at("main");
	return atoi(argv[1]);
}

/* SPDX-License-Identifier: MIT */
/*
 * stacks: a program with two contexts, each with its own stack limit and memory. The program prints
 * `pid N`, then `tick K ok` each time that it has found all limits and memory as expected.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/e2e/vendor.h"

#define CONTEXTS     2
#define MEMORY_BYTES (8u << 20)
#define TICK_NS	     20000000

static const size_t limits[CONTEXTS] = {1024, 784};
static CUcontext contexts[CONTEXTS];
static CUdeviceptr memories[CONTEXTS];
static unsigned char *bytes;

static void make(void)
{
	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&contexts[0], 0));
	OK(CU(cuCtxCreate_v2)(&contexts[1], 0, 0));
	OK(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, limits[1]));
	for (int i = 0; i < CONTEXTS; i++) {
		OK(CU(cuCtxSetCurrent)(contexts[i]));
		OK(CU(cuMemAlloc_v2)(&memories[i], MEMORY_BYTES));
		OK(CU(cuMemsetD8_v2)(memories[i], (unsigned char)(17 + i), MEMORY_BYTES));
	}
}

static int check(int i)
{
	size_t limit;

	OK(CU(cuCtxSetCurrent)(contexts[i]));
	OK(CU(cuCtxGetLimit)(&limit, CU_LIMIT_STACK_SIZE));
	if (limit != limits[i]) {
		printf("context %d: the limit is %zu\n", i, limit);
		return 1;
	}
	OK(CU(cuMemcpyDtoH_v2)(bytes, memories[i], MEMORY_BYTES));
	for (size_t at = 0; at < MEMORY_BYTES; at++)
		if (bytes[at] != 17 + i) {
			printf("context %d: byte %zu is %d\n", i, at, bytes[at]);
			return 1;
		}
	return 0;
}

int main(void)
{
	struct timespec pause = {.tv_nsec = TICK_NS};

	setvbuf(stdout, NULL, _IOLBF, 0);
	vendor_open();
	bytes = malloc(MEMORY_BYTES);
	if (!bytes)
		return 1;
	make();
	printf("pid %d\n", (int)getpid());
	for (unsigned tick = 1;; tick++) {
		for (int i = 0; i < CONTEXTS; i++)
			if (check(i))
				return 1;
		printf("tick %u ok\n", tick);
		nanosleep(&pause, NULL);
	}
}

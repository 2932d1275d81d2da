/* SPDX-License-Identifier: MIT */
/*
 * A program that does things of a newer driver or rare things, and checks its memory each tick.
 * Usage: later asks|binds|pool [--...]. `asks` and `binds` call functions that are in no table of
 * the library (backend/sim/later.c), with the handle of an allocation of the program; `pool` has a
 * host memory pool until SIGUSR1.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/e2e/vendor.h"

#define BYTES (2u << 20)
#define WORDS (BYTES / sizeof(unsigned int))

static void *find_later(const char *name)
{
	CUdriverProcAddressQueryResult status;
	void *function = NULL;

	OK(CU(cuGetProcAddress_v2)(name, &function, CUDA_VERSION, 0, &status));
	return function;
}

static volatile sig_atomic_t is_told;

static void be_told(int number)
{
	is_told = 1;
}

static CUmemoryPool make_pool(CUdeviceptr *ret_piece)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
	CUmemoryPool pool;

	OK(CU(cuMemPoolCreate)(&pool, &props));
	OK(CU(cuMemAllocFromPoolAsync)(ret_piece, 1 << 20, pool, NULL));
	return pool;
}

static CUmemGenericAllocationHandle make_memory(CUdeviceptr *ret_memory)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;

	OK(CU(cuMemCreate)(&handle, BYTES, &prop, 0));
	OK(CU(cuMemAddressReserve)(ret_memory, BYTES, 0, 0, 0));
	OK(CU(cuMemMap)(*ret_memory, BYTES, 0, handle, 0));
	OK(CU(cuMemSetAccess)(*ret_memory, BYTES, &access, 1));
	return handle;
}

static void check_memory(CUdeviceptr memory, unsigned int value)
{
	static unsigned int words[WORDS];

	OK(CU(cuMemcpyDtoH_v2)(words, memory, BYTES));
	for (size_t i = 0; i < WORDS; i++)
		if (words[i] != value) {
			fprintf(stderr, "word %zu is %u, not %u\n", i, words[i], value);
			exit(1);
		}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	CUresult (*get_device)(int *, CUmemGenericAllocationHandle);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr memory, piece = 0;
	CUmemoryPool pool = NULL;
	CUcontext context;
	int device = 7;

	signal(SIGUSR1, be_told);
	vendor_open();
	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	OK(CU(cuCtxSetCurrent)(context));
	handle = make_memory(&memory);
	if (strcmp(what, "pool") == 0)
		pool = make_pool(&piece);
	if (strcmp(what, "binds") == 0)
		OK(((CUresult(*)(CUmemGenericAllocationHandle))find_later("cuSimMemBind"))(handle));
	get_device =
		(CUresult(*)(int *, CUmemGenericAllocationHandle))find_later("cuSimMemGetDevice");
	printf("pid %d\n", (int)getpid());
	for (unsigned int tick = 1;; tick++) {
		OK(CU(cuMemsetD32_v2)(memory, tick, WORDS));
		if (strcmp(what, "asks") == 0)
			OK(get_device(&device, handle));
		usleep(10000);
		check_memory(memory, tick);
		if (is_told && pool) {
			OK(CU(cuMemPoolDestroy)(pool));
			OK(CU(cuMemFreeAsync)(piece, NULL));
			OK(CU(cuStreamSynchronize)(NULL));
			pool = NULL;
		}
		printf("tick %u ok\n", tick);
		fflush(stdout);
	}
}

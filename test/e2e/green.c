/* SPDX-License-Identifier: MIT */
/*
 * A program that works in a green context, and checks its memory each tick. Usage: green [spin]
 * [--...]. With `spin` one of the green context's streams has a kernel that runs until SIGUSR1, and
 * after it a kernel that counts. SIGUSR2 destroys the green context; the primary context then does
 * the work.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/e2e/vendor.h"
#include "tools/gpu/kernels.h"

#define BYTES (4u << 20)
#define WORDS (BYTES / sizeof(unsigned int))

/* Functions that cuda_api.h does not declare. */
CUresult cuDeviceGetDevResource(CUdevice device, void *resource, unsigned type);
CUresult cuDevResourceGenerateDesc(void **description, void *resources, unsigned count);
CUresult cuGreenCtxCreate(void **green, void *description, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(void *green);
CUresult cuGreenCtxStreamCreate(CUstream *stream, void *green, unsigned flags, int priority);
CUresult cuCtxFromGreenCtx(CUcontext *context, void *green);

static unsigned int *host_flag;
static volatile sig_atomic_t is_over;

static void end_kernel(int number)
{
	__atomic_store_n(host_flag, 1, __ATOMIC_SEQ_CST);
}

static void end_green(int number)
{
	is_over = 1;
}

static void *make_green(void)
{
	unsigned char resource[1024] = {0};
	void *description, *green;

	OK(CU(cuDeviceGetDevResource)(0, resource, 1));
	OK(CU(cuDevResourceGenerateDesc)(&description, resource, 1));
	OK(CU(cuGreenCtxCreate)(&green, description, 0, 1));
	return green;
}

static CUfunction get_function(const char *name)
{
	CUfunction function;
	CUmodule module;

	OK(CU(cuModuleLoadData)(&module, gcr_demo_ptx));
	OK(CU(cuModuleGetFunction)(&function, module, name));
	return function;
}

static void launch(CUfunction function, CUstream stream, void **arguments)
{
	OK(CU(cuLaunchKernel)(function, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

static void add_one(CUfunction add, CUstream stream, CUdeviceptr memory)
{
	unsigned long long first = 0, words = WORDS;
	unsigned int one = 1;

	launch(add, stream, (void *[]){&memory, &first, &words, &one});
}

static CUdeviceptr make_memory(void)
{
	CUdeviceptr memory;

	OK(CU(cuMemAlloc_v2)(&memory, BYTES));
	OK(CU(cuMemsetD32_v2)(memory, 0, WORDS));
	OK(CU(cuCtxSynchronize)());
	return memory;
}

static void check_memory(const char *name, CUdeviceptr memory, unsigned int value)
{
	static unsigned int words[WORDS];

	OK(CU(cuMemcpyDtoH_v2)(words, memory, BYTES));
	for (size_t i = 0; i < WORDS; i++)
		if (words[i] != value) {
			fprintf(stderr, "%s: word %zu is %u, not %u\n", name, i, words[i], value);
			exit(1);
		}
}

int main(int argc, char **argv)
{
	bool spins = argc > 1 && strcmp(argv[1], "spin") == 0, is_late = spins;
	CUdeviceptr memory, late, flag;
	CUcontext context, as_context, popped;
	CUstream stream, other;
	CUfunction add, spin;
	void *green;

	vendor_open();
	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	OK(CU(cuCtxSetCurrent)(context));
	OK(CU(cuMemHostAlloc)((void **)&host_flag, 4096, 0));
	OK(CU(cuMemHostGetDevicePointer_v2)(&flag, host_flag, 0));
	*host_flag = 0;
	signal(SIGUSR1, end_kernel);
	signal(SIGUSR2, end_green);
	add = get_function("gpucr_add");
	spin = get_function("gpucr_spin");
	late = make_memory();
	green = make_green();
	/* A stream of each kind, and memory allocated in the green context. */
	OK(CU(cuGreenCtxStreamCreate)(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	OK(CU(cuCtxFromGreenCtx)(&as_context, green));
	OK(CU(cuCtxPushCurrent_v2)(as_context));
	OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
	memory = make_memory();
	OK(CU(cuCtxPopCurrent_v2)(&popped));
	if (spins) {
		launch(spin, stream, (void *[]){&flag});
		add_one(add, stream, late);
	}
	printf("pid %d\n", (int)getpid());
	for (unsigned int tick = 1;; tick++) {
		add_one(add, other, memory);
		OK(CU(cuStreamSynchronize)(other));
		usleep(10000);
		check_memory("memory", memory, tick);
		if (is_over && green) {
			OK(CU(cuGreenCtxDestroy)(green));
			OK(CU(cuStreamDestroy_v2)(other));
			OK(CU(cuStreamDestroy_v2)(stream));
			OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
			green = NULL;
		}
		/* The stream is destroyed and cannot be queried. */
		if (is_late && !green && __atomic_load_n(host_flag, __ATOMIC_SEQ_CST)) {
			OK(CU(cuCtxSynchronize)());
			check_memory("late", late, 1);
			is_late = false;
		}
		if (is_late && green && CU(cuStreamQuery)(stream) == CUDA_SUCCESS) {
			check_memory("late", late, 1);
			is_late = false;
		}
		printf("tick %u ok\n", tick);
		fflush(stdout);
	}
}

/* SPDX-License-Identifier: MIT */
/*
 * The library that deepbind.c opens. The library gets the driver's functions by dlsym and by
 * cuGetProcAddress, or with IS_LINKED by being linked with libcuda; each "tick" it changes memory
 * and compares all of it. With IS_HELPER: a library that is found only by the RUNPATH of the
 * plugin.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"

#define BYTES (8u << 20)
#define WORDS (BYTES / sizeof(unsigned int))

#ifdef IS_HELPER

int gcr_test_help(void);
int gcr_test_help(void)
{
	return 42;
}

#else

int run(void);

#ifdef IS_LINKED
#define CU(name) name
#else

static void *find(const char *name, const char *base)
{
	static void *library;
	static __typeof__(cuGetProcAddress_v2) *get;
	CUdriverProcAddressQueryResult status;
	void *function = NULL;

	if (!library) {
		library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		get = library ? (__typeof__(get))dlsym(library, "cuGetProcAddress_v2") : NULL;
	}
	if (!get) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	/* Some functions in one way and some in the other. */
	if (name[2] == 'M')
		get(base, &function, CUDA_VERSION, 0, &status);
	else
		function = dlsym(library, name);
	if (!function) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return function;
}

#define BASE_cuInit		      "cuInit"
#define BASE_cuDevicePrimaryCtxRetain "cuDevicePrimaryCtxRetain"
#define BASE_cuCtxSetCurrent	      "cuCtxSetCurrent"
#define BASE_cuMemAlloc_v2	      "cuMemAlloc"
#define BASE_cuMemsetD32_v2	      "cuMemsetD32"
#define BASE_cuMemcpyDtoH_v2	      "cuMemcpyDtoH"
#define CU(name)		      ((__typeof__(name) *)find(#name, BASE_##name))

#endif

#define OK(call)                                                           \
	do {                                                               \
		int result_ = (int)(call);                                 \
		if (result_) {                                             \
			fprintf(stderr, "%s: error %d\n", #call, result_); \
			exit(1);                                           \
		}                                                          \
	} while (0)

/* Open the helper library, which is found by the RUNPATH and $ORIGIN of the library that opens. */
static void open_helper(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	int (*help)(void) = library ? (int (*)(void))dlsym(library, "gcr_test_help") : NULL;

	if (!help || help() != 42) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	dlclose(library);
}

int run(void)
{
	unsigned int *words = malloc(BYTES);
	CUdeviceptr memory;
	CUcontext context;

	open_helper("libdeepbind-helper.so");
	open_helper("$ORIGIN/libdeepbind-helper.so");
	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	OK(CU(cuCtxSetCurrent)(context));
	OK(CU(cuMemAlloc_v2)(&memory, BYTES));
	printf("pid %d\n", (int)getpid());
	for (unsigned int tick = 1; words; tick++) {
		OK(CU(cuMemsetD32_v2)(memory, tick, WORDS));
		usleep(10000);
		OK(CU(cuMemcpyDtoH_v2)(words, memory, BYTES));
		for (size_t i = 0; i < WORDS; i++)
			if (words[i] != tick) {
				fprintf(stderr, "word %zu is %u\n", i, words[i]);
				return 1;
			}
		printf("tick %u ok\n", tick);
		fflush(stdout);
	}
	return 1;
}

#endif

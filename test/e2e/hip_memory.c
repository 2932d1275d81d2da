/* SPDX-License-Identifier: MIT */
/*
 * A HIP program with memory of every kind: from hipMalloc, mapped, managed, on the host, from a
 * pool. For each line on its standard input the program checks all memory, changes the memory with
 * kernels, and prints `tick N`. Usage: hip_memory LIBRARY, the path of libamdhip64.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/rocm/hip_api.h"

#define MIB    (1ull << 20)
#define PIECES 5

static void *library;

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return found;
}

#define HIP(name) ((__typeof__(name) *)symbol(#name))

static void ok(hipError_t error, const char *what)
{
	if (error) {
		fprintf(stderr, "%s: %d\n", what, error);
		exit(1);
	}
}
#define OK(call) ok(call, #call)

static struct {
	const char *kind;
	char *memory;
	size_t bytes;
} pieces[PIECES];

static hipStream_t stream;
static hipFunction_t add;

static void *map(size_t bytes)
{
	const hipMemAllocationProp prop = {.type = hipMemAllocationTypePinned,
					   .requestedHandleType =
						   hipMemHandleTypePosixFileDescriptor,
					   .location = {.type = hipMemLocationTypeDevice}};
	const hipMemAccessDesc access = {.location = prop.location,
					 .flags = hipMemAccessFlagsProtReadWrite};
	hipMemGenericAllocationHandle_t handle;
	void *range;

	OK(HIP(hipMemAddressReserve)(&range, bytes, 0, NULL, 0));
	OK(HIP(hipMemCreate)(&handle, bytes, &prop, 0));
	OK(HIP(hipMemMap)(range, bytes, 0, handle, 0));
	OK(HIP(hipMemSetAccess)(range, bytes, &access, 1));
	OK(HIP(hipMemRelease)(handle));
	return range;
}

static void make(void)
{
	void *memory;

	OK(HIP(hipMalloc)(&memory, 4 * MIB));
	pieces[0].kind = "hipMalloc", pieces[0].memory = memory, pieces[0].bytes = 4 * MIB;
	pieces[1].kind = "mapped", pieces[1].memory = map(2 * MIB), pieces[1].bytes = 2 * MIB;
	OK(HIP(hipMallocManaged)(&memory, 2 * MIB, hipMemAttachGlobal));
	pieces[2].kind = "managed", pieces[2].memory = memory, pieces[2].bytes = 2 * MIB;
	OK(HIP(hipHostMalloc)(&memory, MIB, 0));
	pieces[3].kind = "host", pieces[3].memory = memory, pieces[3].bytes = MIB;
	OK(HIP(hipMallocAsync)(&memory, MIB, stream));
	pieces[4].kind = "pool", pieces[4].memory = memory, pieces[4].bytes = MIB;
}

static void change(unsigned value)
{
	unsigned long long first = 0;

	for (unsigned i = 0; i < PIECES; i++) {
		unsigned long long words = pieces[i].bytes / 4;
		void *params[] = {&pieces[i].memory, &first, &words, &value};

		OK(HIP(hipModuleLaunchKernel)(add, 8, 1, 1, 64, 1, 1, 0, stream, params, NULL));
	}
	OK(HIP(hipStreamSynchronize)(stream));
}

/* Check (or fill) all pieces: word k of piece i is i * 1000000 + k plus @sum. */
static void check(unsigned sum, bool fill)
{
	for (unsigned i = 0; i < PIECES; i++) {
		unsigned *words = malloc(pieces[i].bytes);

		if (!words)
			exit(1);
		if (!fill)
			OK(HIP(hipMemcpy)(words, pieces[i].memory, pieces[i].bytes,
					  hipMemcpyDefault));
		for (size_t k = 0; k < pieces[i].bytes / 4; k++) {
			unsigned expected = i * 1000000 + (unsigned)k + sum;

			if (fill) {
				words[k] = expected;
			} else if (words[k] != expected) {
				fprintf(stderr, "%s, word %zu: %u, not %u\n", pieces[i].kind, k,
					words[k], expected);
				exit(1);
			}
		}
		if (fill)
			OK(HIP(hipMemcpy)(pieces[i].memory, words, pieces[i].bytes,
					  hipMemcpyDefault));
		free(words);
	}
}

int main(int argc, char **argv)
{
	unsigned sum = 0, tick = 0;
	hipModule_t module;
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 2 || !(library = dlopen(argv[1], RTLD_NOW))) {
		fprintf(stderr, "usage: hip_memory LIBRARY: %s\n", dlerror());
		return 2;
	}
	OK(HIP(hipModuleLoadData)(&module, "gpucrfs simulated code\nkernel gpucr_add\n"));
	OK(HIP(hipModuleGetFunction)(&add, module, "gpucr_add"));
	OK(HIP(hipStreamCreate)(&stream));
	make();
	check(0, true);
	do {
		check(sum, false);
		change(++tick);
		sum += tick;
		check(sum, false);
		printf("tick %u\n", tick);
	} while (fgets(line, sizeof(line), stdin));
	return 0;
}

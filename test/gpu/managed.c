/* SPDX-License-Identifier: MIT */
/*
 * managed: a program with managed memory that knows its contents. Kernels change one part of each
 * block and are checked, while a thread of the CPU counts in another part all the time, also during
 * a freeze and while the program is frozen: then the thread has to wait. Between its allocations
 * the program maps other memory, as programs do. Prints `pid N`, then `tick K ok`; ends with status
 * 1 at the first wrong word.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "tools/gpu/kernels.h"

#define BLOCKS	     7
#define CPU_BYTES    4096 /* the CPU's part, a page at the start of each block */
#define PLAIN_BYTES  (64 << 20)
#define MAPPED_BYTES (5 << 20)
#define MULTIPLIER   GCR_DEMO_MULTIPLIER

#define CALLS(X)                    \
	X(cuInit)                   \
	X(cuDeviceGet)              \
	X(cuDeviceGetAttribute)     \
	X(cuDevicePrimaryCtxRetain) \
	X(cuCtxSetCurrent)          \
	X(cuCtxSynchronize)         \
	X(cuModuleLoadData)         \
	X(cuModuleGetFunction)      \
	X(cuMemAlloc_v2)            \
	X(cuMemAllocManaged)        \
	X(cuMemFree_v2)             \
	X(cuMemAdvise)              \
	X(cuMemsetD32_v2)           \
	X(cuMemcpyDtoH_v2)          \
	X(cuLaunchKernel)

#define MEMBER(name) __typeof__(name) *name;
static struct {
	CALLS(MEMBER)
} driver;

#define CU(name, ...)                                                     \
	do {                                                              \
		CUresult result_ = driver.name(__VA_ARGS__);              \
		if (result_) {                                            \
			fprintf(stderr, "%s: %d\n", #name, (int)result_); \
			exit(1);                                          \
		}                                                         \
	} while (0)

struct block {
	size_t bytes;
	CUdeviceptr pointer;
	uint32_t seed, added;
	uint64_t sum;
};

static struct block blocks[BLOCKS + 1]; /* the last is plain memory, without a part of the CPU */
static const size_t sizes[BLOCKS] = {
	65536, 200704, 3 << 20, 32 << 20, 33 << 20, 64 << 20, 16 << 20,
};
static CUfunction fill, add, checksum;
static CUdeviceptr result;
static atomic_ulong touches;
static atomic_bool wrong;
static int concurrent;

/* Returns the address of the GPU's part of @block, and its size in words. */
static CUdeviceptr gpu_part(const struct block *block, uint64_t *ret_words)
{
	size_t skipped = block == &blocks[BLOCKS] ? 0 : CPU_BYTES;

	*ret_words = (block->bytes - skipped) / sizeof(uint32_t);
	return block->pointer + skipped;
}

static void launch(CUfunction function, void **arguments)
{
	CU(cuLaunchKernel, function, 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL);
}

static uint64_t sum_words(const struct block *block)
{
	uint64_t words, sum = 0;

	gpu_part(block, &words);
	for (uint64_t i = 0; i < words; i++) {
		uint32_t word = (block->seed ^ (uint32_t)i * MULTIPLIER) + block->added;

		sum += ((uint64_t)word + 1) * (2 * i + 1);
	}
	return sum;
}

static void check_block(struct block *block, unsigned int index, uint64_t tick)
{
	uint64_t words, sum;
	CUdeviceptr pointer = gpu_part(block, &words);

	CU(cuMemsetD32_v2, result, 0, 2);
	launch(checksum, (void *[]){&pointer, &words, &result});
	CU(cuMemcpyDtoH_v2, &sum, result, sizeof(sum));
	if (sum == block->sum)
		return;
	fprintf(stderr, "tick %llu: block %u (%zu bytes at 0x%llx) has changed\n",
		(unsigned long long)tick, index, block->bytes, block->pointer);
	exit(1);
}

static void change_block(struct block *block, uint64_t tick)
{
	uint32_t value = (uint32_t)tick * MULTIPLIER;
	uint64_t words, first = 0;
	CUdeviceptr pointer = gpu_part(block, &words);

	launch(add, (void *[]){&pointer, &first, &words, &value});
	block->added += value;
	block->sum = sum_words(block);
}

/* Counts in the first page of every block; every 61st word of the page must have the last count. */
static void *touch(void *data)
{
	uint32_t expected = 0;

	for (;;) {
		for (int i = 0; i < BLOCKS; i++) {
			volatile uint32_t *page = (volatile uint32_t *)(uintptr_t)blocks[i].pointer;

			for (size_t word = 0; word < CPU_BYTES / sizeof(*page); word += 61) {
				if (page[word] != expected) {
					fprintf(stderr,
						"block %d, word %zu of the CPU's: %u, not %u\n", i,
						word, page[word], expected);
					atomic_store(&wrong, true);
					return data;
				}
				page[word] = expected + 1;
			}
		}
		expected++;
		atomic_fetch_add(&touches, 1);
		if (expected % 64 == 0)
			nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
}

static void open_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define LOOK_UP(name)                                               \
	driver.name = (__typeof__(name) *)dlsym(library, #name);    \
	if (!driver.name) {                                         \
		fprintf(stderr, "libcuda.so.1 has no %s\n", #name); \
		exit(1);                                            \
	}
	CALLS(LOOK_UP)
}

static void create(void)
{
	CUdeviceptr freed;
	CUcontext context;
	CUmodule module;
	CUdevice device;

	CU(cuInit, 0);
	CU(cuDeviceGet, &device, 0);
	CU(cuDevicePrimaryCtxRetain, &context, device);
	CU(cuCtxSetCurrent, context);
	CU(cuDeviceGetAttribute, &concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
	   device);
	CU(cuModuleLoadData, &module, gcr_demo_ptx);
	CU(cuModuleGetFunction, &fill, module, "gpucr_fill");
	CU(cuModuleGetFunction, &add, module, "gpucr_add");
	CU(cuModuleGetFunction, &checksum, module, "gpucr_checksum");
	CU(cuMemAlloc_v2, &result, sizeof(uint64_t));
	for (int i = 0; i <= BLOCKS; i++) {
		struct block *block = &blocks[i];
		CUdeviceptr pointer;
		uint64_t words;

		block->bytes = i < BLOCKS ? sizes[i] : PLAIN_BYTES;
		block->seed = (uint32_t)(i + 1) * 0x9e3779b9u;
		if (i == BLOCKS) {
			CU(cuMemAlloc_v2, &block->pointer, block->bytes);
		} else {
			/* Leaves a gap where another allocation was. */
			CU(cuMemAllocManaged, &freed, 2 << 20, CU_MEM_ATTACH_GLOBAL);
			CU(cuMemAllocManaged, &block->pointer, block->bytes, CU_MEM_ATTACH_GLOBAL);
			CU(cuMemFree_v2, freed);
			memset((void *)(uintptr_t)block->pointer, 0, CPU_BYTES);
		}
		mmap(NULL, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		     0);
		pointer = gpu_part(block, &words);
		launch(fill, (void *[]){&pointer, &words, &block->seed});
		block->sum = sum_words(block);
	}
	CU(cuMemAdvise, blocks[3].pointer, blocks[3].bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
	   device);
	CU(cuMemAdvise, blocks[4].pointer, blocks[4].bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
	CU(cuCtxSynchronize);
}

int main(void)
{
	unsigned long before = 0;
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	open_driver();
	create();
	/* If the GPU's work keeps the CPU out of managed memory, only the GPU uses it. */
	if (concurrent && pthread_create(&thread, NULL, touch, NULL)) {
		fputs("no thread\n", stderr);
		return 1;
	}
	printf("pid %ld\n", (long)getpid());
	for (uint64_t tick = 1;; tick++) {
		for (unsigned int i = 0; i <= BLOCKS; i++)
			check_block(&blocks[i], i, tick);
		change_block(&blocks[tick % (BLOCKS + 1)], tick);
		CU(cuCtxSynchronize);
		if (atomic_load(&wrong))
			return 1;
		printf("tick %llu ok\n", (unsigned long long)tick);
		/* In each tick the CPU must have made progress too. */
		while (concurrent && atomic_load(&touches) == before && !atomic_load(&wrong))
			usleep(1000);
		before = atomic_load(&touches);
		usleep(100000);
	}
}

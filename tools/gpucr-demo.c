/* SPDX-License-Identifier: MIT */
/*
 * gpucr-demo: a "model" that knows its weights. It fills VRAM with a pattern, changes some of it
 * with a kernel every tick and checks all of it on the GPU every tick, against sums worked out on
 * the CPU without looking at the GPU's bytes. Frozen and thawed, it ticks on or says what changed.
 *
 * One thread, one context, the CUDA driver API only (looked up at run time).
 */
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "lib/cleanup.h"
#include "tools/demo_kernels.h"

/* A tick changes one block of each buffer; the CPU keeps one sum and one number for each block. */
#define BLOCK_WORDS (UINT64_C(1) << 18)

#define GRID_BLOCKS	1024
#define GRID_THREADS	256
#define SUM_THREADS_MAX 64

#define DRIVER_FUNCTIONS(X)             \
	X(cuInit)                       \
	X(cuGetErrorName)               \
	X(cuDeviceGet)                  \
	X(cuDevicePrimaryCtxRetain)     \
	X(cuDevicePrimaryCtxRelease_v2) \
	X(cuCtxSetCurrent)              \
	X(cuCtxSynchronize)             \
	X(cuModuleLoadData)             \
	X(cuModuleUnload)               \
	X(cuModuleGetFunction)          \
	X(cuMemAlloc_v2)                \
	X(cuMemAllocManaged)            \
	X(cuMemFree_v2)                 \
	X(cuMemsetD32_v2)               \
	X(cuMemcpyDtoH_v2)              \
	X(cuLaunchKernel)

#define MEMBER(name) __typeof__(name) *name;
static struct {
	DRIVER_FUNCTIONS(MEMBER)
} driver;

struct block {
	uint32_t added; /* sum of all values added to each word since the fill */
	uint64_t sum;	/* what gpucr_checksum adds up for this block */
};

struct buffer {
	CUdeviceptr pointer;
	uint32_t seed;
	bool managed;
	struct block *blocks;
	uint64_t sum; /* of all blocks */
};

struct demo {
	/* as asked for */
	uint64_t bytes, buffer_count, managed_count, tick_msec, ticks;
	uint64_t gpu;

	/* geometry, the same for each buffer */
	uint64_t words, block_count;

	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction fill, add, checksum;
	CUdeviceptr sums; /* one 64-bit sum for each buffer */
	struct buffer *buffers;
	uint64_t count;
};

static void __attribute__((format(printf, 1, 2))) complain(const char *format, ...)
{
	va_list arguments;

	fputs("gpucr-demo: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static int driver_error(const char *call, CUresult result)
{
	const char *name = NULL;

	if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "unknown error";
	complain("%s: %s (%d)", call, name, (int)result);
	return -EIO;
}

/* 0, or -EIO with the call and the driver's name for what went wrong on stderr. */
#define CU(name, ...)                                                             \
	({                                                                        \
		CUresult cu_result_ = driver.name(__VA_ARGS__);                   \
		cu_result_ == CUDA_SUCCESS ? 0 : driver_error(#name, cu_result_); \
	})

static int driver_open(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

	if (!library) {
		complain("%s (no GPU driver here? `gpucr-run --sim gpucr-demo` uses the simulator)",
			 dlerror());
		return -ENOENT;
	}
#define LOOK_UP(name)                                                             \
	driver.name = (__typeof__(name) *)dlsym(library, #name);                  \
	if (!driver.name) {                                                       \
		complain("libcuda.so.1 has no %s: the driver is too old", #name); \
		return -ENOSYS;                                                   \
	}
	DRIVER_FUNCTIONS(LOOK_UP)
	return 0;
}

static uint64_t block_words(const struct demo *demo, uint64_t block)
{
	uint64_t left = demo->words - block * BLOCK_WORDS;

	return left < BLOCK_WORDS ? left : BLOCK_WORDS;
}

static uint32_t expected_word(const struct buffer *buffer, uint64_t word, uint32_t added)
{
	return (buffer->seed ^ (uint32_t)word * GCR_DEMO_MULTIPLIER) + added;
}

static void block_sum(const struct demo *demo, const struct buffer *buffer, uint64_t block)
{
	uint32_t added = buffer->blocks[block].added;
	uint64_t i = block * BLOCK_WORDS;
	uint64_t end = i + block_words(demo, block);
	uint64_t sum = 0;

	for (; i < end; i++)
		sum += ((uint64_t)expected_word(buffer, i, added) + 1) * (2 * i + 1);
	buffer->blocks[block].sum = sum;
}

/* The first sums are those of all words: shared out among threads that end before the first tick.
 */
struct sum_share {
	const struct demo *demo;
	uint64_t first, step;
	pthread_t thread;
};

static void *sum_thread(void *argument)
{
	const struct sum_share *share = argument;
	const struct demo *demo = share->demo;

	for (uint64_t i = share->first; i < demo->count * demo->block_count; i += share->step)
		block_sum(demo, &demo->buffers[i / demo->block_count], i % demo->block_count);
	return NULL;
}

static int sum_all(struct demo *demo)
{
	struct sum_share shares[SUM_THREADS_MAX];
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t threads = processors < 1 ? 1 : (uint64_t)processors;
	uint64_t started = 0;
	int error = 0;

	if (threads > SUM_THREADS_MAX)
		threads = SUM_THREADS_MAX;
	for (; started < threads; started++) {
		shares[started] = (struct sum_share){demo, started, threads, 0};
		error = -pthread_create(&shares[started].thread, NULL, sum_thread,
					&shares[started]);
		if (error < 0)
			break;
	}
	for (uint64_t i = 0; i < started; i++)
		pthread_join(shares[i].thread, NULL);
	if (error < 0) {
		complain("no thread for the first sums: %s", strerror(-error));
		return error;
	}

	for (uint64_t i = 0; i < demo->count; i++) {
		struct buffer *buffer = &demo->buffers[i];

		for (uint64_t block = 0; block < demo->block_count; block++)
			buffer->sum += buffer->blocks[block].sum;
	}
	return 0;
}

static int launch(CUfunction function, void **arguments)
{
	return CU(cuLaunchKernel, function, GRID_BLOCKS, 1, 1, GRID_THREADS, 1, 1, 0, NULL,
		  arguments, NULL);
}

static int buffer_create(struct demo *demo, uint64_t index)
{
	struct buffer *buffer = &demo->buffers[index];
	int error;

	buffer->managed = index >= demo->buffer_count;
	buffer->seed = (uint32_t)(index + 1) * 0x9e3779b9u;
	buffer->blocks = calloc(demo->block_count, sizeof(*buffer->blocks));
	if (!buffer->blocks) {
		complain("out of memory");
		return -ENOMEM;
	}
	if (buffer->managed)
		error = CU(cuMemAllocManaged, &buffer->pointer, demo->words * sizeof(uint32_t),
			   CU_MEM_ATTACH_GLOBAL);
	else
		error = CU(cuMemAlloc_v2, &buffer->pointer, demo->words * sizeof(uint32_t));
	if (error < 0) {
		complain("no memory for buffer %" PRIu64 " of %" PRIu64 ", %" PRIu64 " bytes each",
			 index, demo->count, demo->words * sizeof(uint32_t));
		return error;
	}
	return launch(demo->fill, (void *[]){&buffer->pointer, &demo->words, &buffer->seed});
}

static int demo_open(struct demo *demo)
{
	int error;

	error = driver_open();
	if (error < 0)
		return error;
	if ((error = CU(cuInit, 0)) < 0 ||
	    (error = CU(cuDeviceGet, &demo->device, (int)demo->gpu)) < 0 ||
	    (error = CU(cuDevicePrimaryCtxRetain, &demo->context, demo->device)) < 0 ||
	    (error = CU(cuCtxSetCurrent, demo->context)) < 0 ||
	    (error = CU(cuModuleLoadData, &demo->module, gcr_demo_ptx)) < 0 ||
	    (error = CU(cuModuleGetFunction, &demo->fill, demo->module, "gpucr_fill")) < 0 ||
	    (error = CU(cuModuleGetFunction, &demo->add, demo->module, "gpucr_add")) < 0 ||
	    (error = CU(cuModuleGetFunction, &demo->checksum, demo->module, "gpucr_checksum")) < 0)
		return error;

	demo->buffers = calloc(demo->count, sizeof(*demo->buffers));
	if (!demo->buffers) {
		complain("out of memory");
		return -ENOMEM;
	}
	error = CU(cuMemAlloc_v2, &demo->sums, demo->count * sizeof(uint64_t));
	if (error < 0)
		return error;
	for (uint64_t i = 0; i < demo->count; i++) {
		error = buffer_create(demo, i);
		if (error < 0)
			return error;
	}
	error = sum_all(demo);
	if (error < 0)
		return error;
	return CU(cuCtxSynchronize);
}

/* After an @error the driver is left alone: it may hang, and the kernel frees all. */
static int demo_close(struct demo *demo, int error)
{
	for (uint64_t i = 0; i < demo->count && demo->buffers; i++) {
		if (demo->buffers[i].pointer && !error)
			error = CU(cuMemFree_v2, demo->buffers[i].pointer);
		free(demo->buffers[i].blocks);
	}
	free(demo->buffers);
	if (!error)
		error = CU(cuMemFree_v2, demo->sums);
	if (!error)
		error = CU(cuModuleUnload, demo->module);
	if (!error)
		error = CU(cuDevicePrimaryCtxRelease_v2, demo->device);
	return error;
}

/* Each buffer's block for this tick grows by a value that no other tick adds. */
static int demo_change(struct demo *demo, uint64_t tick)
{
	uint64_t block = (tick - 1) % demo->block_count;
	uint64_t first = block * BLOCK_WORDS;
	uint64_t words = block_words(demo, block);
	uint32_t value = (uint32_t)tick * GCR_DEMO_MULTIPLIER;

	for (uint64_t i = 0; i < demo->count; i++) {
		struct buffer *buffer = &demo->buffers[i];
		int error = launch(demo->add, (void *[]){&buffer->pointer, &first, &words, &value});

		if (error < 0)
			return error;
		buffer->sum -= buffer->blocks[block].sum;
		buffer->blocks[block].added += value;
		block_sum(demo, buffer, block);
		buffer->sum += buffer->blocks[block].sum;
	}
	return 0;
}

/* A sum is wrong: read the buffer back and say which words are. */
static void explain(struct demo *demo, uint64_t index)
{
	const struct buffer *buffer = &demo->buffers[index];
	_cleanup_free_ uint32_t *words = malloc(BLOCK_WORDS * sizeof(*words));
	uint64_t wrong = 0, where = 0;
	uint32_t expected = 0, found = 0;

	if (!words)
		return;
	for (uint64_t block = 0; block < demo->block_count; block++) {
		uint64_t first = block * BLOCK_WORDS;
		uint64_t count = block_words(demo, block);

		if (CU(cuMemcpyDtoH_v2, words, buffer->pointer + first * sizeof(*words),
		       count * sizeof(*words)) < 0)
			return;
		for (uint64_t i = 0; i < count; i++) {
			uint32_t word =
				expected_word(buffer, first + i, buffer->blocks[block].added);

			if (words[i] == word)
				continue;
			if (!wrong++) {
				where = first + i;
				expected = word;
				found = words[i];
			}
		}
	}
	if (wrong)
		complain("buffer %" PRIu64 ": %" PRIu64 " of %" PRIu64 " words differ, the first at"
			 " byte %" PRIu64 ": expected 0x%08" PRIx32 ", found 0x%08" PRIx32,
			 index, wrong, demo->words, where * sizeof(*words), expected, found);
	else
		complain("buffer %" PRIu64 ": read back, every word is as expected", index);
}

static int demo_check(struct demo *demo, uint64_t tick)
{
	_cleanup_free_ uint64_t *sums = malloc(demo->count * sizeof(*sums));
	int error;

	if (!sums) {
		complain("out of memory");
		return -ENOMEM;
	}
	error = CU(cuMemsetD32_v2, demo->sums, 0,
		   demo->count * (sizeof(uint64_t) / sizeof(uint32_t)));
	for (uint64_t i = 0; i < demo->count && !error; i++) {
		CUdeviceptr result = demo->sums + i * sizeof(uint64_t);

		error = launch(demo->checksum,
			       (void *[]){&demo->buffers[i].pointer, &demo->words, &result});
	}
	if (!error)
		error = CU(cuMemcpyDtoH_v2, sums, demo->sums, demo->count * sizeof(*sums));
	if (error < 0)
		return error;

	for (uint64_t i = 0; i < demo->count; i++) {
		const struct buffer *buffer = &demo->buffers[i];

		if (sums[i] == buffer->sum)
			continue;
		complain("tick %" PRIu64 ": buffer %" PRIu64 " (%" PRIu64 " bytes of %s memory at"
			 " 0x%llx): expected sum 0x%016" PRIx64 ", found 0x%016" PRIx64,
			 tick, i, demo->words * sizeof(uint32_t),
			 buffer->managed ? "managed" : "device", buffer->pointer, buffer->sum,
			 sums[i]);
		explain(demo, i);
		error = -EBADMSG;
	}
	return error;
}

static int demo_run(struct demo *demo)
{
	struct timespec pause = {
		.tv_sec = (time_t)(demo->tick_msec / 1000),
		.tv_nsec = (long)(demo->tick_msec % 1000) * 1000000,
	};
	int error;

	printf("pid %ld\n", (long)getpid());
	for (uint64_t tick = 1; !demo->ticks || tick <= demo->ticks; tick++) {
		if (tick > 1)
			nanosleep(&pause, NULL);
		error = demo_change(demo, tick);
		if (!error)
			error = demo_check(demo, tick);
		if (error < 0)
			return error;
		if (printf("tick %" PRIu64 " ok\n", tick) < 0)
			return -EPIPE;
	}
	return 0;
}

/*
 * At once, and by _exit: the main thread may be waiting in a driver call of a frozen process, and
 * the driver's own clean-up would wait there too. The kernel frees what we held.
 */
static void stop(int signal_number)
{
	(void)signal_number;
	_exit(EXIT_SUCCESS);
}

/* "64", "64K", "1M", "2G": powers of 1024. 0 or -EINVAL. */
static int parse_number(const char *text, uint64_t *ret_number)
{
	static const char suffixes[] = "KMG";
	unsigned long long number;
	const char *suffix;
	char *end;
	int shift = 0;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end) {
		suffix = strchr(suffixes, *end);
		if (!suffix || end[1])
			return -EINVAL;
		shift = 10 * (int)(suffix - suffixes + 1);
	}
	if (number > UINT64_MAX >> shift)
		return -EINVAL;
	*ret_number = number << shift;
	return 0;
}

static const struct {
	const char *name, *argument;
	size_t offset;
	uint64_t max;
	const char *help;
} options[] = {
	{"bytes", "N", offsetof(struct demo, bytes), UINT64_C(1) << 50,
	 "VRAM to fill, all buffers together (default 64M)"},
	{"buffers", "N", offsetof(struct demo, buffer_count), 4096, "share it out (default 4)"},
	{"managed", "N", offsetof(struct demo, managed_count), 4096,
	 "further buffers, of the same size, in managed memory (default 0)"},
	{"tick", "MS", offsetof(struct demo, tick_msec), 86400000,
	 "pause between ticks, in ms (default 500)"},
	{"ticks", "N", offsetof(struct demo, ticks), UINT64_MAX,
	 "end after this many ticks (default 0: never)"},
	{"gpu", "N", offsetof(struct demo, gpu), INT_MAX, "the GPU to use (default 0)"},
};

static void usage(FILE *stream)
{
	fputs("Usage: gpucr-demo [OPTION]...\n"
	      "Fill VRAM, change some of it and check all of it at every tick.\n"
	      "\n",
	      stream);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(options); i++)
		fprintf(stream, "  --%-7s %-4s %s\n", options[i].name, options[i].argument,
			options[i].help);
	fputs("  --help         print this\n"
	      "\n"
	      "N may end in K, M or G (powers of 1024). Prints `pid N` when the VRAM is filled, "
	      "then\n"
	      "`tick K ok` for each tick; ends with status 1 at the first byte that is wrong.\n",
	      stream);
}

static int parse_arguments(struct demo *demo, int argc, char **argv)
{
	enum { HELP = GCR_ARRAY_SIZE(options) };
	struct option longs[GCR_ARRAY_SIZE(options) + 2] = {{0}};
	uint64_t number;
	int found;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(options); i++)
		longs[i] = (struct option){options[i].name, required_argument, NULL, 0};
	longs[HELP].name = "help";

	for (;;) {
		int option = getopt_long(argc, argv, "", longs, &found);

		if (option == -1)
			break;
		if (option == '?')
			return -EINVAL;
		if (found == HELP) {
			usage(stdout);
			exit(EXIT_SUCCESS);
		}
		if (parse_number(optarg, &number) < 0 || number > options[found].max) {
			complain("--%s: not a number it can take: %s", options[found].name, optarg);
			return -EINVAL;
		}
		*(uint64_t *)(void *)((char *)demo + options[found].offset) = number;
	}
	if (optind < argc) {
		complain("unexpected argument: %s", argv[optind]);
		return -EINVAL;
	}

	demo->count = demo->buffer_count + demo->managed_count;
	if (!demo->count) {
		complain("no buffers");
		return -EINVAL;
	}
	demo->words = demo->bytes / (demo->buffer_count ? demo->buffer_count : demo->count) /
		      sizeof(uint32_t);
	if (!demo->words) {
		complain("--bytes: a buffer has at least 4 bytes");
		return -EINVAL;
	}
	demo->block_count = (demo->words + BLOCK_WORDS - 1) / BLOCK_WORDS;
	return 0;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = stop};
	struct demo demo = {
		.bytes = UINT64_C(64) << 20,
		.buffer_count = 4,
		.tick_msec = 500,
	};
	int error;

	if (parse_arguments(&demo, argc, argv) < 0) {
		fputs("Try 'gpucr-demo --help'.\n", stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);

	error = demo_open(&demo);
	if (!error)
		error = demo_run(&demo);
	error = demo_close(&demo, error);
	return error < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/*
 * probes: programs each of which uses one feature that a freeze could break and no other program
 * here uses.
 * usage: probes NAME [can]
 * A program prints `pid N`, then `tick K ok` as long as all results are right; at the first wrong
 * result it prints a message and ends with status 1. With `can` the program only checks whether the
 * driver has the feature: status 0, or 77 with a message. See `probes` below for the names.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "tools/gpu/kernels.h"

#define SKIP_STATUS 77
#define MIB	    (1u << 20)
#define THREADS	    256
#define BLOCKS	    64

/*
 * probe_slow: reads the clock until the given number of nanoseconds has passed, then each thread
 * writes its part of the words, and adds 1 to *result. probe_stack: 16 KiB of local memory for each
 * thread, filled, and summed from an offset that no compiler knows. probe_texture: copies word (x,
 * y) of the texture into a table.
 */
static const char slow_ptx[] = ".version 6.0\n"
			       ".target sm_50\n"
			       ".address_size 64\n"
			       ".visible .entry probe_slow(.param .u64 pointer, .param .u64 "
			       "result, .param .u64 nanoseconds)\n"
			       "{\n"
			       "	.reg .pred %wait;\n"
			       "	.reg .b32 %r<6>;\n"
			       "	.reg .b64 %p, %c, %limit, %start, %now, %offset;\n"
			       "	ld.param.u64 %p, [pointer];\n"
			       "	ld.param.u64 %c, [result];\n"
			       "	ld.param.u64 %limit, [nanoseconds];\n"
			       "	cvta.to.global.u64 %p, %p;\n"
			       "	cvta.to.global.u64 %c, %c;\n"
			       "	mov.u64 %start, %globaltimer;\n"
			       "LOOP:\n"
			       "	mov.u64 %now, %globaltimer;\n"
			       "	sub.u64 %now, %now, %start;\n"
			       "	setp.lt.u64 %wait, %now, %limit;\n"
			       "	@%wait bra LOOP;\n"
			       "	mov.u32 %r1, %ctaid.x;\n"
			       "	mov.u32 %r2, %ntid.x;\n"
			       "	mov.u32 %r3, %tid.x;\n"
			       "	mad.lo.u32 %r4, %r1, %r2, %r3;\n"
			       "	mul.wide.u32 %offset, %r4, 4;\n"
			       "	add.u64 %p, %p, %offset;\n"
			       "	st.global.u32 [%p], %r4;\n"
			       "	atom.global.add.u32 %r5, [%c], 1;\n"
			       "	ret;\n"
			       "}\n";
static const char stack_ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry probe_stack(.param .u64 result, .param .u32 seed)\n"
	"{\n"
	"	.local .align 16 .b8 frame[16384];\n"
	"	.reg .pred %more;\n"
	"	.reg .b32 %r<8>, %sum, %i, %seed, %word;\n"
	"	.reg .b64 %frame, %at, %p, %offset;\n"
	"	mov.u64 %frame, frame;\n"
	"	ld.param.u64 %p, [result];\n"
	"	ld.param.u32 %seed, [seed];\n"
	"	cvta.to.global.u64 %p, %p;\n"
	"	mov.u32 %r1, %ctaid.x;\n"
	"	mov.u32 %r2, %ntid.x;\n"
	"	mov.u32 %r3, %tid.x;\n"
	"	mad.lo.u32 %r4, %r1, %r2, %r3;\n"
	"	mov.u32 %i, 0;\n"
	"FILL:\n"
	"	mul.wide.u32 %offset, %i, 4;\n"
	"	add.u64 %at, %frame, %offset;\n"
	"	add.u32 %word, %i, %seed;\n"
	"	add.u32 %word, %word, %r4;\n"
	"	st.local.u32 [%at], %word;\n"
	"	add.u32 %i, %i, 1;\n"
	"	setp.lt.u32 %more, %i, 4096;\n"
	"	@%more bra FILL;\n"
	"	mov.u32 %sum, 0;\n"
	"	mov.u32 %i, 0;\n"
	"SUM:\n"
	"	add.u32 %r5, %i, %seed;\n"
	"	and.b32 %r5, %r5, 4095;\n"
	"	mul.wide.u32 %offset, %r5, 4;\n"
	"	add.u64 %at, %frame, %offset;\n"
	"	ld.local.u32 %word, [%at];\n"
	"	add.u32 %sum, %sum, %word;\n"
	"	add.u32 %i, %i, 1;\n"
	"	setp.lt.u32 %more, %i, 4096;\n"
	"	@%more bra SUM;\n"
	"	mul.wide.u32 %offset, %r4, 4;\n"
	"	add.u64 %p, %p, %offset;\n"
	"	st.global.u32 [%p], %sum;\n"
	"	ret;\n"
	"}\n";
static const char texture_ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry probe_texture(.param .u64 texture, .param .u64 result)\n"
	"{\n"
	"	.reg .b32 %x, %y, %w, %a, %b, %c, %d;\n"
	"	.reg .b64 %t, %p, %offset;\n"
	"	ld.param.u64 %t, [texture];\n"
	"	ld.param.u64 %p, [result];\n"
	"	cvta.to.global.u64 %p, %p;\n"
	"	mov.u32 %x, %tid.x;\n"
	"	mov.u32 %y, %ctaid.x;\n"
	"	mov.u32 %w, %ntid.x;\n"
	"	tex.2d.v4.u32.s32 {%a, %b, %c, %d}, [%t, {%x, %y}];\n"
	"	mad.lo.u32 %w, %y, %w, %x;\n"
	"	mul.wide.u32 %offset, %w, 4;\n"
	"	add.u64 %p, %p, %offset;\n"
	"	st.global.u32 [%p], %a;\n"
	"	ret;\n"
	"}\n";

/* ---- the driver ---- */

static void *library;

static void *find(const char *name)
{
	void *function = dlsym(library, name);

	if (!function) {
		printf("skip: the driver has no %s\n", name);
		exit(SKIP_STATUS);
	}
	return function;
}

#define CU(name) ((__typeof__(name) *)find(#name))
#define OK(call)                                                                              \
	do {                                                                                  \
		int result_ = (int)(call);                                                    \
		if (result_) {                                                                \
			fprintf(stderr, "line %d: %s: error %d\n", __LINE__, #call, result_); \
			exit(1);                                                              \
		}                                                                             \
	} while (0)
#define WRONG(...)                            \
	do {                                  \
		fprintf(stderr, __VA_ARGS__); \
		fputc('\n', stderr);          \
		exit(1);                      \
	} while (0)

static CUcontext context;

static void begin(void)
{
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library)
		WRONG("%s", dlerror());
	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	OK(CU(cuCtxSetCurrent)(context));
}

/* Returns NULL if the driver does not compile PTX text (the simulator). */
static CUfunction load(const char *ptx, const char *name)
{
	CUfunction function = NULL;
	CUmodule module;

	if (CU(cuModuleLoadData)(&module, ptx) || CU(cuModuleGetFunction)(&function, module, name))
		return NULL;
	return function;
}

static CUfunction need(const char *ptx, const char *name)
{
	CUfunction function = load(ptx, name);

	if (!function) {
		printf("skip: the driver does not take PTX text for %s\n", name);
		exit(SKIP_STATUS);
	}
	return function;
}

static void launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
		   void **arguments)
{
	OK(CU(cuLaunchKernel)(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL));
}

static CUdeviceptr allocate(size_t bytes)
{
	CUdeviceptr pointer;

	OK(CU(cuMemAlloc_v2)(&pointer, bytes));
	return pointer;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Prints that the program is ready; then, each time, that all results were right. */
static void tick(void)
{
	static unsigned long ticks;

	if (!ticks++)
		printf("pid %d\n", (int)getpid());
	printf("tick %lu ok\n", ticks);
	fflush(stdout);
}

/* ---- free: memory is freed while a kernel of one second still has to write to it ---- */

static CUdeviceptr flag;
static uint32_t *host_flag;

static void *raise_flag(void *nothing)
{
	sleep(1);
	__atomic_store_n(host_flag, 1, __ATOMIC_SEQ_CST);
	return nothing;
}

/*
 * For drivers whose kernels have no clock: a kernel that waits for the CPU, then kernels that
 * write.
 */
static void write_late(CUdeviceptr pointer, CUdeviceptr result, pthread_t *thread)
{
	CUfunction spin = need(gcr_demo_ptx, "gpucr_spin"), add = need(gcr_demo_ptx, "gpucr_add");
	uint64_t first = 0, words = 4 * MIB, one = 1;
	uint32_t value = 1, count = BLOCKS * THREADS;

	if (!host_flag) {
		OK(CU(cuMemHostAlloc)((void **)&host_flag, 4096, 0));
		OK(CU(cuMemHostGetDevicePointer_v2)(&flag, host_flag, 0));
	}
	*host_flag = 0;
	launch(spin, 1, 1, NULL, (void *[]){&flag});
	launch(add, BLOCKS, THREADS, NULL, (void *[]){&pointer, &first, &words, &value});
	launch(add, 1, 1, NULL, (void *[]){&result, &first, &one, &count});
	if (pthread_create(thread, NULL, raise_flag, NULL))
		WRONG("no thread");
}

static void run_free(bool can)
{
	CUfunction slow = load(slow_ptx, "probe_slow");
	CUdeviceptr result = allocate(4096);
	uint64_t nanoseconds = 1000000000;

	if (can)
		return;
	for (;;) {
		CUdeviceptr pointer = allocate(16 * MIB);
		pthread_t thread;
		uint32_t count = 0;
		double started;

		OK(CU(cuMemsetD32_v2)(result, 0, 1));
		if (slow)
			launch(slow, BLOCKS, THREADS, NULL,
			       (void *[]){&pointer, &result, &nanoseconds});
		else
			write_late(pointer, result, &thread);
		started = now();
		OK(CU(cuMemFree_v2)(pointer));
		fprintf(stderr, "cuMemFree took %.3f s\n", now() - started);
		/* A write to freed memory is reported here. */
		OK(CU(cuCtxSynchronize)());
		OK(CU(cuMemcpyDtoH_v2)(&count, result, 4));
		if (count != BLOCKS * THREADS)
			WRONG("%u threads have written, not %u", count, BLOCKS * THREADS);
		if (!slow)
			pthread_join(thread, NULL);
		tick();
	}
}

/* ---- stack: a graph whose kernel has 16 KiB of local memory a thread ---- */

static void run_stack(bool can)
{
	CUfunction kernel = need(stack_ptx, "probe_stack");
	uint32_t seed = 12345, *sums = calloc(BLOCKS * THREADS, 4);
	CUdeviceptr result = allocate(BLOCKS * THREADS * 4);
	CUgraphExec ready;
	CUstream stream;
	CUgraph graph;

	if (can)
		return;
	OK(CU(cuStreamCreate)(&stream, 1));
	OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	launch(kernel, BLOCKS, THREADS, stream, (void *[]){&result, &seed});
	OK(CU(cuStreamEndCapture)(stream, &graph));
	OK(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0));
	for (;;) {
		OK(CU(cuMemsetD32_v2)(result, 0, BLOCKS * THREADS));
		OK(CU(cuCtxSynchronize)());
		OK(CU(cuGraphLaunch)(ready, stream));
		OK(CU(cuStreamSynchronize)(stream));
		OK(CU(cuMemcpyDtoH_v2)(sums, result, BLOCKS * THREADS * 4));
		for (uint32_t i = 0; i < BLOCKS * THREADS; i++)
			if (sums[i] != 4096u * (seed + i) + 4095u * 2048u)
				WRONG("thread %u: %u", i, sums[i]);
		tick();
		usleep(20000);
	}
}

/* ---- pinned: the CPU and the GPU count in pinned memory all the time ---- */

static volatile uint64_t *counter;
static _Atomic uint64_t counted;

static void *count(void *nothing)
{
	for (;;) {
		/* In memory itself: a count that a freeze rolls back is lost for good. */
		counter[0]++;
		atomic_fetch_add(&counted, 1);
	}
	return nothing;
}

static void run_pinned(bool can)
{
	CUfunction add = need(gcr_demo_ptx, "gpucr_add");
	uint64_t first = 1024, words = 1024;
	uint32_t one = 1, *memory, expected = 0;
	CUdeviceptr pointer;
	pthread_t thread;

	OK(CU(cuMemHostAlloc)((void **)&memory, 2 * MIB, 0));
	OK(CU(cuMemHostGetDevicePointer_v2)(&pointer, memory, 0));
	if (can)
		return;
	memset(memory, 0, 2 * MIB);
	counter = (volatile uint64_t *)memory;
	if (pthread_create(&thread, NULL, count, NULL))
		WRONG("no thread");
	for (;;) {
		uint64_t before = atomic_load(&counted), seen, after;

		seen = counter[0];
		after = atomic_load(&counted);
		if (seen < before || seen > after + 1)
			WRONG("the CPU has counted to %llu..%llu, the memory says %llu",
			      (unsigned long long)before, (unsigned long long)after,
			      (unsigned long long)seen);
		launch(add, 4, THREADS, NULL, (void *[]){&pointer, &first, &words, &one});
		OK(CU(cuCtxSynchronize)());
		expected++;
		for (uint64_t i = first; i < first + words; i++)
			if (memory[i] != expected)
				WRONG("word %llu is %u, not %u", (unsigned long long)i, memory[i],
				      expected);
		tick();
		usleep(5000);
	}
}

/* ---- pitched: graph nodes and a texture on memory with padded rows ---- */

#define WIDTH  200 /* in words; a row in memory is longer */
#define HEIGHT 64

/* From cuda.h, the fields in use. */
struct resource {
	uint32_t type; /* 3: CU_RESOURCE_TYPE_PITCH2D */
	uint32_t padding;
	CUdeviceptr pointer;
	uint32_t format, channels; /* 3: CU_AD_FORMAT_UNSIGNED_INT32 */
	size_t width, height, pitch;
	uint8_t rest[88];
	uint32_t flags, end;
};
_Static_assert(sizeof(struct resource) == 144, "as CUDA_RESOURCE_DESC");
struct texture {
	uint32_t address[3], filter, flags; /* flags 1: CU_TRSF_READ_AS_INTEGER */
	uint8_t rest[84];
};
_Static_assert(sizeof(struct texture) == 104, "as CUDA_TEXTURE_DESC");
typedef CUresult create_texture(unsigned long long *texture, const struct resource *resource,
				const struct texture *description, const void *view);

static unsigned long long make_texture(CUdeviceptr pointer, size_t pitch)
{
	create_texture *create = (create_texture *)dlsym(library, "cuTexObjectCreate");
	struct resource resource = {.type = 3,
				    .pointer = pointer,
				    .format = 3,
				    .channels = 1,
				    .width = WIDTH,
				    .height = HEIGHT,
				    .pitch = pitch};
	struct texture description = {.address = {1, 1, 1}, .flags = 1};
	unsigned long long texture = 0;

	if (create)
		OK(create(&texture, &resource, &description, NULL));
	return texture;
}

static void run_pitched(bool can)
{
	CUfunction read = load(texture_ptx, "probe_texture");
	uint32_t *found = malloc(WIDTH * HEIGHT * 4);
	CUdeviceptr source, target, table = allocate(WIDTH * HEIGHT * 4);
	size_t pitch, target_pitch;
	unsigned long long texture;
	CUgraphExec ready;
	CUstream stream;
	CUgraph graph;
	CUDA_MEMCPY2D copy = {0};

	OK(CU(cuMemAllocPitch_v2)(&source, &pitch, WIDTH * 4, HEIGHT, 4));
	OK(CU(cuMemAllocPitch_v2)(&target, &target_pitch, WIDTH * 4, HEIGHT, 4));
	texture = read ? make_texture(target, target_pitch) : 0;
	if (can) {
		if (!texture)
			printf("without textures: the driver does not take PTX text for them\n");
		return;
	}
	copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.srcDevice = source;
	copy.srcPitch = pitch;
	copy.dstDevice = target;
	copy.dstPitch = target_pitch;
	copy.WidthInBytes = WIDTH * 4;
	copy.Height = HEIGHT;
	OK(CU(cuStreamCreate)(&stream, 1));
	OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(CU(cuMemsetD2D32Async)(source, pitch, 7, WIDTH, HEIGHT / 2, stream));
	OK(CU(cuMemcpy2DAsync_v2)(&copy, stream));
	OK(CU(cuStreamEndCapture)(stream, &graph));
	OK(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0));
	for (uint32_t value = 1;; value++) {
		OK(CU(cuMemsetD2D32_v2)(source, pitch, value, WIDTH, HEIGHT));
		OK(CU(cuMemsetD2D32_v2)(target, target_pitch, 0, WIDTH, HEIGHT));
		/* The stream does not wait for the memset. */
		OK(CU(cuCtxSynchronize)());
		OK(CU(cuGraphLaunch)(ready, stream));
		OK(CU(cuStreamSynchronize)(stream));
		if (texture) {
			launch(read, HEIGHT, WIDTH, stream, (void *[]){&texture, &table});
			OK(CU(cuStreamSynchronize)(stream));
			OK(CU(cuMemcpyDtoH_v2)(found, table, WIDTH * HEIGHT * 4));
		} else {
			for (size_t y = 0; y < HEIGHT; y++)
				OK(CU(cuMemcpyDtoH_v2)(found + y * WIDTH, target + y * target_pitch,
						       WIDTH * 4));
		}
		for (uint32_t i = 0; i < WIDTH * HEIGHT; i++)
			if (found[i] != (i < WIDTH * HEIGHT / 2 ? 7 : value))
				WRONG("word %u is %u at value %u", i, found[i], value);
		tick();
		usleep(5000);
	}
}

/* ---- green: work in a green context, which has a part of the GPU ---- */

struct device_resource {
	uint32_t type;
	uint8_t rest[1020]; /* more than any version needs */
};
typedef CUresult get_resource(CUdevice device, struct device_resource *resource, uint32_t type);
typedef CUresult split_resource(struct device_resource *result, unsigned *groups,
				const struct device_resource *input,
				struct device_resource *remaining, unsigned flags, unsigned count);
typedef CUresult describe(void **description, struct device_resource *resources, unsigned count);
typedef CUresult create_green(void **green, void *description, CUdevice device, unsigned flags);
typedef CUresult destroy_green(void *green);
typedef CUresult convert_green(CUcontext *context, void *green);
typedef CUresult create_stream(CUstream *stream, void *green, unsigned flags, int priority);

#define GREEN_SMS	 16
#define SLOW_NANOSECONDS 200000000ull

/*
 * Makes a green context of some of the GPU's SMs; of all SMs if the driver (the simulator) cannot
 * split them.
 */
static void *make_green(CUstream *ret_stream)
{
	get_resource *get = (get_resource *)find("cuDeviceGetDevResource");
	split_resource *split = (split_resource *)dlsym(library, "cuDevSmResourceSplitByCount");
	describe *make_description = (describe *)find("cuDevResourceGenerateDesc");
	create_green *create = (create_green *)find("cuGreenCtxCreate");
	create_stream *make_stream = (create_stream *)find("cuGreenCtxStreamCreate");
	struct device_resource all = {0}, part = {0}, rest = {0};
	unsigned groups = 1;
	void *description, *green;

	OK(get(0, &all, 1));
	if (split)
		OK(split(&part, &groups, &all, &rest, 0, GREEN_SMS));
	OK(make_description(&description, split ? &part : &all, 1));
	OK(create(&green, description, 0, 1));
	OK(make_stream(ret_stream, green, 1, 0));
	return green;
}

/*
 * A long-running kernel on a stream of the green context, which a freeze finds running. function
 * NULL: no such kernel.
 */
struct slow {
	CUfunction function;
	CUstream stream;
	CUdeviceptr words, count;
	uint32_t runs;
};

static void launch_slow(struct slow *slow)
{
	uint64_t nanoseconds = SLOW_NANOSECONDS;

	OK(CU(cuMemsetD32Async)(slow->words, 0, BLOCKS * THREADS, slow->stream));
	launch(slow->function, BLOCKS, THREADS, slow->stream,
	       (void *[]){&slow->words, &slow->count, &nanoseconds});
	slow->runs++;
}

/* If the kernel has ended: checks its results, and launches the next one. */
static void follow_slow(struct slow *slow)
{
	static uint32_t found[BLOCKS * THREADS];
	CUresult result;
	uint32_t count;

	if (!slow->function)
		return;
	result = CU(cuStreamQuery)(slow->stream);
	if (result == CUDA_ERROR_NOT_READY)
		return;
	OK(result);
	OK(CU(cuMemcpyDtoH_v2)(&count, slow->count, sizeof(count)));
	if (count != slow->runs * BLOCKS * THREADS)
		WRONG("%u threads in %u runs", count, slow->runs);
	OK(CU(cuMemcpyDtoH_v2)(found, slow->words, sizeof(found)));
	for (uint32_t i = 0; i < BLOCKS * THREADS; i++)
		if (found[i] != i)
			WRONG("word %u of the slow kernel is %u", i, found[i]);
	launch_slow(slow);
}

static void run_green(bool can)
{
	convert_green *convert = (convert_green *)find("cuCtxFromGreenCtx");
	CUfunction add = need(gcr_demo_ptx, "gpucr_add");
	CUdeviceptr memory = allocate(16 * MIB);
	uint64_t first = 0, words = 4 * MIB;
	uint32_t one = 1, expected = 0, *found = malloc(16 * MIB);
	struct slow slow = {.function = load(slow_ptx, "probe_slow")};
	CUcontext as_context, popped;
	CUstream stream;
	void *green;

	find("cuGreenCtxCreate");
	if (can)
		return;
	green = make_green(&slow.stream);
	/* Memory and a stream that are created while the green context is current. */
	OK(convert(&as_context, green));
	OK(CU(cuCtxPushCurrent_v2)(as_context));
	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	slow.words = allocate(2 * MIB);
	slow.count = allocate(2 * MIB);
	OK(CU(cuCtxPopCurrent_v2)(&popped));
	OK(CU(cuMemsetD32_v2)(memory, 0, words));
	OK(CU(cuMemsetD32_v2)(slow.count, 0, 1));
	OK(CU(cuCtxSynchronize)());
	if (slow.function)
		launch_slow(&slow);
	for (;;) {
		follow_slow(&slow);
		launch(add, BLOCKS, THREADS, stream, (void *[]){&memory, &first, &words, &one});
		OK(CU(cuStreamSynchronize)(stream));
		OK(CU(cuMemcpyDtoH_v2)(found, memory, 16 * MIB));
		expected++;
		for (uint64_t i = 0; i < words; i++)
			if (found[i] != expected)
				WRONG("word %llu is %u, not %u", (unsigned long long)i, found[i],
				      expected);
		tick();
		usleep(5000);
	}
}

/*
 * Facts about green contexts that the preload library does not rely on, since they have not been
 * measured.
 */
static void run_green_facts(bool can)
{
	destroy_green *destroy = (destroy_green *)find("cuGreenCtxDestroy");
	convert_green *convert = (convert_green *)find("cuCtxFromGreenCtx");
	struct slow slow = {.function = need(slow_ptx, "probe_slow")};
	CUcontext as_context, popped;
	CUresult result;
	size_t bytes = 0;
	double begun;
	CUevent event;
	void *green;

	if (can)
		return;
	green = make_green(&slow.stream);
	slow.words = allocate(2 * MIB);
	slow.count = allocate(2 * MIB);
	OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
	OK(convert(&as_context, green));
	OK(CU(cuCtxPushCurrent_v2)(as_context));
	result = CU(cuCtxGetLimit)(&bytes, CU_LIMIT_STACK_SIZE);
	printf("stack limit in a green context: %zu, error %d\n", bytes, (int)result);
	result = CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, bytes);
	printf("setting it to the same: error %d\n", (int)result);
	OK(CU(cuCtxPopCurrent_v2)(&popped));
	launch_slow(&slow);
	OK(CU(cuCtxRecordEvent)(context, event));
	printf("an event of the primary context waits for a green one's kernel: %s\n",
	       CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY ? "yes" : "no");
	OK(CU(cuStreamSynchronize)(slow.stream));
	launch_slow(&slow);
	begun = now();
	OK(destroy(green));
	printf("cuGreenCtxDestroy while a kernel of %.0f ms runs: %.1f ms\n",
	       SLOW_NANOSECONDS / 1e6, (now() - begun) * 1e3);
	OK(CU(cuCtxSynchronize)());
}

static const struct {
	const char *name;
	void (*run)(bool can);
} probes[] = {
	{"free", run_free},	  {"stack", run_stack}, {"pinned", run_pinned},
	{"pitched", run_pitched}, {"green", run_green}, {"green-facts", run_green_facts},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(probes) / sizeof(probes[0]); i++) {
		if (strcmp(argv[1], probes[i].name) != 0)
			continue;
		begin();
		probes[i].run(argc > 2 && strcmp(argv[2], "can") == 0);
		return 0;
	}
	fprintf(stderr, "usage: probes free|stack|pinned|pitched|green|green-facts [can]\n");
	return 2;
}

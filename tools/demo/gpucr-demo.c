/* SPDX-License-Identifier: MIT */
/*
 * gpucr-demo: a "model" that knows its weights. The program fills VRAM with a pattern, changes part
 * of it with a kernel every tick, and checks all of it on the GPU every tick, against checksums
 * computed on the CPU without reading the GPU's bytes. After a freeze and thaw the program keeps
 * ticking or reports wrong contents.
 *
 * This file has the ticks and the command line. Only the CUDA driver API is used (looked up at run
 * time), or its counterpart in HIP.
 */
#include "tools/demo/demo.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SUM_THREADS_MAX 64

/*
 * The share of one thread in the first checksums, which cover all words: several threads compute
 * them before the first tick.
 */
struct sum_share {
	const struct demo *demo;
	uint64_t first, step;
	pthread_t thread;
};

static void part_sum(const struct buffer *buffer, uint64_t part)
{
	uint32_t added = buffer->parts[part].added;
	uint64_t i = part * PART_WORDS;
	uint64_t end = i + part_words(buffer, part);
	uint64_t sum = 0;

	for (; i < end; i++)
		sum += ((uint64_t)expected_word(buffer, i, added) + 1) * (2 * i + 1);
	buffer->parts[part].sum = sum;
}

static void *sum_thread(void *argument)
{
	const struct sum_share *share = argument;
	uint64_t number = 0;

	for (uint64_t i = 0; i < share->demo->count; i++) {
		const struct buffer *buffer = &share->demo->buffers[i];

		for (uint64_t part = 0; part < buffer->part_count; part++)
			if (number++ % share->step == share->first)
				part_sum(buffer, part);
	}
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

		for (uint64_t part = 0; part < buffer->part_count; part++)
			buffer->sum += buffer->parts[part].sum;
	}
	return 0;
}

static int gpu_open(struct demo *demo, uint64_t index)
{
	struct gpu *gpu = &demo->gpus[index];
	int error;

	if ((error = CU(cuDeviceGet, &gpu->device, (int)(demo->first_gpu + index))) < 0 ||
	    (error = CU(cuDevicePrimaryCtxRetain, &gpu->context, gpu->device)) < 0 ||
	    (error = CU(cuCtxSetCurrent, gpu->context)) < 0 ||
	    (error = module_load(&gpu->module)) < 0 ||
	    (error = CU(cuModuleGetFunction, &gpu->fill, gpu->module, "gpucr_fill")) < 0 ||
	    (error = CU(cuModuleGetFunction, &gpu->add, gpu->module, "gpucr_add")) < 0 ||
	    (error = CU(cuModuleGetFunction, &gpu->checksum, gpu->module, "gpucr_checksum")) < 0 ||
	    (error = CU(cuModuleGetFunction, &gpu->spin, gpu->module, "gpucr_spin")) < 0)
		return error;
	return CU(cuMemAlloc_v2, &gpu->sums, (demo->count + 1) * sizeof(uint64_t));
}

/* Lets each GPU access the memory of the GPU before it, where the machine supports that. */
static int peers_open(struct demo *demo)
{
	for (uint64_t i = 0; i < demo->gpu_count && demo->gpu_count > 1; i++) {
		const struct gpu *other = &demo->gpus[(i + demo->gpu_count - 1) % demo->gpu_count];
		struct gpu *gpu = &demo->gpus[i];
		int can, error = CU(cuDeviceCanAccessPeer, &can, gpu->device, other->device);

		if (!error && !can)
			continue;
		if (error < 0 || (error = gpu_use(demo, gpu)) < 0 ||
		    (error = CU(cuCtxEnablePeerAccess, other->context, 0)) < 0 ||
		    (error = CU(cuMemAlloc_v2, &gpu->scratch, PART_WORDS * sizeof(uint32_t))) < 0)
			return error;
	}
	return 0;
}

static int buffers_create(struct demo *demo)
{
	const struct {
		enum buffer_kind kind;
		uint64_t count, bytes;
	} groups[] = {
		{BUFFER_DEVICE, demo->buffer_count, demo->bytes},
		{BUFFER_MANAGED, demo->managed_count, demo->bytes},
		{BUFFER_VMM, demo->vmm_count, demo->bytes},
		{BUFFER_PITCH, demo->pitch_count, demo->bytes},
		{BUFFER_ASYNC, demo->async_count, demo->bytes},
		{BUFFER_DEVICE, demo->block_count, demo->block_bytes},
	};
	uint64_t index = 0;

	for (size_t group = 0; group < GCR_ARRAY_SIZE(groups); group++)
		for (uint64_t i = 0; i < groups[group].count; i++, index++) {
			struct buffer *buffer = &demo->buffers[index];
			int error;

			buffer->kind = groups[group].kind;
			buffer->gpu = (unsigned)(index % demo->gpu_count);
			error = buffer_create(demo, index, groups[group].bytes);
			if (error < 0)
				return error;
			if (demo->list)
				fprintf(stderr,
					"buffer %" PRIu64 " %s gpu %d address 0x%llx bytes %" PRIu64
					" seed 0x%08" PRIx32 "\n",
					index, buffer_kind_name(buffer),
					demo->gpus[buffer->gpu].device, buffer->pointer,
					buffer->words * sizeof(uint32_t), buffer->seed);
		}
	return 0;
}

/*
 * Waits for the default streams of all GPUs. An endless kernel in another stream does not delay
 * that.
 */
static int demo_wait(const struct demo *demo)
{
	int error = 0;

	for (uint64_t i = 0; i < demo->gpu_count && !error; i++) {
		error = gpu_use(demo, &demo->gpus[i]);
		if (!error)
			error = CU(cuStreamSynchronize, NULL);
	}
	return error;
}

static int demo_open(struct demo *demo)
{
	int error;

	demo->buffers = calloc(demo->count, sizeof(*demo->buffers));
	if (!demo->buffers) {
		complain("out of memory");
		return -ENOMEM;
	}
	if ((error = driver_open(demo->hip)) < 0 || (error = CU(cuInit, 0)) < 0)
		return error;
	for (uint64_t i = 0; i < demo->gpu_count; i++) {
		error = gpu_open(demo, i);
		if (error < 0)
			return error;
	}
	if ((error = gpu_use(demo, &demo->gpus[0])) < 0 ||
	    (error = CU(cuStreamCreate, &demo->stream, CU_STREAM_DEFAULT)) < 0 ||
	    (error = peers_open(demo)) < 0 || (error = buffers_create(demo)) < 0 ||
	    (error = sum_all(demo)) < 0 || (error = demo_wait(demo)) < 0)
		return error;
	return threads_start(demo);
}

static int gpu_close(const struct demo *demo, const struct gpu *gpu)
{
	int error;

	if ((error = gpu_use(demo, gpu)) < 0 || (error = CU(cuMemFree_v2, gpu->sums)) < 0 ||
	    (gpu->scratch && (error = CU(cuMemFree_v2, gpu->scratch)) < 0) ||
	    (error = CU(cuModuleUnload, gpu->module)) < 0)
		return error;
	return CU(cuDevicePrimaryCtxRelease_v2, gpu->device);
}

/*
 * Frees everything. After an @error the driver is not called: it may hang, and the kernel frees
 * everything. Returns @error, or the first error of its own.
 */
static int demo_close(struct demo *demo, int error)
{
	spin_stop();
	if (!error)
		error = threads_stop(demo);
	for (uint64_t i = 0; demo->buffers && i < demo->count; i++) {
		if (demo->buffers[i].pointer && !error)
			error = buffer_free(demo, &demo->buffers[i]);
		free(demo->buffers[i].parts);
		free(demo->buffers[i].segments);
	}
	free(demo->buffers);
	for (uint64_t i = 0; i < demo->gpu_count && !error; i++)
		error = gpu_close(demo, &demo->gpus[i]);
	return error;
}

static int part_add(struct demo *demo, struct buffer *buffer, uint64_t part, uint32_t value,
		    bool captured)
{
	uint64_t first = part * PART_WORDS;
	uint64_t words = part_words(buffer, part);
	int error = gpu_use(demo, &demo->gpus[buffer->gpu]);

	if (error < 0)
		return error;
	error = captured ? captured_add(demo, buffer, first, words, value)
			 : launch(demo->gpus[buffer->gpu].add, NULL,
				  (void *[]){&buffer->pointer, &first, &words, &value});
	if (error < 0)
		return error;
	buffer->sum -= buffer->parts[part].sum;
	buffer->parts[part].added += value;
	part_sum(buffer, part);
	buffer->sum += buffer->parts[part].sum;
	return 0;
}

/* The change of a tick: its own value is added to one part of each buffer. */
static int demo_change(struct demo *demo, uint64_t tick)
{
	uint32_t value = (uint32_t)tick * GCR_DEMO_MULTIPLIER;

	for (uint64_t i = 0; i < demo->count; i++) {
		struct buffer *buffer = &demo->buffers[i];
		uint64_t part = (tick - 1) % buffer->part_count;
		int error = part_add(demo, buffer, part, value, false);

		if (!error && i == 0 && demo->capture_msec)
			error = part_add(demo, buffer, part, value, true);
		if (error < 0)
			return error;
	}
	if (demo->gpu_count > 1) {
		int error = demo_wait(demo);

		if (error < 0)
			return error;
	}
	for (uint64_t i = 0; i < demo->count; i++) {
		struct buffer *buffer = &demo->buffers[i];
		int error = gpu_use(demo, &demo->gpus[buffer->gpu]);

		if (!error)
			error = buffer_exercise(demo, buffer, tick);
		if (error < 0)
			return error;
	}
	return 0;
}

/* Called for a wrong checksum: reads the buffer back and reports the wrong words. */
static void explain(struct demo *demo, uint64_t index)
{
	const struct buffer *buffer = &demo->buffers[index];
	_cleanup_free_ uint32_t *words = malloc(PART_WORDS * sizeof(*words));
	uint64_t wrong = 0, where = 0;
	uint32_t expected = 0, found = 0;

	if (!words || gpu_use(demo, &demo->gpus[buffer->gpu]) < 0)
		return;
	for (uint64_t part = 0; part < buffer->part_count; part++) {
		uint64_t first = part * PART_WORDS;
		uint64_t count = part_words(buffer, part);

		if (CU(cuMemcpyDtoH_v2, words, buffer->pointer + first * sizeof(*words),
		       count * sizeof(*words)) < 0)
			return;
		for (uint64_t i = 0; i < count; i++) {
			uint32_t word = expected_word(buffer, first + i, buffer->parts[part].added);

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
			 index, wrong, buffer->words, where * sizeof(*words), expected, found);
	else
		complain("buffer %" PRIu64 ": read back, every word is as expected", index);
}

static int sum_check(struct demo *demo, uint64_t tick, uint64_t index, uint64_t found)
{
	const struct buffer *buffer = &demo->buffers[index];

	if (found == buffer->sum)
		return 0;
	complain("tick %" PRIu64 ": buffer %" PRIu64 " (%" PRIu64 " bytes of %s memory at"
		 " 0x%llx): expected sum 0x%016" PRIx64 ", found 0x%016" PRIx64,
		 tick, index, buffer->words * sizeof(uint32_t), buffer_kind_name(buffer),
		 buffer->pointer, buffer->sum, found);
	explain(demo, index);
	return -EBADMSG;
}

/*
 * Returns the index of the GPU that checks the buffer in this tick: every other tick another GPU
 * than the buffer's, if possible.
 */
static uint64_t checking_gpu(const struct demo *demo, const struct buffer *buffer, uint64_t tick)
{
	uint64_t next = (buffer->gpu + 1) % demo->gpu_count;
	bool shared = buffer->kind != BUFFER_ASYNC;

	return tick % 2 || !shared || !demo->gpus[next].scratch ? buffer->gpu : next;
}

static int gpu_check(struct demo *demo, uint64_t index, uint64_t tick, uint64_t *sums)
{
	const struct gpu *gpu = &demo->gpus[index];
	int error = gpu_use(demo, gpu);

	if (!error)
		error = CU(cuMemsetD32_v2, gpu->sums, 0,
			   demo->count * (sizeof(uint64_t) / sizeof(uint32_t)));
	for (uint64_t i = 0; i < demo->count && !error; i++) {
		struct buffer *buffer = &demo->buffers[i];
		CUdeviceptr result = gpu->sums + i * sizeof(uint64_t);

		if (checking_gpu(demo, buffer, tick) == index)
			error = launch(gpu->checksum, NULL,
				       (void *[]){&buffer->pointer, &buffer->words, &result});
	}
	if (!error)
		error = CU(cuMemcpyDtoH_v2, sums, gpu->sums, demo->count * sizeof(*sums));
	for (uint64_t i = 0; i < demo->count && !error; i++)
		if (checking_gpu(demo, &demo->buffers[i], tick) == index)
			error = sum_check(demo, tick, i, sums[i]);
	return error;
}

/* Copies the changed part from a buffer of the GPU before, and checks the copy here. */
static int peer_check(struct demo *demo, uint64_t index, uint64_t tick)
{
	const struct gpu *gpu = &demo->gpus[index];
	uint64_t from = (index + demo->gpu_count - 1) % demo->gpu_count;
	CUdeviceptr result = gpu->sums + demo->count * sizeof(uint64_t);
	CUdeviceptr scratch = gpu->scratch;
	const struct buffer *buffer = &demo->buffers[from];
	uint64_t part, words, sum, expected;
	int error;

	if (!scratch || from >= demo->count)
		return 0;
	part = (tick - 1) % buffer->part_count;
	words = part_words(buffer, part);
	if ((error = gpu_use(demo, gpu)) < 0 ||
	    (error = CU(cuMemcpyPeer, scratch, gpu->context,
			buffer->pointer + part * PART_WORDS * sizeof(uint32_t),
			demo->gpus[from].context, words * sizeof(uint32_t))) < 0 ||
	    (error = CU(cuMemsetD32_v2, result, 0, 2)) < 0 ||
	    (error = launch(gpu->checksum, NULL, (void *[]){&scratch, &words, &result})) < 0 ||
	    (error = CU(cuMemcpyDtoH_v2, &sum, result, sizeof(sum))) < 0)
		return error;
	expected = expected_sum(buffer, part * PART_WORDS, words, buffer->parts[part].added);
	if (sum == expected)
		return 0;
	complain("tick %" PRIu64 ": copied from GPU %d to GPU %d: expected sum 0x%016" PRIx64
		 ", found 0x%016" PRIx64,
		 tick, demo->gpus[from].device, gpu->device, expected, sum);
	return -EBADMSG;
}

static int demo_check(struct demo *demo, uint64_t tick)
{
	_cleanup_free_ uint64_t *sums = malloc(demo->count * sizeof(*sums));
	int error = 0;

	if (!sums) {
		complain("out of memory");
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < demo->gpu_count && !error; i++)
		error = gpu_check(demo, i, tick, sums);
	for (uint64_t i = 0; i < demo->gpu_count && demo->gpu_count > 1 && !error; i++)
		error = peer_check(demo, i, tick);
	for (uint64_t i = 0; i < demo->count && !error; i++)
		error = buffer_look(&demo->buffers[i], tick);
	return error;
}

static volatile sig_atomic_t fork_now;

static void ask_for_children(int signal_number)
{
	(void)signal_number;
	fork_now = 1;
}

static int demo_run(struct demo *demo)
{
	struct sigaction action = {.sa_handler = ask_for_children, .sa_flags = SA_RESTART};
	struct timespec pause = {
		.tv_sec = (time_t)(demo->tick_msec / 1000),
		.tv_nsec = (long)(demo->tick_msec % 1000) * 1000000,
	};
	bool is_forked = false;
	int error = 0;

	if (demo->fork_tick == 0)
		error = children_start(demo);
	else
		sigaction(SIGUSR2, &action, NULL);
	printf("pid %ld\n", (long)getpid());
	for (uint64_t tick = 1; !error && (!demo->ticks || tick <= demo->ticks); tick++) {
		if (tick > 1)
			nanosleep(&pause, NULL);
		if (!is_forked && (tick == demo->fork_tick || fork_now)) {
			error = children_start(demo);
			is_forked = true;
		}
		if (!error && tick == demo->spin_tick)
			error = spin_start(demo);
		if (!error)
			error = demo_change(demo, tick);
		if (!error)
			error = demo_check(demo, tick);
		if (!error && printf("tick %" PRIu64 " ok\n", tick) < 0)
			error = -EPIPE;
	}
	return error;
}

/*
 * Ends at once, with _exit: the main thread may be waiting in a driver call of a frozen process,
 * and the driver's exit handler would wait too. The kernel frees all resources.
 */
static void stop(int signal_number)
{
	(void)signal_number;
	_exit(EXIT_SUCCESS);
}

/* Parses "64", "64K", "1M", "2G": powers of 1024. Returns 0 or -EINVAL. */
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
	 "further buffers, of the same size, in managed memory"},
	{"own-vmm", "N", offsetof(struct demo, vmm_count), 4096,
	 "... of segments mapped by the program itself"},
	{"pitch", "N", offsetof(struct demo, pitch_count), 4096, "... with rows (cuMemAllocPitch)"},
	{"async", "N", offsetof(struct demo, async_count), 4096,
	 "... of stream-ordered memory (cuMemAllocAsync)"},
	{"blocks", "N", offsetof(struct demo, block_count), 65536,
	 "further buffers of a size of their own"},
	{"block-bytes", "N", offsetof(struct demo, block_bytes), UINT64_C(1) << 40,
	 "their size (default 64K)"},
	{"tick", "MS", offsetof(struct demo, tick_msec), 86400000,
	 "pause between ticks, in ms (default 500)"},
	{"ticks", "N", offsetof(struct demo, ticks), UINT64_MAX,
	 "end after this many ticks (default 0: never)"},
	{"gpu", "N", offsetof(struct demo, first_gpu), INT_MAX, "the GPU to use (default 0)"},
	{"gpus", "N", offsetof(struct demo, gpu_count), DEMO_GPUS_MAX,
	 "use so many, from that one on (default 1)"},
	{"threads", "N", offsetof(struct demo, thread_count), DEMO_THREADS_MAX,
	 "threads that submit work without pause"},
	{"capture", "MS", offsetof(struct demo, capture_msec), 86400000,
	 "hold a stream capture open so long in each tick"},
	{"spin", "K", offsetof(struct demo, spin_tick), UINT64_MAX,
	 "start a kernel at tick K that ends with SIGUSR1"},
	{"children", "N", offsetof(struct demo, child_count), 64, "fork children that do nothing"},
	{"fork-at", "K", offsetof(struct demo, fork_tick), UINT64_MAX,
	 "at tick K, or when SIGUSR2 has come"},
};

static const struct {
	const char *name;
	size_t offset;
	const char *help;
} flags[] = {
	{"clone", offsetof(struct demo, clone), "children by clone(2), not fork(3)"},
	{"list", offsetof(struct demo, list), "describe each buffer on stderr"},
	{"hip", offsetof(struct demo, hip), "use an AMD GPU, by HIP"},
};

static void usage(FILE *stream)
{
	fputs("Usage: gpucr-demo [OPTION]...\n"
	      "Fill VRAM, change some of it and check all of it at every tick.\n"
	      "\n",
	      stream);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(options); i++)
		fprintf(stream, "  --%-11s %-4s %s\n", options[i].name, options[i].argument,
			options[i].help);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++)
		fprintf(stream, "  --%-16s %s\n", flags[i].name, flags[i].help);
	fputs("  --help             print this\n"
	      "\n"
	      "N may end in K, M or G (powers of 1024). Prints `pid N` when the VRAM is filled, "
	      "then\n"
	      "`tick K ok` for each tick; ends with status 1 at the first byte that is wrong.\n",
	      stream);
}

static int parse_option(struct demo *demo, const char *name, size_t index)
{
	uint64_t number;

	if (index >= GCR_ARRAY_SIZE(options)) {
		*(bool *)((char *)demo + flags[index - GCR_ARRAY_SIZE(options)].offset) = true;
		return 0;
	}
	if (parse_number(optarg, &number) < 0 || number > options[index].max) {
		complain("--%s: not a number it can take: %s", name, optarg);
		return -EINVAL;
	}
	*(uint64_t *)(void *)((char *)demo + options[index].offset) = number;
	return 0;
}

static int parse_arguments(struct demo *demo, int argc, char **argv)
{
	enum {
		FLAGS = GCR_ARRAY_SIZE(options),
		HELP = FLAGS + GCR_ARRAY_SIZE(flags),
	};
	struct option longs[HELP + 2] = {{0}};
	int found;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(options); i++)
		longs[i] = (struct option){options[i].name, required_argument, NULL, 0};
	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++)
		longs[FLAGS + i].name = flags[i].name;
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
		if (parse_option(demo, longs[found].name, (size_t)found) < 0)
			return -EINVAL;
	}
	if (optind < argc) {
		complain("unexpected argument: %s", argv[optind]);
		return -EINVAL;
	}

	demo->count = demo->buffer_count + demo->managed_count + demo->vmm_count +
		      demo->pitch_count + demo->async_count + demo->block_count;
	if (!demo->count || !demo->gpu_count) {
		complain("no buffers");
		return -EINVAL;
	}
	/* From here on demo->bytes is the size of one buffer. */
	demo->bytes /= demo->buffer_count ? demo->buffer_count : demo->count;
	if (demo->bytes < sizeof(uint32_t) || demo->block_bytes < sizeof(uint32_t)) {
		complain("--bytes: a buffer has at least 4 bytes");
		return -EINVAL;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = stop};
	static struct demo demo = {
		.bytes = UINT64_C(64) << 20,
		.buffer_count = 4,
		.block_bytes = UINT64_C(64) << 10,
		.tick_msec = 500,
		.gpu_count = 1,
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

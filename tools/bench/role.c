/* SPDX-License-Identifier: MIT */
/*
 * The small roles: properties of the machine, use of VRAM per process, the rate of pinned copies,
 * and the peer: cuCheckpointProcess* called from another process, as NVIDIA's cuda-checkpoint does.
 * AMD's driver has no such calls, hence no peer.
 */
#include "tools/bench/role.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/nvml.h"
#include "backend/rocm/kfd.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "tools/gpu/gpu_library.h"

#define LOCK_TIMEOUT_MSEC 60000
#define RATE_COPIES	  5

struct bench_driver bench_driver;
static struct gcr_gpu_library library;
static bool is_hip;

bool bench_driver_is_hip(void)
{
	return is_hip;
}

int bench_role_fail(const char *format, ...)
{
	char words[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	words[strcspn(words, "\n")] = '\0';
	printf("error %s\n", words);
	return -EIO;
}

int bench_driver_fail(const char *call, CUresult result)
{
	const char *name = NULL;

	if (bench_driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "unknown error";
	return bench_role_fail("%s: %s (%d)", gcr_gpu_library_word(&library, call), name,
			       (int)result);
}

int bench_driver_open(int gpu)
{
	struct gcr_error error;
	CUcontext context;
	CUdevice device;
	int result;

	if (gcr_gpu_library_open(is_hip, &library, &error) < 0)
		return bench_role_fail("there is no %s driver here: %s", is_hip ? "AMD" : "NVIDIA",
				       error.words);
#define LOOK_UP(name) bench_driver.name = (__typeof__(name) *)gcr_gpu_library_find(&library, #name);
#define NEED(name)                                                            \
	if (!bench_driver.name)                                               \
		return bench_role_fail("the driver has no %s: it is too old", \
				       gcr_gpu_library_word(&library, #name));
	BENCH_DRIVER_CALLS(LOOK_UP)
	BENCH_CHECKPOINT_CALLS(LOOK_UP)
	BENCH_DRIVER_CALLS(NEED)
#undef LOOK_UP
#undef NEED
	result = BENCH_CU(cuInit, 0);
	if (result < 0 || gpu < 0)
		return result;
	if ((result = BENCH_CU(cuDeviceGet, &device, gpu)) < 0 ||
	    (result = BENCH_CU(cuDevicePrimaryCtxRetain, &context, device)) < 0)
		return result;
	return BENCH_CU(cuCtxSetCurrent, context);
}

int bench_driver_checkpoint(void)
{
#define NEED(name)              \
	if (!bench_driver.name) \
		return bench_role_fail("the driver has no " #name ": 570 or newer is needed");
	BENCH_CHECKPOINT_CALLS(NEED)
#undef NEED
	return 0;
}

int bench_driver_kernel(const char *name, CUfunction *ret_function)
{
	static CUmodule module;
	struct gcr_error error;
	int result;

	if (!module) {
		_cleanup_free_ void *code = NULL;

		if (gcr_gpu_library_kernels(&library, &code, &error) < 0)
			return bench_role_fail("the kernels: %s", error.words);
		result = BENCH_CU(cuModuleLoadData, &module, code);
		if (result < 0)
			return result;
	}
	return BENCH_CU(cuModuleGetFunction, ret_function, module, name);
}

/* The versions of the kernel's driver and of HIP as one word: "6.8.5,HIP-6.2". */
static void describe_hip(int version, char ret_words[GCR_NAME_BYTES])
{
	char kernel[GCR_NAME_BYTES];

	gcr_kfd_driver_version(kernel);
	kernel[strcspn(kernel, " ")] = '\0';
	snprintf(ret_words, GCR_NAME_BYTES, "%.60s,HIP-%d.%d", kernel, version / 1000,
		 version % 1000 / 10);
}

/* machine GPU: answers with names, sizes, and the VRAM that is free in addition to one context. */
static int role_machine(int argc, char **argv)
{
	int gpu = argc > 0 ? atoi(argv[0]) : 0;
	char driver[GCR_NAME_BYTES] = "-";
	char name[GCR_NAME_BYTES] = "-";
	size_t free_bytes, total_bytes;
	CUdevice device;
	int version, count;
	CUuuid uuid;

	if (bench_driver_open(-1) < 0 || (!is_hip && bench_driver_checkpoint() < 0) ||
	    BENCH_CU(cuDeviceGetCount, &count) < 0)
		return EXIT_FAILURE;
	if (gpu >= count) {
		bench_role_fail("there is no GPU %d: the driver shows %d", gpu, count);
		return EXIT_FAILURE;
	}
	if (bench_driver_open(gpu) < 0 || BENCH_CU(cuDeviceGet, &device, gpu) < 0 ||
	    BENCH_CU(cuDeviceGetName, name, (int)sizeof(name), device) < 0 ||
	    BENCH_CU(cuDeviceGetUuid_v2, &uuid, device) < 0 ||
	    BENCH_CU(cuDriverGetVersion, &version) < 0 ||
	    BENCH_CU(cuMemGetInfo_v2, &free_bytes, &total_bytes) < 0)
		return EXIT_FAILURE;
	if (is_hip)
		describe_hip(version, driver);
	else if (gcr_nvml_driver_version(driver) < 0)
		snprintf(driver, sizeof(driver), "API-%d.%d", version / 1000, version % 1000 / 10);
	printf("ok total %zu free %zu uuid ", total_bytes, free_bytes);
	for (size_t i = 0; i < sizeof(uuid.bytes); i++)
		printf("%02x", (unsigned int)(unsigned char)uuid.bytes[i]);
	printf(" driver %s name %s\n", driver, name);
	return EXIT_SUCCESS;
}

/* Returns the use of all GPUs, from NVML or from the kernel's AMD driver. */
static int list_gpus(struct gcr_gpus_reply *reply)
{
	if (!is_hip)
		return gcr_nvml_list(reply, 0);
	memset(reply, 0, sizeof(*reply));
	return gcr_kfd_list(reply, 0, NULL);
}

/* figures UUID: answers each line with the use of that GPU in total and per process. */
static int role_figures(int argc, char **argv)
{
	struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	uint8_t uuid[GCR_UUID_BYTES] = {0};
	char line[64];

	if (!reply || argc < 1 || strlen(argv[0]) != 2 * sizeof(uuid))
		return EXIT_FAILURE;
	for (size_t i = 0; i < sizeof(uuid); i++) {
		unsigned int byte = 0;

		sscanf(argv[0] + 2 * i, "%2x", &byte);
		uuid[i] = (uint8_t)byte;
	}
	if (list_gpus(reply) < 0) {
		bench_role_fail("%s is not there", is_hip ? "KFD" : "NVML");
		free(reply);
		return EXIT_FAILURE;
	}
	puts("ok");
	while (fgets(line, sizeof(line), stdin)) {
		uint32_t gpu = 0;

		if (list_gpus(reply) < 0) {
			bench_role_fail("%s gives no figures", is_hip ? "KFD" : "NVML");
			continue;
		}
		while (gpu < reply->gpus_count && memcmp(reply->gpus[gpu].uuid, uuid, sizeof(uuid)))
			gpu++;
		if (gpu == reply->gpus_count || !(reply->gpus[gpu].flags & GCR_GPU_MEMORY)) {
			bench_role_fail("%s does not know this GPU's memory",
					is_hip ? "KFD" : "NVML");
			continue;
		}
		printf("ok used %" PRIu64 " free %" PRIu64, reply->gpus[gpu].used_bytes,
		       reply->gpus[gpu].free_bytes);
		for (uint32_t i = 0; i < reply->processes_count; i++)
			if (reply->processes[i].gpu == gpu)
				printf(" %d %" PRIu64, (int)reply->processes[i].pid,
				       reply->processes[i].bytes);
		putchar('\n');
	}
	free(reply);
	return EXIT_SUCCESS;
}

static int compare(const void *a, const void *b)
{
	const double *first = a, *second = b;

	return *first < *second ? -1 : *first > *second;
}

/*
 * rate GPU BYTES: measures copies between VRAM and pinned memory; answers with medians in bytes per
 * second.
 */
static int role_rate(int argc, char **argv)
{
	double out[RATE_COPIES], in[RATE_COPIES];
	CUdeviceptr pointer;
	CUstream stream;
	uint64_t bytes;
	void *host;

	if (argc < 2)
		return EXIT_FAILURE;
	bytes = strtoull(argv[1], NULL, 10);
	if (bench_driver_open(atoi(argv[0])) < 0 || BENCH_CU(cuStreamCreate, &stream, 1) < 0 ||
	    BENCH_CU(cuMemAlloc_v2, &pointer, bytes) < 0 ||
	    BENCH_CU(cuMemHostAlloc, &host, bytes, 0) < 0)
		return EXIT_FAILURE;
	/* The first copy is a warm-up. */
	for (int i = -1; i < RATE_COPIES; i++) {
		int64_t start_usec, out_usec, in_usec;

		start_usec = gcr_clock_usec();
		if (BENCH_CU(cuMemcpyDtoHAsync_v2, host, pointer, bytes, stream) < 0 ||
		    BENCH_CU(cuStreamSynchronize, stream) < 0)
			return EXIT_FAILURE;
		out_usec = gcr_clock_usec();
		if (BENCH_CU(cuMemcpyHtoDAsync_v2, pointer, host, bytes, stream) < 0 ||
		    BENCH_CU(cuStreamSynchronize, stream) < 0)
			return EXIT_FAILURE;
		in_usec = gcr_clock_usec();
		if (i < 0)
			continue;
		out[i] = (double)bytes * 1e6 / (double)(out_usec - start_usec + !out_usec);
		in[i] = (double)bytes * 1e6 / (double)(in_usec - out_usec + !in_usec);
	}
	qsort(out, RATE_COPIES, sizeof(*out), compare);
	qsort(in, RATE_COPIES, sizeof(*in), compare);
	printf("ok out %.0f in %.0f\n", out[RATE_COPIES / 2], in[RATE_COPIES / 2]);
	return EXIT_SUCCESS;
}

static void freeze(int pid)
{
	CUcheckpointLockArgs lock = {.timeoutMs = LOCK_TIMEOUT_MSEC};
	CUcheckpointCheckpointArgs checkpoint = {0};
	CUcheckpointUnlockArgs unlock = {0};
	int64_t started_usec = gcr_clock_usec();

	if (BENCH_CU(cuCheckpointProcessLock, pid, &lock) < 0)
		return;
	if (BENCH_CU(cuCheckpointProcessCheckpoint, pid, &checkpoint) < 0) {
		bench_driver.cuCheckpointProcessUnlock(pid, &unlock);
		return;
	}
	printf("ok usec %" PRId64 "\n", gcr_clock_usec() - started_usec);
}

static void thaw(int pid)
{
	CUcheckpointRestoreArgs restore = {0};
	CUcheckpointUnlockArgs unlock = {0};
	int64_t started_usec = gcr_clock_usec();

	if (BENCH_CU(cuCheckpointProcessRestore, pid, &restore) < 0 ||
	    BENCH_CU(cuCheckpointProcessUnlock, pid, &unlock) < 0)
		return;
	printf("ok usec %" PRId64 "\n", gcr_clock_usec() - started_usec);
}

/* peer: requests `freeze PID`, `thaw PID`. The role has no context. */
static int role_peer(int argc, char **argv)
{
	char line[64], verb[16];
	int pid;

	(void)argc;
	(void)argv;
	if (bench_driver_open(-1) < 0 || bench_driver_checkpoint() < 0)
		return EXIT_FAILURE;
	puts("ok");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%15s %d", verb, &pid) != 2)
			bench_role_fail("what?");
		else if (!strcmp(verb, "freeze"))
			freeze(pid);
		else
			thaw(pid);
	}
	return EXIT_SUCCESS;
}

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} roles[] = {
	{"machine", role_machine}, {"figures", role_figures},	  {"rate", role_rate},
	{"peer", role_peer},	   {"target", bench_role_target}, {"calls", bench_role_calls},
	{"copy", bench_role_copy},
};

int bench_role(bool of_hip, int argc, char **argv)
{
	is_hip = of_hip;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(roles) && argc > 0; i++)
		if (!strcmp(argv[0], roles[i].name))
			return roles[i].run(argc - 1, argv + 1);
	return 2;
}

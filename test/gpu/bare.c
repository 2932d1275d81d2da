/* SPDX-License-Identifier: MIT */
/*
 * bare: the driver's own checkpoint without gpucrfs, for comparison. Reads `freeze PID` and
 * `thaw PID` from stdin and answers each with a line: `ok SECONDS` or `error CALL CODE`. The
 * driver is initialised before the first line is read, outside of what is timed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/cuda_api.h"

#define LOCK_TIMEOUT_MSEC 10000

#define CALLS(X)                         \
	X(cuInit)                        \
	X(cuCheckpointProcessLock)       \
	X(cuCheckpointProcessCheckpoint) \
	X(cuCheckpointProcessRestore)    \
	X(cuCheckpointProcessUnlock)

#define MEMBER(name) __typeof__(name) *name;
static struct {
	CALLS(MEMBER)
} driver;

static int open_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library) {
		fprintf(stderr, "bare: %s\n", dlerror());
		return -1;
	}
#define LOOK_UP(name)                                                     \
	driver.name = (__typeof__(name) *)dlsym(library, #name);          \
	if (!driver.name) {                                               \
		fprintf(stderr, "bare: libcuda.so.1 has no %s\n", #name); \
		return -1;                                                \
	}
	CALLS(LOOK_UP)
	return 0;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The name of the call that failed, NULL if none did. */
static const char *freeze(int pid, CUresult *ret_result)
{
	CUcheckpointLockArgs lock = {.timeoutMs = LOCK_TIMEOUT_MSEC};
	CUcheckpointCheckpointArgs checkpoint = {0};

	*ret_result = driver.cuCheckpointProcessLock(pid, &lock);
	if (*ret_result != CUDA_SUCCESS)
		return "cuCheckpointProcessLock";
	*ret_result = driver.cuCheckpointProcessCheckpoint(pid, &checkpoint);
	return *ret_result == CUDA_SUCCESS ? NULL : "cuCheckpointProcessCheckpoint";
}

static const char *thaw(int pid, CUresult *ret_result)
{
	CUcheckpointRestoreArgs restore = {0};
	CUcheckpointUnlockArgs unlock = {0};

	*ret_result = driver.cuCheckpointProcessRestore(pid, &restore);
	if (*ret_result != CUDA_SUCCESS)
		return "cuCheckpointProcessRestore";
	*ret_result = driver.cuCheckpointProcessUnlock(pid, &unlock);
	return *ret_result == CUDA_SUCCESS ? NULL : "cuCheckpointProcessUnlock";
}

int main(void)
{
	char line[64], verb[16];
	CUresult result;
	int pid;

	if (open_driver() < 0)
		return 1;
	result = driver.cuInit(0);
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "bare: cuInit: %d\n", (int)result);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		const char *failed;
		double started;

		if (sscanf(line, "%15s %d", verb, &pid) != 2)
			return 2;
		started = now();
		failed = strcmp(verb, "freeze") ? thaw(pid, &result) : freeze(pid, &result);
		if (failed)
			printf("error %s %d\n", failed, (int)result);
		else
			printf("ok %.6f\n", now() - started);
	}
	return 0;
}

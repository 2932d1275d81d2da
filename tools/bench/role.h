/* SPDX-License-Identifier: MIT */
/*
 * The bench's other roles: the bench starts itself as `gpucr-bench --role NAME [ARGUMENT]...`, or
 * `--hip-role` for an AMD GPU. Only roles load the driver, so that the bench itself is no GPU
 * process. Each role answers on stdout with `ok[ KEY VALUE]...` or `error WORDS`: a role with a
 * single task answers once; any other role answers once when ready, and then to each line on stdin
 * until the end of stdin.
 */
#ifndef GCR_TOOLS_BENCH_ROLE_H
#define GCR_TOOLS_BENCH_ROLE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

/* Runs the role. Returns the exit status; 2 if there is no role of this name. */
int bench_role(bool is_hip, int argc, char **argv);

/*
 * target GPU BYTES CHUNKS SEED BUSY [PERCENT]: holds memory with known contents. Requests:
 * `verify`, which verifies and then changes all of the memory; `change`, which verifies and then
 * changes PERCENT of it.
 */
int bench_role_target(int argc, char **argv);

/*
 * copy DIRECTORY BYTES: copies files; DIRECTORY may be replaced by a private tmpfs. The first
 * answer is `ok place WORDS`. Requests, with the names of directories in a mount: `out DIR`, `bare`
 * and `in DIR`, which answer with `bytes` and `usec`, and `compare DIR`, `make DIR`, `remove DIR`.
 */
int bench_role_copy(int argc, char **argv);

/* calls GPU QUICK: measures the durations of driver calls, in nanoseconds. */
int bench_role_calls(int argc, char **argv);

#define BENCH_DRIVER_CALLS(X)       \
	X(cuInit)                   \
	X(cuGetErrorName)           \
	X(cuDriverGetVersion)       \
	X(cuDeviceGetCount)         \
	X(cuDeviceGet)              \
	X(cuDeviceGetName)          \
	X(cuDeviceGetUuid_v2)       \
	X(cuDevicePrimaryCtxRetain) \
	X(cuCtxSetCurrent)          \
	X(cuCtxGetCurrent)          \
	X(cuCtxSynchronize)         \
	X(cuModuleLoadData)         \
	X(cuModuleGetFunction)      \
	X(cuMemGetInfo_v2)          \
	X(cuMemAlloc_v2)            \
	X(cuMemFree_v2)             \
	X(cuMemHostAlloc)           \
	X(cuMemsetD32_v2)           \
	X(cuMemcpyDtoH_v2)          \
	X(cuMemcpyDtoHAsync_v2)     \
	X(cuMemcpyHtoDAsync_v2)     \
	X(cuStreamCreate)           \
	X(cuStreamSynchronize)      \
	X(cuLaunchKernel)

/* NULL in drivers before 570, and in HIP, which has nothing like them. */
#define BENCH_CHECKPOINT_CALLS(X)        \
	X(cuCheckpointProcessLock)       \
	X(cuCheckpointProcessCheckpoint) \
	X(cuCheckpointProcessRestore)    \
	X(cuCheckpointProcessUnlock)

struct bench_driver {
#define BENCH_DRIVER_FIELD(name) __typeof__(name) *name;
	BENCH_DRIVER_CALLS(BENCH_DRIVER_FIELD)
	BENCH_CHECKPOINT_CALLS(BENCH_DRIVER_FIELD)
#undef BENCH_DRIVER_FIELD
};

/*
 * The driver's functions in this process. They are looked up by dlsym, as programs do: under the
 * preload library these are its wrappers.
 */
extern struct bench_driver bench_driver;

/* The calls below return 0, or -EIO after having answered `error WORDS`. */

/* Loads and initialises the driver; if @gpu is not negative, creates a context on that GPU. */
int bench_driver_open(int gpu);
bool bench_driver_is_hip(void);
int bench_driver_checkpoint(void); /* 0, or -EIO if a BENCH_CHECKPOINT_CALL is missing */

/* Returns a kernel of kernels.h. */
int bench_driver_kernel(const char *name, CUfunction *ret_function);

int bench_role_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int bench_driver_fail(const char *call, CUresult result);

#define BENCH_CU(name, ...)                                                            \
	({                                                                             \
		CUresult cu_result_ = bench_driver.name(__VA_ARGS__);                  \
		cu_result_ == CUDA_SUCCESS ? 0 : bench_driver_fail(#name, cu_result_); \
	})

#endif

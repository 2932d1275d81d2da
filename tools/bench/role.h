/* SPDX-License-Identifier: MIT */
/*
 * The bench's other roles: itself, started anew as `gpucr-bench --role NAME [ARGUMENT]...` by the
 * bench, `--hip-role` for an AMD GPU. Only they load the driver, so that the bench itself is no GPU
 * process. Each answers on
 * stdout with `ok[ KEY VALUE]...` or `error WORDS`: once if it has one thing to do, else once when
 * it is ready and then to each line on stdin, until that ends.
 */
#ifndef GCR_TOOLS_BENCH_ROLE_H
#define GCR_TOOLS_BENCH_ROLE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

/* Runs the role and returns the exit status; 2 if there is none of this name. */
int bench_role(bool is_hip, int argc, char **argv);

/*
 * target GPU BYTES CHUNKS SEED BUSY [PERCENT]: memory with known contents. Asked: `verify`, which
 * then changes all of it, or `change`, which verifies and then changes so much of it.
 */
int bench_role_target(int argc, char **argv);

/*
 * copy DIRECTORY BYTES: copies files, where DIRECTORY may become a tmpfs that only it sees. It
 * answers `ok place WORDS`. Asked, by the names of directories in a mount: `out DIR`, `bare`,
 * `in DIR`, which answer with `bytes` and `usec`, and `compare DIR`, `make DIR`, `remove DIR`.
 */
int bench_role_copy(int argc, char **argv);

/* calls GPU QUICK: what calls of the driver take, in ns. */
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

/* Drivers before 570 lack these, and HIP has nothing like them: NULL then. */
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
 * Of this process. Looked up by dlsym, as programs do: with the preload library in front, these are
 * its wrappers.
 */
extern struct bench_driver bench_driver;

/* The calls below return 0, or -EIO after having answered `error WORDS`. */

/* Load and initialise the role's driver; @gpu not negative: also a context on it. */
int bench_driver_open(int gpu);
bool bench_driver_is_hip(void);
int bench_driver_checkpoint(void); /* does it have those calls? */

/* The kernels of kernels.h. */
int bench_driver_kernel(const char *name, CUfunction *ret_function);

int bench_role_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int bench_driver_fail(const char *call, CUresult result);

#define BENCH_CU(name, ...)                                                            \
	({                                                                             \
		CUresult cu_result_ = bench_driver.name(__VA_ARGS__);                  \
		cu_result_ == CUDA_SUCCESS ? 0 : bench_driver_fail(#name, cu_result_); \
	})

#endif

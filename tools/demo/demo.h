/* SPDX-License-Identifier: MIT */
/*
 * Shared by the parts of gpucr-demo: the driver's functions, the buffers, the GPUs. Functions
 * return 0 or -errno, after printing what failed.
 */
#ifndef GCR_TOOLS_DEMO_DEMO_H
#define GCR_TOOLS_DEMO_DEMO_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "lib/cleanup.h"
#include "tools/gpu/kernels.h"

/* A part: the piece of a buffer changed by one tick. The CPU keeps a sum and a number for each. */
#define PART_WORDS (UINT64_C(1) << 18)

#define DEMO_GPUS_MAX	 16
#define DEMO_THREADS_MAX 256

#define DRIVER_FUNCTIONS(X)              \
	X(cuInit)                        \
	X(cuGetErrorName)                \
	X(cuDeviceGet)                   \
	X(cuDeviceCanAccessPeer)         \
	X(cuDevicePrimaryCtxRetain)      \
	X(cuDevicePrimaryCtxRelease_v2)  \
	X(cuCtxSetCurrent)               \
	X(cuCtxSynchronize)              \
	X(cuCtxEnablePeerAccess)         \
	X(cuModuleLoadData)              \
	X(cuModuleUnload)                \
	X(cuModuleGetFunction)           \
	X(cuMemAlloc_v2)                 \
	X(cuMemAllocPitch_v2)            \
	X(cuMemAllocManaged)             \
	X(cuMemAllocAsync)               \
	X(cuMemFreeAsync)                \
	X(cuMemHostAlloc)                \
	X(cuMemFree_v2)                  \
	X(cuMemsetD32_v2)                \
	X(cuMemsetD32Async)              \
	X(cuMemcpyDtoH_v2)               \
	X(cuMemcpyHtoD_v2)               \
	X(cuMemcpyDtoHAsync_v2)          \
	X(cuMemcpyPeer)                  \
	X(cuMemAddressReserve)           \
	X(cuMemAddressFree)              \
	X(cuMemCreate)                   \
	X(cuMemRelease)                  \
	X(cuMemMap)                      \
	X(cuMemUnmap)                    \
	X(cuMemSetAccess)                \
	X(cuMemGetAllocationGranularity) \
	X(cuMemAdvise)                   \
	X(cuMemRangeGetAttribute)        \
	X(cuStreamCreate)                \
	X(cuStreamSynchronize)           \
	X(cuStreamQuery)                 \
	X(cuStreamBeginCapture_v2)       \
	X(cuStreamEndCapture)            \
	X(cuEventCreate)                 \
	X(cuEventRecord)                 \
	X(cuEventQuery)                  \
	X(cuGraphInstantiateWithFlags)   \
	X(cuGraphLaunch)                 \
	X(cuGraphExecDestroy)            \
	X(cuGraphDestroy)                \
	X(cuLaunchKernel)

#define DRIVER_MEMBER(name) __typeof__(name) *name;
struct driver {
	DRIVER_FUNCTIONS(DRIVER_MEMBER)
};
extern struct driver driver;

enum buffer_kind {
	BUFFER_DEVICE,	/* cuMemAlloc */
	BUFFER_MANAGED, /* cuMemAllocManaged; its advice is checked too */
	BUFFER_VMM,	/* a reserved address range, into which handles are mapped */
	BUFFER_PITCH,	/* cuMemAllocPitch */
	BUFFER_ASYNC,	/* cuMemAllocAsync */
};

struct part {
	uint32_t added; /* sum of all values added to each word since the fill */
	uint64_t sum;	/* expected result of gpucr_checksum for this part */
};

struct buffer {
	enum buffer_kind kind;
	unsigned gpu; /* index in demo.gpus */
	CUdeviceptr pointer;
	uint64_t words, part_count;
	uint32_t seed;
	struct part *parts;
	uint64_t sum; /* sum of all parts */

	/* BUFFER_VMM */
	uint64_t segment_bytes, segment_count;
	CUmemGenericAllocationHandle *segments;
};

struct gpu {
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction fill, add, checksum, spin;
	CUdeviceptr scratch; /* --gpus: a copy of a part of a peer's buffer; 0: no peer access */
	CUdeviceptr sums;    /* a 64-bit sum per buffer; any GPU may check any buffer */
};

struct demo {
	/* options */
	uint64_t bytes, buffer_count, block_count, block_bytes;
	uint64_t managed_count, vmm_count, pitch_count, async_count;
	uint64_t tick_msec, ticks, first_gpu, gpu_count;
	uint64_t thread_count, capture_msec, spin_tick, child_count, fork_tick;
	bool clone, list, hip;

	struct gpu gpus[DEMO_GPUS_MAX];
	struct buffer *buffers;
	uint64_t count;
	CUstream stream; /* on the first GPU: for captures and stream-ordered memory */
};

/* ---- driver.c ---- */

/* Prints a message on stderr. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/*
 * Loads the driver (CUDA or HIP) and looks up all functions. Returns 0, -ENOENT or -ENOSYS, with a
 * message on stderr.
 */
int driver_open(bool is_hip);
/* Prints the call and the driver's error name on stderr. Returns -EIO. */
int driver_error(const char *call, CUresult result);

/* Returns 0, or -EIO after printing the call and the driver's error name on stderr. */
#define CU(name, ...)                                                             \
	({                                                                        \
		CUresult cu_result_ = driver.name(__VA_ARGS__);                   \
		cu_result_ == CUDA_SUCCESS ? 0 : driver_error(#name, cu_result_); \
	})

/* Loads the kernels for the GPU whose context is current. Errors are printed. */
int module_load(CUmodule *ret_module);
/* Launches a kernel of any size on @stream; @arguments as for cuLaunchKernel. */
int launch(CUfunction function, CUstream stream, void **arguments);
/* Makes the GPU's context current in this thread; does nothing if there is only one GPU. */
int gpu_use(const struct demo *demo, const struct gpu *gpu);

/* ---- buffer.c ---- */

const char *buffer_kind_name(const struct buffer *buffer);
/* Returns the expected value of a word, after values with the sum @added were added to it. */
static inline uint32_t expected_word(const struct buffer *buffer, uint64_t word, uint32_t added)
{
	return (buffer->seed ^ (uint32_t)word * GCR_DEMO_MULTIPLIER) + added;
}

uint64_t part_words(const struct buffer *buffer, uint64_t part);
/* Returns the checksum of words [first, first + count), with weights counted from @first. */
uint64_t expected_sum(const struct buffer *buffer, uint64_t first, uint64_t count, uint32_t added);
/* Allocates and fills buffer @index of @bytes. The caller sets the other fields of *buffer. */
int buffer_create(struct demo *demo, uint64_t index, uint64_t bytes);
int buffer_free(struct demo *demo, struct buffer *buffer);
/*
 * The other actions of a tick: remakes segments of a VMM buffer, checks the advice of managed
 * memory.
 */
int buffer_exercise(struct demo *demo, struct buffer *buffer, uint64_t tick);
/* Checks managed memory by reading it on the CPU, once the GPU is idle. */
int buffer_look(const struct buffer *buffer, uint64_t tick);

/* ---- load.c ---- */

/* Starts threads that submit work without pause, each checking its own memory. */
int threads_start(struct demo *demo);
int threads_stop(struct demo *demo);
/* Adds @value to a part by a graph, whose capture is held open for capture_msec. */
int captured_add(struct demo *demo, struct buffer *buffer, uint64_t first, uint64_t words,
		 uint32_t value);
/* Starts a kernel that runs until SIGUSR1 arrives. */
int spin_start(struct demo *demo);
void spin_stop(void); /* does nothing if there is none */
/* Starts idle child processes that end with this process. */
int children_start(const struct demo *demo);

#endif

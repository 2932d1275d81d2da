/* SPDX-License-Identifier: MIT */
/* What the parts of gpucr-demo share: the driver's functions, the buffers, the GPUs. */
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

/* A tick changes one part of each buffer; the CPU keeps one sum and one number for each part. */
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
	BUFFER_MANAGED, /* cuMemAllocManaged, with advice that is checked too */
	BUFFER_VMM,	/* a reserved range that handles are mapped into, piece by piece */
	BUFFER_PITCH,	/* cuMemAllocPitch */
	BUFFER_ASYNC,	/* cuMemAllocAsync */
};

struct part {
	uint32_t added; /* sum of all values added to each word since the fill */
	uint64_t sum;	/* what gpucr_checksum adds up for this part */
};

struct buffer {
	enum buffer_kind kind;
	unsigned gpu; /* in demo.gpus */
	CUdeviceptr pointer;
	uint64_t words, part_count;
	uint32_t seed;
	struct part *parts;
	uint64_t sum; /* of all parts */

	/* BUFFER_VMM */
	uint64_t segment_bytes, segment_count;
	CUmemGenericAllocationHandle *segments;
};

struct gpu {
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction fill, add, checksum, spin;
	CUdeviceptr scratch; /* --gpus: a part of a buffer of another one; 0: no peer access */
	CUdeviceptr sums;    /* a 64-bit sum for each buffer: it is checked from any GPU that can */
};

struct demo {
	/* as asked for */
	uint64_t bytes, buffer_count, block_count, block_bytes;
	uint64_t managed_count, vmm_count, pitch_count, async_count;
	uint64_t tick_msec, ticks, first_gpu, gpu_count;
	uint64_t thread_count, capture_msec, spin_tick, child_count, fork_tick;
	bool clone, list, hip;

	struct gpu gpus[DEMO_GPUS_MAX];
	struct buffer *buffers;
	uint64_t count;
	CUstream stream; /* of the first GPU: captures, stream-ordered memory */
};

/* ---- driver.c ---- */

void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Look up all functions, of CUDA or HIP: 0, -ENOENT, -ENOSYS, with words on stderr. */
int driver_open(bool is_hip);
int driver_error(const char *call, CUresult result);

/* 0, or -EIO with the call and the driver's name for what went wrong on stderr. */
#define CU(name, ...)                                                             \
	({                                                                        \
		CUresult cu_result_ = driver.name(__VA_ARGS__);                   \
		cu_result_ == CUDA_SUCCESS ? 0 : driver_error(#name, cu_result_); \
	})

/* The kernels, for the GPU whose context is current. Errors have been said. */
int module_load(CUmodule *ret_module);
/* A kernel of any size on @stream; @arguments as cuLaunchKernel takes them. */
int launch(CUfunction function, CUstream stream, void **arguments);
/* Make the GPU's context this thread's; does nothing where there is one GPU only. */
int gpu_use(const struct demo *demo, const struct gpu *gpu);

/* ---- buffer.c ---- */

const char *buffer_kind_name(const struct buffer *buffer);
static inline uint32_t expected_word(const struct buffer *buffer, uint64_t word, uint32_t added)
{
	return (buffer->seed ^ (uint32_t)word * GCR_DEMO_MULTIPLIER) + added;
}

uint64_t part_words(const struct buffer *buffer, uint64_t part);
/* What a checksum of words [first, first + count), counted from @first, comes to. */
uint64_t expected_sum(const struct buffer *buffer, uint64_t first, uint64_t count, uint32_t added);
/* Make buffer @index, @bytes large, and fill it. The rest of *buffer is set by the caller. */
int buffer_create(struct demo *demo, uint64_t index, uint64_t bytes);
int buffer_free(struct demo *demo, struct buffer *buffer);
/* What a tick does to it besides: segments of own VMM memory come and go, advice is looked at. */
int buffer_exercise(struct demo *demo, struct buffer *buffer, uint64_t tick);
/* The CPU looks at managed memory itself, once the GPU is idle. */
int buffer_look(const struct buffer *buffer, uint64_t tick);

/* ---- load.c ---- */

/* Threads that give the GPU work without pause, each checking memory of its own. */
int threads_start(struct demo *demo);
int threads_stop(struct demo *demo);
/* Add @value to a part by a graph, captured for capture_msec before. */
int captured_add(struct demo *demo, struct buffer *buffer, uint64_t first, uint64_t words,
		 uint32_t value);
/* A kernel that ends when SIGUSR1 comes. */
int spin_start(struct demo *demo);
void spin_stop(void); /* if there is one */
/* Children that do nothing and end with us. */
int children_start(const struct demo *demo);

#endif

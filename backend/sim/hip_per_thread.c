/* SPDX-License-Identifier: MIT */
/* The _spt variants, in which stream 0 is the calling thread's own stream. */
#include "backend/sim/hip.h"

#define PER_THREAD(name, parameters, arguments) \
	hipError_t name##_spt parameters        \
	{                                       \
		hipError_t error;               \
                                                \
		per_thread_default = true;      \
		error = name arguments;         \
		per_thread_default = false;     \
		return error;                   \
	}

PER_THREAD(hipMemcpy, (void *dst, const void *src, size_t size_bytes, hipMemcpyKind kind),
	   (dst, src, size_bytes, kind))
PER_THREAD(hipMemcpyAsync,
	   (void *dst, const void *src, size_t size_bytes, hipMemcpyKind kind, hipStream_t stream),
	   (dst, src, size_bytes, kind, stream))
PER_THREAD(hipMemcpy2D,
	   (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
	    hipMemcpyKind kind),
	   (dst, dpitch, src, spitch, width, height, kind))
PER_THREAD(hipMemcpyToSymbol,
	   (const void *symbol, const void *src, size_t size_bytes, size_t offset,
	    hipMemcpyKind kind),
	   (symbol, src, size_bytes, offset, kind))
PER_THREAD(hipMemcpyFromSymbol,
	   (void *dst, const void *symbol, size_t size_bytes, size_t offset, hipMemcpyKind kind),
	   (dst, symbol, size_bytes, offset, kind))
PER_THREAD(hipMemset, (void *dst, int value, size_t size_bytes), (dst, value, size_bytes))
PER_THREAD(hipMemset2D, (void *dst, size_t pitch, int value, size_t width, size_t height),
	   (dst, pitch, value, width, height))
PER_THREAD(hipStreamQuery, (hipStream_t stream), (stream))
PER_THREAD(hipStreamSynchronize, (hipStream_t stream), (stream))
PER_THREAD(hipStreamGetPriority, (hipStream_t stream, int *priority), (stream, priority))
PER_THREAD(hipStreamGetFlags, (hipStream_t stream, unsigned int *flags), (stream, flags))
PER_THREAD(hipStreamWaitEvent, (hipStream_t stream, hipEvent_t event, unsigned int flags),
	   (stream, event, flags))
PER_THREAD(hipLaunchKernel,
	   (const void *function_address, dim3 num_blocks, dim3 dim_blocks, void **args,
	    size_t shared_mem_bytes, hipStream_t stream),
	   (function_address, num_blocks, dim_blocks, args, shared_mem_bytes, stream))
PER_THREAD(hipLaunchCooperativeKernel,
	   (const void *f, dim3 grid_dim, dim3 block_dim, void **kernel_params,
	    uint32_t shared_mem_bytes, hipStream_t h_stream),
	   (f, grid_dim, block_dim, kernel_params, shared_mem_bytes, h_stream))

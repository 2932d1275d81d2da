/* SPDX-License-Identifier: MIT */
/*
 * HIP under the names of CUDA's driver. The preload library and the worker are written in terms of
 * cuMemCreate and its like, and for AMD call through what is found here: HIP's own function where
 * the two have the same binary interface and meaning (ALIKE in alike.def), or else a function of
 * adapt*.c with CUDA's prototype that calls HIP's (ADAPTED). What differs is told in README.md.
 *
 * Nothing here allocates memory, takes a lock or runs before it is called: it is part of other
 * people's programs.
 */
#ifndef GCR_ROCM_ADAPT_H
#define GCR_ROCM_ADAPT_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

/* The address of a function of HIP's library; NULL if it has none of that name. */
typedef void *gcr_hip_look_up(void *argument, const char *hip_name);

/*
 * What to call for this function of CUDA's driver, named as exported ("cuMemAlloc_v2"): to be cast
 * to its type in cuda_api.h. NULL if HIP has nothing like it, or if the library that @look_up
 * searches is too old. All adapters call the library that was searched last: there is one in a
 * process, though it may be closed and opened again.
 */
void *gcr_hip_find(const char *cuda_name, gcr_hip_look_up *look_up, void *argument);

/* The function of HIP that does most of the work, for words: "hipMemCreate". NULL: there is none.
 */
const char *gcr_hip_name(const char *cuda_name);

/*
 * The version of HIP of the library that the adapters call, as HIP counts it (HIP_VERSION of
 * hip_version.h): GCR_HIP_VERSION(major, minor) and HIP's own patch level, which is not ROCm's. 0
 * if no adapter has been looked up yet.
 */
#define GCR_HIP_VERSION(major, minor) (10000000 * (major) + 100000 * (minor))
int gcr_hip_version(void);

/*
 * Why memory cannot be handed from process to process with this version, or would not be freed, in
 * words; NULL if it can and is. Where not, the adapters refuse to export and to import
 * (CUDA_ERROR_NOT_SUPPORTED).
 */
const char *gcr_hip_unsuitable(int version);

/*
 * These addresses have been mapped with access for GPUs alone: a child that is forked has no use
 * for them, and is not to keep the memory in use. From ROCm 7.1 on; before, nothing is there to
 * inherit.
 */
void gcr_hip_keep_from_children(CUdeviceptr start, size_t bytes);

/*
 * The GPU's architecture with its features, as compilers name it: "gfx90a:sramecc+:xnack-". CUDA
 * has nothing like it, and the layout it is told in depends on the version. 0, -ENODEV if HIP does
 * not tell, -ENAMETOOLONG.
 */
int gcr_hip_architecture(CUdevice device, gcr_hip_look_up *look_up, void *argument, char *ret_name,
			 size_t room);

/*
 * In HIP a context is its device: what stands for the one of the device with this ordinal. The
 * handle is not to be followed, nor handed to HIP. gcr_hip_device() is -1 for no context.
 */
static inline CUcontext gcr_hip_context(CUdevice device)
{
	return (CUcontext)(uintptr_t)(device + 1);
}

static inline CUdevice gcr_hip_device(CUcontext context)
{
	return (CUdevice)(uintptr_t)context - 1;
}

#endif

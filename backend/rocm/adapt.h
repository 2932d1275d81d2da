/* SPDX-License-Identifier: MIT */
/*
 * HIP under the names of CUDA's driver. The preload library and the worker are written in terms of
 * cuMemCreate and the like. On AMD they call the functions found here: HIP's own function if both
 * have the same binary interface and meaning (ALIKE in alike.def), otherwise an adapter of adapt*.c
 * with CUDA's prototype that calls HIP (ADAPTED). README.md describes the differences.
 *
 * This code is part of users' programs: it allocates no memory, takes no lock and does nothing
 * before its first call.
 */
#ifndef GCR_ROCM_ADAPT_H
#define GCR_ROCM_ADAPT_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

/* Returns the address of a function of HIP's library; NULL if there is none of that name. */
typedef void *gcr_hip_look_up(void *argument, const char *hip_name);

/*
 * Returns the function to call for a function of CUDA's driver, named as exported
 * ("cuMemAlloc_v2"); the caller casts it to its type in cuda_api.h. NULL: HIP has nothing like it,
 * or the library that @look_up searches is too old. All adapters call the library that was searched
 * last: a process has only one, although the library may be closed and opened again.
 */
void *gcr_hip_find(const char *cuda_name, gcr_hip_look_up *look_up, void *argument);

/* Returns the main HIP function behind @cuda_name, for messages: "hipMemCreate"; NULL: none. */
const char *gcr_hip_name(const char *cuda_name);

/*
 * Returns the HIP version of the library that the adapters call, in HIP's format (HIP_VERSION of
 * hip_version.h): GCR_HIP_VERSION(major, minor) plus HIP's own patch level, which differs from
 * ROCm's. 0 if no adapter has been looked up yet.
 */
#define GCR_HIP_VERSION(major, minor) (10000000 * (major) + 100000 * (minor))
int gcr_hip_version(void);

/*
 * Returns why memory cannot be passed between processes with this version, or would not be freed: a
 * message; NULL if the version is suitable. With an unsuitable version the adapters refuse export
 * and import (CUDA_ERROR_NOT_SUPPORTED).
 */
const char *gcr_hip_unsuitable(int version);

/*
 * Excludes addresses that are mapped for GPUs only from forked children, which have no use for them
 * and would keep the memory in use. Effective from ROCm 7.1 on; in earlier versions there is
 * nothing to inherit.
 */
void gcr_hip_keep_from_children(CUdeviceptr start, size_t bytes);

/*
 * Returns in @ret_name the GPU's architecture with its features, as compilers name it:
 * "gfx90a:sramecc+:xnack-". CUDA has no such call, and the layout of HIP's answer depends on the
 * version. 0, -ENODEV if HIP does not say, -ENAMETOOLONG.
 */
int gcr_hip_architecture(CUdevice device, gcr_hip_look_up *look_up, void *argument, char *ret_name,
			 size_t room);

/*
 * In HIP a context is its device: returns a handle that stands for the context of a device. The
 * handle must not be dereferenced or passed to HIP. gcr_hip_device() returns -1 for no context.
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

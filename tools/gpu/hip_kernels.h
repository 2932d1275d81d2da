/* SPDX-License-Identifier: MIT */
/*
 * The kernels of kernels.h for AMD's GPUs: HIP C, compiled at run time by libhiprtc, so that
 * no ROCm compiler is needed to build this, and any GPU that the library knows will do.
 */
#ifndef GCR_TOOLS_GPU_HIP_KERNELS_H
#define GCR_TOOLS_GPU_HIP_KERNELS_H

#include <stddef.h>

#include "lib/error.h"

/*
 * @hip: libamdhip64, by dlopen. @architecture as "gfx90a:sramecc+:xnack-"; NULL: that of the GPU
 * that is current in this thread. What hipModuleLoadData takes; the caller frees it. -ENOENT there
 * is no libhiprtc, -ENOSYS it lacks a function, -EIO it does not compile them: with its words.
 */
int gcr_hip_kernels(void *hip, const char *architecture, void **ret_code, size_t *ret_bytes,
		    struct gcr_error *error);

#endif

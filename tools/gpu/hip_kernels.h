/* SPDX-License-Identifier: MIT */
/*
 * The kernels of kernels.h for AMD GPUs: HIP C compiled at run time by libhiprtc. Hence the build
 * needs no ROCm compiler, and every GPU known to the installed library is supported.
 */
#ifndef GCR_TOOLS_GPU_HIP_KERNELS_H
#define GCR_TOOLS_GPU_HIP_KERNELS_H

#include <stddef.h>

#include "lib/error.h"

/*
 * Compiles the kernels into code for hipModuleLoadData; the caller frees *ret_code. @hip:
 * libamdhip64 from dlopen. @architecture: such as "gfx90a:sramecc+:xnack-"; NULL: the current GPU
 * of this thread. Errors, with a message: -ENOENT no libhiprtc, -ENOSYS a function is missing, -EIO
 * the compilation failed.
 */
int gcr_hip_kernels(void *hip, const char *architecture, void **ret_code, size_t *ret_bytes,
		    struct gcr_error *error);

#endif

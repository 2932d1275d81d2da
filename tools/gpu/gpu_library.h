/* SPDX-License-Identifier: MIT */
/*
 * The driver's library, NVIDIA's or AMD's, for programs that use the GPU through one table of
 * functions with CUDA's names: HIP's stand in for them (backend/rocm/adapt.h). And the kernels of
 * kernels.h, in the form that this driver loads. Any thread; nothing is printed.
 */
#ifndef GCR_TOOLS_GPU_GPU_LIBRARY_H
#define GCR_TOOLS_GPU_GPU_LIBRARY_H

#include <stdbool.h>

#include "lib/error.h"

struct gcr_gpu_library {
	bool is_hip;
	void *handle;
	const char *name; /* under which it was found */
};

/* Load it; it stays. -ENOENT, with the dynamic linker's words. */
int gcr_gpu_library_open(bool is_hip, struct gcr_gpu_library *ret_library, struct gcr_error *error);

/*
 * What to call for this function of CUDA's driver, with its prototype; NULL: there is nothing.
 * Looked up by dlsym: with the preload library in front, it is its wrapper.
 */
void *gcr_gpu_library_find(const struct gcr_gpu_library *library, const char *cuda_name);

/* What a person is told that it was: "cuMemAlloc_v2", "hipMalloc". */
const char *gcr_gpu_library_word(const struct gcr_gpu_library *library, const char *cuda_name);

/*
 * For cuModuleLoadData: the kernels, for the GPU that is current in this thread. The caller frees
 * it. Of HIP they are compiled now, by libhiprtc: -ENOENT if there is none, -EIO with what the
 * compiler said.
 */
int gcr_gpu_library_kernels(const struct gcr_gpu_library *library, void **ret_code,
			    struct gcr_error *error);

#endif

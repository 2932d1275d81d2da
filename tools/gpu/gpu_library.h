/* SPDX-License-Identifier: MIT */
/*
 * Loads the driver's library, NVIDIA's or AMD's, for programs that use either through one table of
 * functions with CUDA's names: HIP's functions stand in for them (backend/rocm/adapt.h). Also
 * provides the kernels of kernels.h in the form that the driver loads. Callable from any thread;
 * prints nothing.
 */
#ifndef GCR_TOOLS_GPU_GPU_LIBRARY_H
#define GCR_TOOLS_GPU_GPU_LIBRARY_H

#include <stdbool.h>

#include "lib/error.h"

struct gcr_gpu_library {
	bool is_hip;
	void *handle;
	const char *name; /* the name by which the library was found */
};

/*
 * Loads the library, which is never unloaded. Returns 0, or -ENOENT with the dynamic linker's
 * message.
 */
int gcr_gpu_library_open(bool is_hip, struct gcr_gpu_library *ret_library, struct gcr_error *error);

/*
 * Returns the function to call for @cuda_name, with CUDA's prototype; NULL: there is none. The
 * function is looked up by dlsym: under the preload library the result is the library's wrapper.
 */
void *gcr_gpu_library_find(const struct gcr_gpu_library *library, const char *cuda_name);

/* Returns the function's name for messages: "cuMemAlloc_v2", "hipMalloc". */
const char *gcr_gpu_library_word(const struct gcr_gpu_library *library, const char *cuda_name);

/*
 * Returns the kernels for the current GPU of this thread, in the form that cuModuleLoadData takes.
 * The caller frees *ret_code. For HIP the kernels are compiled by libhiprtc in this call: -ENOENT
 * if there is no libhiprtc, -EIO with the compiler's message.
 */
int gcr_gpu_library_kernels(const struct gcr_gpu_library *library, void **ret_code,
			    struct gcr_error *error);

#endif

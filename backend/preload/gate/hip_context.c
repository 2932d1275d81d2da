/* SPDX-License-Identifier: MIT */
/*
 * In HIP a context is a GPU. No function makes or destroys one, but hipDeviceReset removes all that
 * the program has on a GPU. The hipCtx... functions are older and only select a GPU.
 */
#include "backend/preload/gate/context.h"

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"

size_t gcr_contexts_alive(CUcontext *ret_contexts, size_t room)
{
	__typeof__(cuDeviceGetCount) *get_count = GCR_REAL(cuDeviceGetCount);
	int count = 0;

	if (!get_count || get_count(&count) != CUDA_SUCCESS || count < 0)
		return 0;
	for (int i = 0; i < count && (size_t)i < room; i++)
		ret_contexts[i] = gcr_hip_context(i);
	return (size_t)count;
}

/*
 * ROCm 6 does not unmap the mappings that a reset makes HIP forget, and would crash if they were
 * unmapped later. So the library frees its memory before the reset, when the work on it is done.
 */
GCR_OWN(hipDeviceReset);
hipError_t gcr_own_hipDeviceReset(void)
{
	__typeof__(hipDeviceReset) *real = GCR_WRAPPED(hipDeviceReset);
	CUcontext context = NULL;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE_WHOLE(hipDeviceReset);
	if (GCR_REAL(cuCtxGetCurrent) && GCR_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS &&
	    GCR_REAL(cuCtxSynchronize) && GCR_REAL(cuCtxSynchronize)() == CUDA_SUCCESS)
		GCR_TELL(context_gone, context);
	return real();
}

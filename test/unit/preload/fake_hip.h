/* SPDX-License-Identifier: MIT */
/* Functions and types that fake_hip.c has and hip_api.h does not declare. */
#ifndef GPUCR_TEST_FAKE_HIP_H
#define GPUCR_TEST_FAKE_HIP_H

#include <stddef.h>
#include <stdint.h>

#include "backend/rocm/hip_api.h"

typedef void look_function(void);

/* Number of calls of hipInit. */
int fake_hip_inits(void);

/* The layouts of hipPitchedPtr and hipExtent. */
struct fake_pitched {
	void *pointer;
	size_t pitch, width, height;
};
struct fake_extent {
	size_t width, height, depth;
};

/* The exported (mangled) name of hipExtModuleLaunchKernel. */
#define FAKE_EXT_LAUNCH \
	_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j
hipError_t FAKE_EXT_LAUNCH(void *function, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
			   uint32_t e, uint32_t f, size_t shared_bytes, void *stream,
			   void **arguments, void **extra, void *start, void *stop, uint32_t flags);
hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
			   size_t shared_bytes, hipStream_t stream);
int hipMemset3D(struct fake_pitched memory, int value, struct fake_extent extent);
int hipTexRefSetMipmapLevelClamp(void *reference, float least, float most);
double hipFutureCall(look_function *look, int one, double half);
hipError_t hipGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
				  int *status);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * A fake libamdhip64.so.6 with peculiarities that the simulator lacks: functions that no header
 * declares, functions that are returned by a lookup but not exported, and lookups of its own
 * functions by dlsym(3), as AMD's library makes. Each function calls back into the test.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backend/rocm/hip_api.h"
#include "test/unit/preload/fake_hip.h"

static int inits;

int fake_hip_inits(void)
{
	return inits;
}

hipError_t hipInit(unsigned int flags)
{
	inits++;
	return flags ? hipErrorInvalidValue : hipSuccess;
}

hipError_t hipGetLastError(void)
{
	return hipSuccess;
}

hipError_t hipGetDeviceCount(int *count)
{
	*count = 1;
	return hipSuccess;
}

hipError_t hipStreamQuery(hipStream_t stream)
{
	((look_function *)stream)();
	return hipSuccess;
}

/* Structs and floating-point arguments by value; the sum shows whether all arrived. */
hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
			   size_t shared_bytes, hipStream_t stream)
{
	((look_function *)stream)();
	return (hipError_t)((uintptr_t)function + grid.x + grid.y + grid.z + block.x + block.y +
			    block.z + (uintptr_t)arguments + shared_bytes);
}

hipError_t FAKE_EXT_LAUNCH(void *function, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
			   uint32_t e, uint32_t f, size_t shared_bytes, void *stream,
			   void **arguments, void **extra, void *start, void *stop, uint32_t flags)
{
	((look_function *)stream)();
	return (hipError_t)((uintptr_t)function + a + b + c + d + e + f + shared_bytes +
			    (uintptr_t)arguments + (uintptr_t)extra + (uintptr_t)start +
			    (uintptr_t)stop + flags);
}

int hipMemset3D(struct fake_pitched memory, int value, struct fake_extent extent)
{
	((look_function *)memory.pointer)();
	return (int)(memory.pitch + memory.width + memory.height + extent.width + extent.height +
		     extent.depth) +
	       value;
}

int hipTexRefSetMipmapLevelClamp(void *reference, float least, float most)
{
	((look_function *)reference)();
	return (int)(8 * least + most);
}

/* A function newer than any table. */
double hipFutureCall(look_function *look, int one, double half)
{
	look();
	return one + half;
}

static hipError_t future_query(hipStream_t stream)
{
	((look_function *)stream)();
	return hipErrorNotReady;
}

hipError_t hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags,
			     hipDriverProcAddressQueryResult *status)
{
	void *library = dlopen("libamdhip64.so.6", RTLD_LAZY | RTLD_NOLOAD);

	if (version >= 9900 && strcmp(symbol, "hipStreamQuery") == 0)
		*function = (void *)future_query;
	else
		*function = dlsym(library, symbol);
	if (library)
		dlclose(library);
	return *function ? hipSuccess : hipErrorInvalidValue;
}

/* In HIP since 7.1. */
hipError_t hipGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
				  int *status)
{
	*function = strcmp(symbol, "hipStreamQuery") == 0 ? (void *)hipStreamQuery : NULL;
	return *function ? hipSuccess : hipErrorInvalidValue;
}

/* SPDX-License-Identifier: MIT */
/* gpucr-demo: the driver's functions, looked up at run time, and words for what went wrong. */
#include "tools/demo.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define GRID_BLOCKS  1024
#define GRID_THREADS 256

struct driver driver;

void complain(const char *format, ...)
{
	va_list arguments;

	flockfile(stderr);
	fputs("gpucr-demo: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	funlockfile(stderr);
}

int driver_error(const char *call, CUresult result)
{
	const char *name = NULL;

	if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "unknown error";
	complain("%s: %s (%d)", call, name, (int)result);
	return -EIO;
}

int driver_open(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

	if (!library) {
		complain("%s (no GPU driver here? `gpucr-run --sim gpucr-demo` uses the simulator)",
			 dlerror());
		return -ENOENT;
	}
#define LOOK_UP(name)                                                             \
	driver.name = (__typeof__(name) *)dlsym(library, #name);                  \
	if (!driver.name) {                                                       \
		complain("libcuda.so.1 has no %s: the driver is too old", #name); \
		return -ENOSYS;                                                   \
	}
	DRIVER_FUNCTIONS(LOOK_UP)
	return 0;
}

int launch(CUfunction function, CUstream stream, void **arguments)
{
	return CU(cuLaunchKernel, function, GRID_BLOCKS, 1, 1, GRID_THREADS, 1, 1, 0, stream,
		  arguments, NULL);
}

int gpu_use(const struct demo *demo, const struct gpu *gpu)
{
	return demo->gpu_count > 1 ? CU(cuCtxSetCurrent, gpu->context) : 0;
}

/* SPDX-License-Identifier: MIT */
/* gpucr-demo: the driver's functions, looked up at run time, and error messages. */
#include "tools/demo/demo.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "tools/gpu/gpu_library.h"

#define GRID_BLOCKS  1024
#define GRID_THREADS 256

struct driver driver;
static struct gcr_gpu_library library;

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
	complain("%s: %s (%d)", gcr_gpu_library_word(&library, call), name, (int)result);
	return -EIO;
}

int driver_open(bool is_hip)
{
	struct gcr_error error;

	if (gcr_gpu_library_open(is_hip, &library, &error) < 0) {
		complain("%s (no GPU driver here? `gpucr-run --sim gpucr-demo%s` uses the "
			 "simulator)",
			 error.words, is_hip ? " --hip" : "");
		return -ENOENT;
	}
#define LOOK_UP(function)                                                                    \
	driver.function = (__typeof__(function) *)gcr_gpu_library_find(&library, #function); \
	if (!driver.function) {                                                              \
		complain("%s has no %s: the driver is too old", library.name,                \
			 gcr_gpu_library_word(&library, #function));                         \
		return -ENOSYS;                                                              \
	}
	DRIVER_FUNCTIONS(LOOK_UP)
	return 0;
}

int module_load(CUmodule *ret_module)
{
	_cleanup_free_ void *code = NULL;
	struct gcr_error error;
	int result = gcr_gpu_library_kernels(&library, &code, &error);

	if (result < 0) {
		complain("the kernels: %s", error.words);
		return result;
	}
	return CU(cuModuleLoadData, ret_module, code);
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

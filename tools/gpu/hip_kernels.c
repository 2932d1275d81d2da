/* SPDX-License-Identifier: MIT */
/*
 * Compiles the kernels. The declarations of hiprtc are those of <hip/hiprtc.h> of ROCm 5.2 to 7.0;
 * test_hiprtc.c compares them with an installed header. Up to ROCm 6 libamdhip64 has these
 * functions too.
 */
#include "tools/gpu/hip_kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "tools/gpu/hiprtc_api.h"
#include "tools/gpu/kernels.h"

#define TEXT_(x) #x
#define TEXT(x)	 TEXT_(x)

/* The same four kernels as in gcr_demo_ptx, with the same arguments; described there. */
static const char source[] =
	"typedef unsigned int word;\n"
	"typedef unsigned long long number;\n"
	"#define FOR_ALL(i, count) \\\n"
	"	for (number i = (number)blockIdx.x * blockDim.x + threadIdx.x, \\\n"
	"		    stride = (number)gridDim.x * blockDim.x; \\\n"
	"	     i < count; i += stride)\n"
	"extern \"C\" __global__ void gpucr_fill(word *words, number count, word seed)\n"
	"{\n"
	"	FOR_ALL(i, count)\n"
	"		words[i] = seed ^ (word)i * " TEXT(
		GCR_DEMO_MULTIPLIER) ";\n"
				     "}\n"
				     "extern \"C\" __global__ void gpucr_add(word *words, number "
				     "first, number count,\n"
				     "				       word value)\n"
				     "{\n"
				     "	FOR_ALL(i, count)\n"
				     "		words[first + i] += value;\n"
				     "}\n"
				     "extern \"C\" __global__ void gpucr_checksum(const word "
				     "*words, number count,\n"
				     "					    number *result)\n"
				     "{\n"
				     "	number sum = 0;\n"
				     "	FOR_ALL(i, count)\n"
				     "		sum += ((number)words[i] + 1) * (2 * i + 1);\n"
				     "	atomicAdd(result, sum);\n"
				     "}\n"
				     "extern \"C\" __global__ void gpucr_spin(const volatile word "
				     "*flag)\n"
				     "{\n"
				     "	while (!*flag)\n"
				     "		;\n"
				     "}\n";

#define CALLS(X)                   \
	X(hiprtcCreateProgram)     \
	X(hiprtcCompileProgram)    \
	X(hiprtcGetProgramLogSize) \
	X(hiprtcGetProgramLog)     \
	X(hiprtcGetCodeSize)       \
	X(hiprtcGetCode)           \
	X(hiprtcDestroyProgram)    \
	X(hiprtcGetErrorString)

struct compiler {
#define FIELD(name) __typeof__(name) *name;
	CALLS(FIELD)
#undef FIELD
};

/*
 * Tries the driver's own functions first: they have the driver's version, whatever else is
 * installed.
 */
static void *find_library(void *hip)
{
	static const char *const names[] = {"libhiprtc.so",   "libhiprtc.so.10",
					    "libhiprtc.so.9", "libhiprtc.so.8",
					    "libhiprtc.so.7", "libhiprtc.so.6",
					    "libhiprtc.so.5", "/opt/rocm/lib/libhiprtc.so"};
	void *library = NULL;

	if (dlsym(hip, "hiprtcCompileProgram"))
		return hip;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(names) && !library; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	return library;
}

static int open_compiler(void *hip, struct compiler *compiler, struct gcr_error *error)
{
	void *library = find_library(hip);

	if (!library)
		return gcr_error_set(error, ENOENT,
				     "there is no libhiprtc, which compiles the kernels (ROCm's "
				     "package hiprtc, or hip-runtime-amd): %s",
				     dlerror());
#define LOOK_UP(name)                                               \
	compiler->name = (__typeof__(name) *)dlsym(library, #name); \
	if (!compiler->name)                                        \
		return gcr_error_set(error, ENOSYS, "libhiprtc has no %s", #name);
	CALLS(LOOK_UP)
#undef LOOK_UP
	return 0;
}

/* Sets an error with the beginning of the compiler's log, or with the result if there is no log. */
static int complain(const struct compiler *compiler, hiprtcProgram program, const char *call,
		    hiprtcResult result, struct gcr_error *error)
{
	_cleanup_free_ char *log = NULL;
	const char *name = compiler->hiprtcGetErrorString(result);
	size_t bytes = 0;

	if (program && !compiler->hiprtcGetProgramLogSize(program, &bytes) && bytes) {
		log = calloc(1, bytes + 1);
		if (log && compiler->hiprtcGetProgramLog(program, log))
			*log = '\0';
	}
	return gcr_error_set(error, EIO, "%s: %s (%d)%s%s", call, name ? name : "unknown error",
			     (int)result, log && *log ? ": " : "", log && *log ? log : "");
}

static int compile(const struct compiler *compiler, hiprtcProgram program, const char *architecture,
		   void **ret_code, size_t *ret_bytes, struct gcr_error *error)
{
	_cleanup_free_ char *option = NULL;
	_cleanup_free_ char *code = NULL;
	hiprtcResult result;
	size_t bytes;

	if (architecture && asprintf(&option, "--offload-arch=%s", architecture) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = compiler->hiprtcCompileProgram(program, option ? 1 : 0, (const char *[]){option});
	if (result)
		return complain(compiler, program, "hiprtcCompileProgram", result, error);
	result = compiler->hiprtcGetCodeSize(program, &bytes);
	if (result)
		return complain(compiler, NULL, "hiprtcGetCodeSize", result, error);
	code = malloc(bytes);
	if (!code)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = compiler->hiprtcGetCode(program, code);
	if (result)
		return complain(compiler, NULL, "hiprtcGetCode", result, error);
	*ret_code = TAKE_PTR(code);
	*ret_bytes = bytes;
	return 0;
}

int gcr_hip_kernels(void *hip, const char *architecture, void **ret_code, size_t *ret_bytes,
		    struct gcr_error *error)
{
	struct compiler compiler = {0};
	hiprtcProgram program;
	hiprtcResult made;
	int result = open_compiler(hip, &compiler, error);

	if (result < 0)
		return result;
	made = compiler.hiprtcCreateProgram(&program, source, "gpucr-demo.hip", 0, NULL, NULL);
	if (made)
		return complain(&compiler, NULL, "hiprtcCreateProgram", made, error);
	result = compile(&compiler, program, architecture, ret_code, ret_bytes, error);
	compiler.hiprtcDestroyProgram(&program);
	return result;
}

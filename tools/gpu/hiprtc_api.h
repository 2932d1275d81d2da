/* SPDX-License-Identifier: MIT */
/*
 * What is used of HIP's compiler at run time, declared here so that no ROCm is needed to build
 * this. As <hip/hiprtc.h> of ROCm 5.2 to 7.0 has it; test_hiprtc.c compares it with an installed
 * one.
 */
#ifndef GCR_TOOLS_GPU_HIPRTC_API_H
#define GCR_TOOLS_GPU_HIPRTC_API_H

#include <stddef.h>

/* Set by the test, which has the types from the header. */
#ifndef GCR_HIPRTC_TYPES
typedef struct _hiprtcProgram *hiprtcProgram;

typedef enum hiprtcResult {
	HIPRTC_SUCCESS = 0,
} hiprtcResult;
#endif

/* @prog is the caller's until hiprtcDestroyProgram. */
hiprtcResult hiprtcCreateProgram(hiprtcProgram *prog, const char *src, const char *name,
				 int numHeaders, const char **headers, const char **includeNames);
hiprtcResult hiprtcCompileProgram(hiprtcProgram prog, int numOptions, const char **options);
/* Sizes in bytes; that of the log has the end of the text in it. */
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram prog, size_t *logSizeRet);
hiprtcResult hiprtcGetProgramLog(hiprtcProgram prog, char *log);
hiprtcResult hiprtcGetCodeSize(hiprtcProgram prog, size_t *codeSizeRet);
hiprtcResult hiprtcGetCode(hiprtcProgram prog, char *code);
hiprtcResult hiprtcDestroyProgram(hiprtcProgram *prog);
/* NULL for a number that it does not know. */
const char *hiprtcGetErrorString(hiprtcResult result);

#endif

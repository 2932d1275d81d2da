/* SPDX-License-Identifier: MIT */
/*
 * The part of HIP's run-time compiler that is used, declared here so that the build needs no ROCm.
 * Same as <hip/hiprtc.h> of ROCm 5.2 to 7.0; test_hiprtc.c compares this file with an installed
 * header.
 */
#ifndef GCR_TOOLS_GPU_HIPRTC_API_H
#define GCR_TOOLS_GPU_HIPRTC_API_H

#include <stddef.h>

/* Defined by the test, which takes the types from the installed header. */
#ifndef GCR_HIPRTC_TYPES
typedef struct _hiprtcProgram *hiprtcProgram;

typedef enum hiprtcResult {
	HIPRTC_SUCCESS = 0,
} hiprtcResult;
#endif

/* The caller owns @prog and destroys it with hiprtcDestroyProgram. */
hiprtcResult hiprtcCreateProgram(hiprtcProgram *prog, const char *src, const char *name,
				 int numHeaders, const char **headers, const char **includeNames);
hiprtcResult hiprtcCompileProgram(hiprtcProgram prog, int numOptions, const char **options);
/* Sizes are in bytes; the log's size includes the final NUL. */
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram prog, size_t *logSizeRet);
hiprtcResult hiprtcGetProgramLog(hiprtcProgram prog, char *log);
hiprtcResult hiprtcGetCodeSize(hiprtcProgram prog, size_t *codeSizeRet);
hiprtcResult hiprtcGetCode(hiprtcProgram prog, char *code);
hiprtcResult hiprtcDestroyProgram(hiprtcProgram *prog);
/* Returns NULL for an unknown number. */
const char *hiprtcGetErrorString(hiprtcResult result);

#endif

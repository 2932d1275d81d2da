/* SPDX-License-Identifier: MIT */
/*
 * hiprtc_fake: a HIP compiler library that compiles nothing. For an architecture that begins with
 * `wrong` compilation fails with a two-line log; for `mute` it fails with an empty log and an
 * unnamed error; for any other architecture the resulting code is the option that was passed.
 */
#include <string.h>

#include "tools/gpu/hiprtc_api.h"

static char code[256];
static int programs;

hiprtcResult hiprtcCreateProgram(hiprtcProgram *prog, const char *src, const char *name,
				 int numHeaders, const char **headers, const char **includeNames)
{
	programs++;
	*prog = (hiprtcProgram)code;
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcCompileProgram(hiprtcProgram prog, int numOptions, const char **options)
{
	strncpy(code, numOptions ? options[0] : "none", sizeof(code) - 1);
	return strstr(code, "=wrong") || strstr(code, "=mute") ? (hiprtcResult)6 : HIPRTC_SUCCESS;
}

static const char *words(void)
{
	return strstr(code, "=wrong") ? "it is wrong\nindeed" : "";
}

hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram prog, size_t *logSizeRet)
{
	*logSizeRet = strlen(words());
	return HIPRTC_SUCCESS;
}

/* Like some versions, writes no terminating NUL. */
hiprtcResult hiprtcGetProgramLog(hiprtcProgram prog, char *log)
{
	memcpy(log, words(), strlen(words()));
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetCodeSize(hiprtcProgram prog, size_t *codeSizeRet)
{
	*codeSizeRet = strlen(code) + 1;
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetCode(hiprtcProgram prog, char *to)
{
	memcpy(to, code, strlen(code) + 1);
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcDestroyProgram(hiprtcProgram *prog)
{
	programs--;
	return HIPRTC_SUCCESS;
}

const char *hiprtcGetErrorString(hiprtcResult result)
{
	return result == (hiprtcResult)6 && !strstr(code, "=mute") ? "HIPRTC_ERROR_COMPILATION"
								   : NULL;
}

/* Number of programs created and not destroyed. */
int hiprtc_fake_programs(void);
int hiprtc_fake_programs(void)
{
	return programs;
}

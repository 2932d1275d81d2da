/* SPDX-License-Identifier: MIT */
/*
 * A stand-in for AMD's run-time compiler: the "code" is a text that lists the kernels of the
 * source, that is, its declarations `__global__ void NAME(`; hip_image.c reads this text. Any other
 * source does not compile. Types and numbers as in <hip/hiprtc.h> of ROCm 5 to 7.
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sim/hip_text.h"
#include "lib/cleanup.h"

typedef enum hiprtcResult {
	HIPRTC_SUCCESS = 0,
	HIPRTC_ERROR_OUT_OF_MEMORY = 1,
	HIPRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
	HIPRTC_ERROR_INVALID_INPUT = 3,
	HIPRTC_ERROR_INVALID_PROGRAM = 4,
	HIPRTC_ERROR_INVALID_OPTION = 5,
	HIPRTC_ERROR_COMPILATION = 6,
} hiprtcResult;

typedef struct _hiprtcProgram {
	char *source;
	char *code; /* NULL: not compiled */
	size_t code_bytes;
	char log[256];
} * hiprtcProgram;

const char *hiprtcGetErrorString(hiprtcResult result);
hiprtcResult hiprtcVersion(int *major, int *minor);
hiprtcResult hiprtcCreateProgram(hiprtcProgram *program, const char *source, const char *name,
				 int header_count, const char **headers, const char **header_names);
hiprtcResult hiprtcDestroyProgram(hiprtcProgram *program);
hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int option_count, const char **options);
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, size_t *bytes);
hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char *log);
hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, size_t *bytes);
hiprtcResult hiprtcGetCode(hiprtcProgram program, char *code);

const char *hiprtcGetErrorString(hiprtcResult result)
{
	static const char *const names[] = {
		"HIPRTC_SUCCESS",
		"HIPRTC_ERROR_OUT_OF_MEMORY",
		"HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
		"HIPRTC_ERROR_INVALID_INPUT",
		"HIPRTC_ERROR_INVALID_PROGRAM",
		"HIPRTC_ERROR_INVALID_OPTION",
		"HIPRTC_ERROR_COMPILATION",
	};

	return (unsigned)result < GCR_ARRAY_SIZE(names) ? names[result]
							: "Invalid HIPRTC error code";
}

hiprtcResult hiprtcVersion(int *major, int *minor)
{
	if (!major || !minor)
		return HIPRTC_ERROR_INVALID_INPUT;
	*major = 9;
	*minor = 0;
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcCreateProgram(hiprtcProgram *program, const char *source, const char *name,
				 int header_count, const char **headers, const char **header_names)
{
	hiprtcProgram made;

	if (!program || !source || header_count < 0 ||
	    (header_count && (!headers || !header_names)))
		return HIPRTC_ERROR_INVALID_INPUT;
	made = calloc(1, sizeof(*made));
	if (made)
		made->source = strdup(source);
	if (!made || !made->source) {
		free(made);
		return HIPRTC_ERROR_OUT_OF_MEMORY;
	}
	*program = made;
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcDestroyProgram(hiprtcProgram *program)
{
	if (!program || !*program)
		return HIPRTC_ERROR_INVALID_INPUT;
	free((*program)->source);
	free((*program)->code);
	free(*program);
	*program = NULL;
	return HIPRTC_SUCCESS;
}

static const char *spaces_end(const char *text)
{
	return text + strspn(text, " \t\r\n");
}

/* Returns the name after a `__global__`; length 0 if no kernel follows. */
static size_t kernel_name(const char *text, const char **ret_name)
{
	size_t length = 0;

	text = spaces_end(text);
	if (strncmp(text, "void", 4) != 0 || !isspace((unsigned char)text[4]))
		return 0;
	text = spaces_end(text + 4);
	/* Launch bounds may precede the name. */
	if (!strncmp(text, "__launch_bounds__", 17)) {
		text += strcspn(text, ")");
		text = spaces_end(text + (*text == ')'));
	}
	while (isalnum((unsigned char)text[length]) || text[length] == '_')
		length++;
	*ret_name = text;
	return *spaces_end(text + length) == '(' ? length : 0;
}

static bool braces_match(const char *source)
{
	long depth = 0;

	for (; *source && depth >= 0; source++)
		depth += (*source == '{') - (*source == '}');
	return depth == 0;
}

hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int option_count, const char **options)
{
	unsigned count = 0;
	FILE *code;

	if (!program || option_count < 0 || (option_count && !options))
		return HIPRTC_ERROR_INVALID_INPUT;
	for (int i = 0; i < option_count; i++)
		if (!options[i] || *options[i] != '-')
			return HIPRTC_ERROR_INVALID_OPTION;
	free(TAKE_PTR(program->code));
	code = open_memstream(&program->code, &program->code_bytes);
	if (!code)
		return HIPRTC_ERROR_OUT_OF_MEMORY;
	fputs(HIP_TEXT_HEAD, code);
	for (const char *at = program->source; (at = strstr(at, "__global__"));) {
		const char *name;
		size_t length;

		at += strlen("__global__");
		length = kernel_name(at, &name);
		if (length)
			fprintf(code, "kernel %.*s\n", (int)length, name);
		count += length != 0;
	}
	fclose(code);
	program->code_bytes++; /* the code includes its NUL */
	*program->log = '\0';
	if (count && braces_match(program->source))
		return HIPRTC_SUCCESS;
	snprintf(program->log, sizeof(program->log), "simulated: %s\n",
		 count ? "error: braces do not match" : "error: there is no kernel");
	free(TAKE_PTR(program->code));
	return HIPRTC_ERROR_COMPILATION;
}

hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, size_t *bytes)
{
	if (!program || !bytes)
		return HIPRTC_ERROR_INVALID_INPUT;
	*bytes = *program->log ? strlen(program->log) + 1 : 0;
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char *log)
{
	if (!program || !log)
		return HIPRTC_ERROR_INVALID_INPUT;
	memcpy(log, program->log, strlen(program->log) + 1);
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, size_t *bytes)
{
	if (!program || !bytes)
		return HIPRTC_ERROR_INVALID_INPUT;
	if (!program->code)
		return HIPRTC_ERROR_INVALID_PROGRAM;
	*bytes = program->code_bytes;
	return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetCode(hiprtcProgram program, char *code)
{
	if (!program || !code)
		return HIPRTC_ERROR_INVALID_INPUT;
	if (!program->code)
		return HIPRTC_ERROR_INVALID_PROGRAM;
	memcpy(code, program->code, program->code_bytes);
	return HIPRTC_SUCCESS;
}

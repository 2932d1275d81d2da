/* SPDX-License-Identifier: MIT */
/* For programs that measure on a GPU: any failure ends the program with a message. */
#ifndef GCR_TEST_GPU_CHECK_H
#define GCR_TEST_GPU_CHECK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* For calls of the driver, or of pthread. */
#define OK(call)                                                             \
	do {                                                                 \
		int r_ = (int)(call);                                        \
		if (r_)                                                      \
			die("%s:%d: %s: %d", __FILE__, __LINE__, #call, r_); \
	} while (0)

/*
 * For calls of gpucrfs: these return 0 or set `words`; some also set `code`, the driver's result.
 */
static struct gcr_error words;
static CUresult code;
#define DO(call)                                                                      \
	do {                                                                          \
		if ((call) < 0)                                                       \
			die("%s:%d: %s: %s", __FILE__, __LINE__, #call, words.words); \
	} while (0)

#endif

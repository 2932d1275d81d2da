/* SPDX-License-Identifier: MIT */
/*
 * The driver's library for programs of the tests: CUDA's, or HIP's if GPUCR_TEST_VENDOR is `hip`.
 * If the library or a function of it cannot be loaded, the program ends with status 1. The
 * including file includes backend/cuda/cuda_api.h first.
 */
#ifndef GCR_TEST_VENDOR_H
#define GCR_TEST_VENDOR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu/gpu_library.h"

static struct gcr_gpu_library vendor_library;

static inline void vendor_open(void)
{
	const char *vendor = getenv("GPUCR_TEST_VENDOR");
	struct gcr_error error;

	if (gcr_gpu_library_open(vendor && !strcmp(vendor, "hip"), &vendor_library, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
}

/* Return the function with CUDA's name @name. */
static inline void *vendor_find(const char *name)
{
	void *function = gcr_gpu_library_find(&vendor_library, name);

	if (!function) {
		fprintf(stderr, "%s has no %s\n", vendor_library.name, name);
		exit(1);
	}
	return function;
}

/* A function of the driver by CUDA's name: CU(cuInit)(0). */
#define CU(name) ((__typeof__(name) *)vendor_find(#name))

/* A call of the driver that must succeed; otherwise the program ends with status 1. */
#define OK(call)                                                                        \
	do {                                                                            \
		int result_ = (int)(call);                                              \
		if (result_) {                                                          \
			fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, result_); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

#endif

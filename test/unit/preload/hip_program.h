/* SPDX-License-Identifier: MIT */
/* For test programs, by preload_program.h, that call HIP by its own names. */
#ifndef GPUCR_TEST_HIP_PROGRAM_H
#define GPUCR_TEST_HIP_PROGRAM_H

#include "backend/rocm/hip_api.h"
#include "test/unit/preload/preload_program.h"

/* An entry point of HIP, by its own name. */
#define HIP(name) ((__typeof__(name) *)hip_function(#name))

static inline void *hip_function(const char *name)
{
	void *library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
	void *function = library ? dlsym(library, name) : NULL;

	if (!function)
		fprintf(stderr, "no symbol %s\n", name);
	CHECK(function);
	return function;
}

static inline bool owns(const void *pointer)
{
	return memory()->owns((uintptr_t)pointer);
}

#endif

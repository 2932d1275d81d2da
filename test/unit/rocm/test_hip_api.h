/* SPDX-License-Identifier: MIT */
#ifndef GPUCR_TEST_HIP_API_H
#define GPUCR_TEST_HIP_API_H

#include <stdbool.h>
#include <stddef.h>

/* A constant, a size or an offset. */
struct hip_api_number {
	const char *name, *since;
	long long value;
	bool is_there; /* false: the release of these headers lacks it or differs */
};

struct hip_api_function {
	const char *name, *since;
	bool is_there, is_same;
};

extern const struct hip_api_number hip_api_reference[];
extern const size_t hip_api_reference_count;
extern const struct hip_api_function hip_api_functions[];
extern const size_t hip_api_functions_count;
extern const int hip_api_reference_version; /* 100 * major + minor; 0: no headers are installed */

#define PRESENT(name, since, value) {name, since, (long long)(value), true},
#define ABSENT(name, since, value)  {name, since, 0, false},

#endif

/* SPDX-License-Identifier: MIT */
#ifndef GPUCR_TEST_CUDA_API_H
#define GPUCR_TEST_CUDA_API_H

#include <stddef.h>

struct cuda_api_number {
	const char *name;
	long long value;
};

extern const struct cuda_api_number cuda_api_reference[];
extern const size_t cuda_api_reference_count;
extern const int cuda_api_reference_version;

#define CONSTANT(name)	   {#name, (long long)(name)},
#define TYPE(type)	   {"sizeof " #type, (long long)sizeof(type)},
#define FIELD(type, field) {"offset of " #type "." #field, (long long)offsetof(type, field)},

#endif

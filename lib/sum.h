/* SPDX-License-Identifier: MIT */
#ifndef GCR_LIB_SUM_H
#define GCR_LIB_SUM_H

#include <stdint.h>

/* Returns the sum, or UINT64_MAX if it is larger: for figures in which a program may lie. */
static inline uint64_t gcr_sum(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

#endif

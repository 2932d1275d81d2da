/* SPDX-License-Identifier: MIT */
/* Copying into memory that nobody reads soon, around the caches. */
#ifndef GCR_CUDA_NONTEMPORAL_H
#define GCR_CUDA_NONTEMPORAL_H

#include <stddef.h>

/*
 * Copy @bytes, a multiple of 64, to @to, which is aligned to 64. What has been written is seen by
 * whoever sees a store of the caller's after the return. Where the CPU has no such stores this is
 * memcpy().
 */
void gcr_nontemporal_copy(void *to, const void *from, size_t bytes);

#endif

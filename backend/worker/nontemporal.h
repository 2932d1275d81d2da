/* SPDX-License-Identifier: MIT */
/* Copying into memory that this CPU does not read soon, around the caches. */
#ifndef GCR_BACKEND_WORKER_NONTEMPORAL_H
#define GCR_BACKEND_WORKER_NONTEMPORAL_H

#include <stddef.h>

/* Copies are in multiples of this, aligned to a cache line (64 bytes). */
#define GCR_NONTEMPORAL_UNIT 16384

/*
 * Copy @bytes from where the caches may have it. What has been written is seen by whoever sees a
 * store of the caller's after the return. Where the CPU has no such stores this is memcpy().
 */
void gcr_nontemporal_write(void *to, const void *from, size_t bytes);

/* Likewise, from where no cache has it. */
void gcr_nontemporal_read(void *to, const void *from, size_t bytes);

#endif

/* SPDX-License-Identifier: MIT */
/* Copies that bypass the caches, for memory that this CPU does not read soon. */
#ifndef GCR_BACKEND_WORKER_NONTEMPORAL_H
#define GCR_BACKEND_WORKER_NONTEMPORAL_H

#include <stddef.h>

/* Copies are multiples of this size, aligned to a cache line (64 bytes). */
#define GCR_NONTEMPORAL_UNIT 16384

/*
 * Copies @bytes; the source may be in the caches. A thread that sees a store made by the caller
 * after the return also sees the copied bytes. On CPUs without such stores this is memcpy().
 */
void gcr_nontemporal_write(void *to, const void *from, size_t bytes);

/* As gcr_nontemporal_write(), for a source that is in no cache. */
void gcr_nontemporal_read(void *to, const void *from, size_t bytes);

#endif

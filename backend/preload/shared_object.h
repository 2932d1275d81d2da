/* SPDX-License-Identifier: MIT */
/*
 * Pools, memory of pools, events and ranges of addresses that other processes or devices have, each
 * counted as an obstacle from the call that shares it until the program has given up its own.
 */
#ifndef GCR_PRELOAD_SHARED_OBJECT_H
#define GCR_PRELOAD_SHARED_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

enum gcr_shared_kind {
	GCR_SHARED_POOL,
	GCR_SHARED_POOL_MEMORY, /* by its address */
	GCR_SHARED_EVENT,
	GCR_SHARED_RANGE, /* memory of the driver's that a dma-buf stands for, by where it begins */
	GCR_SHARED_KINDS,
};

/*
 * It is shared now, however often. @context: it goes with that; NULL: it does not. Without memory
 * for the note it counts for good.
 */
void gcr_shared_note(enum gcr_shared_kind kind, uint64_t value, CUcontext context);

/*
 * Around the driver's call that gives up the program's own: begin takes it out, so that one which
 * gets the same number in the meantime is another; end counts it no more if the call succeeded, or
 * puts it back. Not shared: nothing happens.
 */
struct gcr_shared_end {
	enum gcr_shared_kind kind;
	uint64_t value;
	CUcontext context;
	bool is_shared;
};
struct gcr_shared_end gcr_shared_begin_end(enum gcr_shared_kind kind, uint64_t value);
void gcr_shared_finish_end(const struct gcr_shared_end *end, CUresult result);

/* The driver has destroyed all that was the context's. */
void gcr_shared_context_gone(CUcontext context);

/* In the child of a fork. */
void gcr_shared_forget(void);

#endif

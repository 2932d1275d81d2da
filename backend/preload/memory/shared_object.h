/* SPDX-License-Identifier: MIT */
/*
 * Pools, memory of pools, events and address ranges that are shared with other processes or
 * devices. Each counts as an obstacle from the call that shares it until the program gives up its
 * own object.
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
	GCR_SHARED_RANGE, /* memory of the driver's exported as a dma-buf, by its start */
	GCR_SHARED_KINDS,
};

/*
 * Records that the object is shared now, however often. @context: the object is destroyed with this
 * context; NULL: with none. If memory for the note cannot be allocated, the object counts for good.
 */
void gcr_shared_note(enum gcr_shared_kind kind, uint64_t value, CUcontext context);

/*
 * Around the driver call that gives up the program's object: begin removes the note, so that a new
 * object with the same number is not confused with it; end stops counting it if the call succeeded,
 * or puts the note back. For an object that is not shared nothing happens.
 */
struct gcr_shared_end {
	enum gcr_shared_kind kind;
	uint64_t value;
	CUcontext context;
	bool is_shared;
};
struct gcr_shared_end gcr_shared_begin_end(enum gcr_shared_kind kind, uint64_t value);
void gcr_shared_finish_end(const struct gcr_shared_end *end, CUresult result);

#endif

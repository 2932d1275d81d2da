/* SPDX-License-Identifier: MIT */
/* Getting managed memory at given addresses from a driver that does not ask where it should be. */
#ifndef GCR_PRELOAD_PLACE_H
#define GCR_PRELOAD_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/mmap_hook.h"
#include "lib/error.h"

/* One allocation. */
struct gcr_place {
	CUdeviceptr start; /* where it has to be */
	size_t bytes;
	uint64_t id; /* in the order in which the program made them */
	unsigned flags;
	CUcontext context;
	size_t chunk; /* its index */
	bool is_there;
	bool is_loaded; /* for who has the list: its contents are there too */
};

/* A chunk in which allocations were; all of its range is held, or it is there with some of them. */
struct gcr_place_chunk {
	struct gcr_chunk range;
	size_t first, count; /* its allocations */
	bool stays;	     /* the driver keeps it without them: there is other memory in it */
};

/*
 * Make all of @places that are not there. They are ordered by address, all known of a chunk are in
 * the list, and chunks are in the same order. On failure (-EADDRNOTAVAIL: it cannot be had there;
 * -ENOMEM; with words) those that were made are freed again and held; -ENOTRECOVERABLE if that
 * failed. The thread's current context is another one afterwards.
 */
int gcr_places_make(struct gcr_place *places, size_t count, struct gcr_place_chunk *chunks,
		    size_t chunk_count, struct gcr_error *error);

/* Free all that are there; @held: their addresses are held from then on. -EIO with words. */
int gcr_places_free(struct gcr_place *places, size_t count, bool held, struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Allocating managed memory at given addresses, although the driver does not let the caller choose
 * the address. A place: one allocation and the address where it must be.
 */
#ifndef GCR_PRELOAD_PLACE_H
#define GCR_PRELOAD_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/managed/mmap_hook.h"
#include "lib/error.h"

/* One allocation. */
struct gcr_place {
	CUdeviceptr start; /* required address */
	size_t bytes;
	uint64_t id; /* in the order in which the program made them */
	unsigned flags;
	CUcontext context;
	size_t chunk; /* index of its chunk */
	bool is_there;
	bool is_loaded; /* for the list's owner: the contents are restored too */
};

/*
 * A chunk that contained allocations. Either its whole range is held, or the chunk exists and has
 * some of them.
 */
struct gcr_place_chunk {
	struct gcr_chunk range;
	size_t first, count; /* its allocations */
	bool stays;	     /* the driver keeps the chunk without them: it contains other memory */
};

/*
 * Makes all of @places that are not there. @places is ordered by address, contains all known
 * allocations of each chunk, and @chunks has the same order. On failure (-EADDRNOTAVAIL: the memory
 * cannot be had at its address; -ENOMEM; with a message) the places that were made are freed and
 * held again; -ENOTRECOVERABLE if that failed. Changes the thread's current context.
 */
int gcr_places_make(struct gcr_place *places, size_t count, struct gcr_place_chunk *chunks,
		    size_t chunk_count, struct gcr_error *error);

/*
 * Frees all places that are there; @held: holds their addresses from then on. -EIO with a message.
 */
int gcr_places_free(struct gcr_place *places, size_t count, bool held, struct gcr_error *error);

#endif

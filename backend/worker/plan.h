/* SPDX-License-Identifier: MIT */
/* What a session has to copy, by the digests of its memory; and whether what came back is right. */
#ifndef GCR_BACKEND_WORKER_PLAN_H
#define GCR_BACKEND_WORKER_PLAN_H

#include <stddef.h>

#include "backend/worker/copy.h"
#include "backend/worker/digest.h"
#include "backend/worker/pin.h"
#include "backend/worker/space.h"
#include "lib/digest.h"
#include "lib/error.h"

#define GCR_PLAN_CHUNKS_A_PIECE (GCR_SPACE_PIECE_BYTES / GCR_CHUNK_BYTES)

/* Chunks are numbered through the space. */
static inline uint64_t gcr_plan_chunk(uint64_t offset)
{
	return offset / GCR_CHUNK_BYTES;
}

struct gcr_plan {
	const struct gcr_space *space;
	struct gcr_copier *copier;
	struct gcr_pins *pins;		  /* NULL: no file is registered */
	const struct gcr_digest *digests; /* of all chunks that are in VRAM */
	const bool *zeros;
	/* Of what is in the files of extents that are GCR_EXTENT_KNOWN; NULL: of none. */
	const struct gcr_digest *old;
};

/*
 * OUT: have the copier copy what the files of the extents [@first, @end) do not have, and make
 * holes of pieces that are zeros. A registered file that gets a hole is forgotten by @plan->pins.
 * -ENOMEM, with words.
 */
int gcr_plan_out(const struct gcr_plan *plan, size_t first, size_t end, struct gcr_error *error);

/* IN: is everything in VRAM what @expected says? -EIO: no, with the file and the offset in words.
 */
int gcr_plan_verify(const struct gcr_plan *plan, const struct gcr_digest *expected,
		    struct gcr_error *error);

#endif

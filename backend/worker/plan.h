/* SPDX-License-Identifier: MIT */
/*
 * Decides what a session has to copy, by comparing the digests of its memory, and verifies what was
 * copied in.
 */
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

/* The number of a chunk in the space. */
static inline uint64_t gcr_plan_chunk(uint64_t offset)
{
	return offset / GCR_CHUNK_BYTES;
}

/* The facts that a plan is made from; all of them stay the caller's. */
struct gcr_plan {
	const struct gcr_space *space;
	struct gcr_copier *copier;
	struct gcr_pins *pins;		  /* NULL: no file is registered */
	const struct gcr_digest *digests; /* of all chunks that are in VRAM */
	const bool *zeros;
	/*
	 * Digests of the file contents of extents that are GCR_EXTENT_KNOWN; NULL: none is known.
	 */
	const struct gcr_digest *old;
};

/*
 * OUT: add to the copier the chunks of the extents [@first, @end) that their files do not have, and
 * pieces of zeros as holes. A registered file that gets a hole is dropped from @plan->pins.
 * -ENOMEM, with a message.
 */
int gcr_plan_out(const struct gcr_plan *plan, size_t first, size_t end, struct gcr_error *error);

/*
 * IN: compare the digests of everything in VRAM with @expected. -EIO: they differ; the message
 * names the file and the offset.
 */
int gcr_plan_verify(const struct gcr_plan *plan, const struct gcr_digest *expected,
		    struct gcr_error *error);

#endif

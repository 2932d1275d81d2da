/* SPDX-License-Identifier: MIT */
/*
 * Planning: by chunks where the file's contents are known, by whole pieces for zeros; adjacent
 * ranges with the same action are joined into one run.
 */
#include "backend/worker/plan.h"

#include <string.h>

#include "lib/extent.h"

/* Adjacent ranges with the same action. */
struct stretch {
	const struct gcr_plan *plan;
	enum gcr_copy_what what;
	uint64_t offset;
	uint64_t bytes;
};

static int flush(struct stretch *stretch, struct gcr_error *error)
{
	uint64_t bytes = stretch->bytes;

	stretch->bytes = 0;
	return gcr_copier_add(stretch->plan->copier, stretch->what, stretch->offset, bytes, error);
}

static int add(struct stretch *stretch, enum gcr_copy_what what, uint64_t offset, uint64_t bytes,
	       struct gcr_error *error)
{
	int r = 0;

	if (stretch->what != what || stretch->offset + stretch->bytes != offset) {
		r = flush(stretch, error);
		stretch->what = what;
		stretch->offset = offset;
	}
	stretch->bytes += bytes;
	return r;
}

static bool is_zeros(const bool *zeros)
{
	for (size_t i = 0; i < GCR_PLAN_CHUNKS_A_PIECE; i++)
		if (!zeros[i])
			return false;
	return true;
}

/* Are the digests equal? */
static bool are_equal(const struct gcr_digest *old, const struct gcr_digest *new, size_t count)
{
	return memcmp(old, new, count * sizeof(*old)) == 0;
}

/* Plans one piece of a file whose contents have the digests @old. */
static int add_known(struct stretch *stretch, uint64_t offset, struct gcr_error *error)
{
	const struct gcr_plan *plan = stretch->plan;
	uint64_t chunk = gcr_plan_chunk(offset);
	int r = 0;

	if (are_equal(&plan->old[chunk], &plan->digests[chunk], GCR_PLAN_CHUNKS_A_PIECE))
		return add(stretch, GCR_COPY_NOTHING, offset, GCR_SPACE_PIECE_BYTES, error);
	if (is_zeros(&plan->zeros[chunk]))
		return add(stretch, GCR_COPY_ZEROS, offset, GCR_SPACE_PIECE_BYTES, error);
	for (size_t i = 0; i < GCR_PLAN_CHUNKS_A_PIECE && r == 0; i++)
		r = add(stretch,
			are_equal(&plan->old[chunk + i], &plan->digests[chunk + i], 1)
				? GCR_COPY_NOTHING
				: GCR_COPY_BYTES,
			offset + i * GCR_CHUNK_BYTES, GCR_CHUNK_BYTES, error);
	return r;
}

int gcr_plan_out(const struct gcr_plan *plan, size_t first, size_t end, struct gcr_error *error)
{
	const struct gcr_space *space = plan->space;
	struct stretch stretch = {.plan = plan, .offset = space->starts[first]};
	int r = 0;

	for (size_t i = first; i < end; i++) {
		bool is_known = plan->old && space->extents[i].flags & GCR_EXTENT_KNOWN;
		bool has_zeros = false;

		for (uint64_t at = space->starts[i]; at < space->starts[i + 1] && r == 0;
		     at += GCR_SPACE_PIECE_BYTES) {
			if (is_known)
				r = add_known(&stretch, at, error);
			else if (is_zeros(&plan->zeros[gcr_plan_chunk(at)]))
				r = add(&stretch, GCR_COPY_ZEROS, at, GCR_SPACE_PIECE_BYTES, error);
			else
				r = add(&stretch, GCR_COPY_BYTES, at, GCR_SPACE_PIECE_BYTES, error);
			has_zeros |= stretch.what == GCR_COPY_ZEROS;
		}
		/*
		 * Holes are made in the file, so its registered pages will no longer be the file's.
		 */
		if (has_zeros && space->pinned[i])
			gcr_pins_forget(plan->pins, space->pinned[i]);
		if (r < 0)
			return r;
	}
	return flush(&stretch, error);
}

int gcr_plan_verify(const struct gcr_plan *plan, const struct gcr_digest *expected,
		    struct gcr_error *error)
{
	const struct gcr_space *space = plan->space;

	for (size_t i = 0; i < space->count; i++) {
		uint64_t first = gcr_plan_chunk(space->starts[i]);
		uint64_t end = gcr_plan_chunk(space->starts[i + 1]);
		char name[GCR_EXTENT_NAME_BYTES];

		if (are_equal(&expected[first], &plan->digests[first], end - first))
			continue;
		for (uint64_t chunk = first; chunk < end; chunk++) {
			if (are_equal(&expected[chunk], &plan->digests[chunk], 1))
				continue;
			gcr_extent_name(&space->extents[i], name);
			return gcr_digest_mismatch(name, chunk - first, error);
		}
	}
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * Placing managed memory. A chunk goes to the address that the agent sets (mmap_hook.h). If
 * everything is made again in the order in which the program made it, most often every allocation
 * gets its old address. If not, each chunk is filled from low addresses to high ones. The driver
 * takes the first gap that is large enough, in whole blocks of 2 MiB for large memory, while small
 * memory shares blocks; so gaps that must stay unused are filled first. No address is taken for
 * granted: each one is checked, and an allocation at a wrong address is kept for the time being, so
 * that the driver does not offer that address again.
 */
#include "backend/preload/managed/place.h"

#include <errno.h>
#include <stdlib.h>

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "lib/cleanup.h"

#define BLOCK_BYTES	(2ull << 20)
/* Small memory is cut in steps of a power of 2 between these. */
#define PIECE_BYTES	512
#define PIECE_MAX_BYTES (64u << 10)
#define PROBES		8
/*
 * Maximum number of gaps elsewhere that one allocation may fall into, before all gaps are filled.
 */
#define TRIES		16

/* Additional allocations: fillers, and memory at wrong addresses. */
struct extras {
	CUdeviceptr *list;
	size_t count, room;
};

struct placing {
	struct gcr_place *places;
	const struct gcr_chunk *range; /* the chunk that is being filled */
	struct extras fillers;	       /* in that chunk */
	struct extras plugs;	       /* elsewhere */
	CUcontext context;	       /* of these two */
	size_t piece_bytes;	       /* the driver's step for small memory */
	struct gcr_error *error;
};

static size_t round_up(size_t value, size_t to)
{
	return (value + to - 1) / to * to;
}

static bool is_small(size_t bytes)
{
	return bytes < BLOCK_BYTES;
}

/* ---- the driver's calls ---- */

static int make(CUcontext context, size_t bytes, unsigned flags, CUdeviceptr *ret_start,
		unsigned *ret_chunks, struct gcr_error *error)
{
	CUresult result = GCR_REAL(cuCtxSetCurrent)(context);

	if (result)
		return gcr_driver_failed(error, "cuCtxSetCurrent", result);
	gcr_mmap_hook_watch();
	result = GCR_REAL(cuMemAllocManaged)(ret_start, bytes, flags);
	*ret_chunks = gcr_mmap_hook_unwatch();
	if (!result)
		return 0;
	gcr_driver_failed(error, "cuMemAllocManaged", result);
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return -EIO;
	if (error)
		error->number = ENOMEM;
	return -ENOMEM;
}

static int unmake(CUcontext context, CUdeviceptr start, struct gcr_error *error)
{
	CUresult result = GCR_REAL(cuCtxSetCurrent)(context);

	if (result)
		return gcr_driver_failed(error, "cuCtxSetCurrent", result);
	gcr_mmap_hook_watch();
	result = GCR_REAL(cuMemFree_v2)(start);
	gcr_mmap_hook_unwatch();
	return result ? gcr_driver_failed(error, "cuMemFree", result) : 0;
}

/* Frees memory at places where failure has no alternative: tries twice. */
static int unmake_surely(CUcontext context, CUdeviceptr start, struct gcr_error *error)
{
	int r = unmake(context, start, error);

	return r < 0 ? unmake(context, start, error) : 0;
}

/* ---- extras ---- */

static int keep(struct extras *extras, CUdeviceptr start, struct gcr_error *error)
{
	if (extras->count == extras->room) {
		size_t room = extras->room ? 2 * extras->room : 64;
		CUdeviceptr *longer = realloc(extras->list, room * sizeof(*longer));

		if (!longer)
			return gcr_error_set(error, ENOMEM, "out of memory");
		extras->list = longer;
		extras->room = room;
	}
	extras->list[extras->count++] = start;
	return 0;
}

static int free_extras(struct extras *extras, CUcontext context, struct gcr_error *error)
{
	int result = 0;

	while (extras->count) {
		int r = unmake_surely(context, extras->list[--extras->count],
				      result ? NULL : error);

		if (!result)
			result = r;
	}
	return result;
}

/*
 * Fills every gap, in any chunk, that could take @bytes: with smaller and smaller pieces, each size
 * until the driver makes a new chunk for it.
 */
static int plug(struct placing *placing, size_t bytes)
{
	for (size_t size = GCR_CHUNK_BYTES / 2; size >= PIECE_BYTES; size /= 2) {
		CUdeviceptr start;
		unsigned chunks = 0;
		int r = 0;

		while (r == 0 && !chunks) {
			r = make(placing->context, size, CU_MEM_ATTACH_GLOBAL, &start, &chunks,
				 placing->error);
			if (r == 0 && !chunks)
				r = keep(&placing->plugs, start, placing->error);
		}
		if (r == 0)
			r = unmake(placing->context, start, placing->error);
		if (r < 0)
			return r;
		if (size <= bytes)
			break;
	}
	return 0;
}

/*
 * Measures the step in which the driver cuts small memory: the smallest distance of successive
 * minimal allocations. Those that fell into gaps are ignored.
 */
static int measure_pieces(struct placing *placing)
{
	CUdeviceptr before = 0, got;
	unsigned chunks;

	placing->piece_bytes = PIECE_MAX_BYTES;
	for (int i = 0; i < PROBES; i++) {
		int r = make(placing->context, 1, CU_MEM_ATTACH_GLOBAL, &got, &chunks,
			     placing->error);

		if (r == 0)
			r = keep(&placing->plugs, got, placing->error);
		if (r < 0)
			return r;
		if (got > before && got - before < placing->piece_bytes)
			placing->piece_bytes = got - before;
		before = got;
	}
	if (placing->piece_bytes < PIECE_BYTES || placing->piece_bytes & (placing->piece_bytes - 1))
		placing->piece_bytes = PIECE_BYTES;
	return 0;
}

/* ---- one chunk ---- */

static bool is_in(const struct gcr_chunk *range, CUdeviceptr address)
{
	return address >= range->start && address - range->start < range->bytes;
}

/*
 * Allocates memory at @start. An allocation that falls into a gap of another chunk is left there,
 * and another one is made. -EADDRNOTAVAIL, -ENOMEM, -EIO.
 */
static int make_at(struct placing *placing, CUdeviceptr start, size_t bytes, unsigned flags,
		   CUcontext context)
{
	CUdeviceptr got = 0;

	for (int i = 0; i < TRIES; i++) {
		unsigned chunks;
		int r = make(context, bytes, flags, &got, &chunks, placing->error);

		if (r < 0 || got == start)
			return r;
		r = keep(&placing->plugs, got, placing->error);
		if (r < 0)
			return r;
		if (chunks || is_in(placing->range, got))
			break;
	}
	return gcr_error_set(placing->error, EADDRNOTAVAIL,
			     "managed memory at 0x%llx would not come back there, but at 0x%llx",
			     start, got);
}

/* Allocates a filler in [@start, @end), so that no other memory gets there. */
static int fill(struct placing *placing, CUdeviceptr start, CUdeviceptr end)
{
	int r;

	if (start >= end)
		return 0;
	r = make_at(placing, start, end - start, CU_MEM_ATTACH_GLOBAL, placing->context);
	return r < 0 ? r : keep(&placing->fillers, start, placing->error);
}

static int put(struct placing *placing, struct gcr_place *place)
{
	int r = make_at(placing, place->start, place->bytes, place->flags, place->context);

	place->is_there = r == 0;
	return r;
}

/*
 * Makes the driver create the chunk at its old size, before any memory is in it: the driver makes
 * the chunk for a filler that leaves the last block free. A second filler takes the last block and
 * keeps the chunk when the first one is freed.
 */
static int make_chunk(struct placing *placing)
{
	CUdeviceptr start = placing->range->start;
	CUdeviceptr end = start + placing->range->bytes;
	int r;

	gcr_mmap_hook_place_next(start);
	r = fill(placing, start, end - BLOCK_BYTES);
	gcr_mmap_hook_place_next(0);
	if (r == 0)
		r = fill(placing, end - BLOCK_BYTES, end);
	if (r == 0)
		r = unmake(placing->context, start, placing->error);
	if (r < 0)
		return r;
	placing->fillers.list[0] = placing->fillers.list[1];
	placing->fillers.count = 1;
	return 0;
}

/* Frees the filler of the last block, which is needed now. */
static int free_last_block(struct placing *placing)
{
	struct extras *fillers = &placing->fillers;
	int r = unmake(placing->context, fillers->list[0], placing->error);

	if (r == 0)
		fillers->list[0] = fillers->list[--fillers->count];
	return r;
}

static int put_chunk(struct placing *placing, const struct gcr_place_chunk *chunk)
{
	struct gcr_place *places = placing->places + chunk->first;
	CUdeviceptr end = chunk->range.start + chunk->range.bytes;
	/*
	 * Addresses below `done` are finished, and in the block with small memory those below
	 * `block_done`.
	 */
	CUdeviceptr done = chunk->range.start, block = 0, block_done = 0;
	bool is_there = chunk->stays, has_last_block = false, makes_chunk;
	int r = 0;

	placing->range = &chunk->range;
	for (size_t i = 0; i < chunk->count; i++)
		is_there = is_there || places[i].is_there;
	makes_chunk = places[0].start == chunk->range.start && !is_small(places[0].bytes) &&
		      round_up(places[0].bytes, GCR_CHUNK_BYTES) == chunk->range.bytes;
	if (!is_there && makes_chunk) {
		gcr_mmap_hook_place_next(chunk->range.start);
	} else if (!is_there) {
		r = make_chunk(placing);
		has_last_block = r == 0;
	}
	for (size_t i = 0; i < chunk->count && r == 0; i++) {
		struct gcr_place *place = &places[i];
		bool small = is_small(place->bytes);
		CUdeviceptr at = small ? place->start / BLOCK_BYTES * BLOCK_BYTES : place->start;

		if (!small || at != block) {
			if (block)
				r = fill(placing, block_done, block + BLOCK_BYTES);
			if (r == 0)
				r = fill(placing, done, at);
			done = at + round_up(small ? BLOCK_BYTES : place->bytes, BLOCK_BYTES);
			block = small ? at : 0;
			block_done = block;
			if (r == 0 && has_last_block && done == end) {
				r = free_last_block(placing);
				has_last_block = false;
			}
		}
		if (r == 0 && small)
			r = fill(placing, block_done, place->start);
		if (r == 0 && !place->is_there)
			r = put(placing, place);
		gcr_mmap_hook_place_next(0);
		block_done = place->start + round_up(place->bytes, placing->piece_bytes);
	}
	gcr_mmap_hook_place_next(0);
	return r;
}

/* ---- roll back ---- */

/*
 * Frees everything made in the chunk since @was_there; if nothing is left, all of the chunk is held
 * again. -ENOTRECOVERABLE, with a message.
 */
static int undo_chunk(struct placing *placing, const struct gcr_place_chunk *chunk,
		      const bool *was_there)
{
	struct extras *plugs = &placing->plugs;
	struct gcr_error second = {0};
	int r;

	gcr_mmap_hook_hold(true);
	r = free_extras(&placing->fillers, placing->context, &second);
	for (size_t i = 0; i < plugs->count && r == 0;) {
		if (!is_in(&chunk->range, plugs->list[i])) {
			i++;
			continue;
		}
		r = unmake_surely(placing->context, plugs->list[i], &second);
		plugs->list[i] = plugs->list[--plugs->count];
	}
	for (size_t i = chunk->first; i < chunk->first + chunk->count && r == 0; i++) {
		struct gcr_place *place = &placing->places[i];

		if (place->is_there && !was_there[i]) {
			r = unmake_surely(place->context, place->start, &second);
			place->is_there = false;
		}
	}
	gcr_mmap_hook_hold(false);
	if (r == 0)
		return 0;
	gcr_error_set(placing->error, ENOTRECOVERABLE, "going back after a failure: %s",
		      second.words);
	return -ENOTRECOVERABLE;
}

static int undo_all(struct placing *placing, const struct gcr_place_chunk *chunks, size_t count,
		    const bool *was_there)
{
	for (size_t i = 0; i < count; i++)
		if (undo_chunk(placing, &chunks[i], was_there) < 0)
			return -ENOTRECOVERABLE;
	return 0;
}

/* ---- all chunks ---- */

static int compare_ages(const void *left, const void *right)
{
	const struct gcr_place *a = *(struct gcr_place *const *)left;
	const struct gcr_place *b = *(struct gcr_place *const *)right;

	return (a->id > b->id) - (a->id < b->id);
}

/* Makes the places in the order in which the program made them. */
static int place_by_age(struct placing *placing, size_t count, struct gcr_place_chunk *chunks)
{
	_cleanup_free_ struct gcr_place **sorted = calloc(count, sizeof(*sorted));
	int r = 0;

	if (!sorted)
		return gcr_error_set(placing->error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++)
		sorted[i] = &placing->places[i];
	qsort(sorted, count, sizeof(*sorted), compare_ages);
	for (size_t i = 0; i < count && r == 0; i++) {
		const struct gcr_place_chunk *chunk = &chunks[sorted[i]->chunk];
		bool is_there = chunk->stays;

		if (sorted[i]->is_there)
			continue;
		for (size_t j = chunk->first; j < chunk->first + chunk->count; j++)
			is_there = is_there || placing->places[j].is_there;
		placing->range = &chunk->range;
		gcr_mmap_hook_place_next(is_there ? 0 : chunk->range.start);
		r = put(placing, sorted[i]);
		gcr_mmap_hook_place_next(0);
	}
	return r;
}

static size_t smallest(const struct placing *placing, const struct gcr_place_chunk *chunk)
{
	size_t bytes = GCR_CHUNK_BYTES;

	for (size_t i = chunk->first; i < chunk->first + chunk->count; i++)
		if (placing->places[i].bytes < bytes)
			bytes = placing->places[i].bytes;
	return bytes;
}

/*
 * Fills one chunk, in two attempts: gaps that took memory in the first are filled for the second.
 * -EADDRNOTAVAIL, -ENOMEM, ...: nothing is left in the chunk; -ENOTRECOVERABLE: see undo_chunk().
 */
static int place_chunk(struct placing *placing, const struct gcr_place_chunk *chunk,
		       const bool *was_there)
{
	struct extras *fillers = &placing->fillers;
	int r;

	placing->context = placing->places[chunk->first].context;
	r = put_chunk(placing, chunk);
	if (r < 0 && undo_chunk(placing, chunk, was_there) < 0)
		return -ENOTRECOVERABLE;
	if (r == -EADDRNOTAVAIL) {
		r = plug(placing, smallest(placing, chunk));
		if (r == 0)
			r = put_chunk(placing, chunk);
		if (r < 0 && undo_chunk(placing, chunk, was_there) < 0)
			return -ENOTRECOVERABLE;
	}
	/* Keep the fillers for now, so that memory of the next chunk does not get here. */
	while (r == 0 && fillers->count) {
		r = keep(&placing->plugs, fillers->list[fillers->count - 1], placing->error);
		if (r == 0)
			fillers->count--;
	}
	return r;
}

static int place_all(struct placing *placing, size_t count, struct gcr_place_chunk *chunks,
		     size_t chunk_count, const bool *was_there)
{
	int r = place_by_age(placing, count, chunks);

	if (r < 0 && undo_all(placing, chunks, chunk_count, was_there) < 0)
		return -ENOTRECOVERABLE;
	if (r != -EADDRNOTAVAIL)
		return r;
	r = measure_pieces(placing);
	for (size_t i = 0; i < chunk_count && r == 0; i++)
		r = place_chunk(placing, &chunks[i], was_there);
	if (r < 0 && r != -ENOTRECOVERABLE && undo_all(placing, chunks, chunk_count, was_there) < 0)
		return -ENOTRECOVERABLE;
	return r;
}

int gcr_places_make(struct gcr_place *places, size_t count, struct gcr_place_chunk *chunks,
		    size_t chunk_count, struct gcr_error *error)
{
	struct placing placing = {.places = places, .error = error};
	_cleanup_free_ bool *was_there = calloc(count + 1, sizeof(*was_there));
	int r;

	if (!was_there)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (!count)
		return 0;
	for (size_t i = 0; i < count; i++)
		was_there[i] = places[i].is_there;
	placing.context = places[0].context;
	r = place_all(&placing, count, chunks, chunk_count, was_there);
	/* A plug that cannot be freed does no harm. */
	free_extras(&placing.plugs, placing.context, NULL);
	free(placing.fillers.list);
	free(placing.plugs.list);
	return r;
}

int gcr_places_free(struct gcr_place *places, size_t count, bool held, struct gcr_error *error)
{
	int r = 0;

	gcr_mmap_hook_hold(held);
	for (size_t i = 0; i < count && r == 0; i++) {
		if (!places[i].is_there)
			continue;
		r = unmake(places[i].context, places[i].start, error);
		if (r == 0)
			places[i].is_there = false;
	}
	gcr_mmap_hook_hold(false);
	return r;
}

/* SPDX-License-Identifier: MIT */
/*
 * In a trial memory has the same layout as in the program, chunk by chunk; only the addresses of
 * the chunks differ.
 */
#include "backend/preload/managed/managed_trial.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/preload/managed/hold.h"
#include "backend/preload/managed/managed_hold.h"
#include "backend/preload/managed/mmap_hook.h"
#include "backend/preload/managed/touch.h"
#include "lib/cleanup.h"

/* Memory like the program's, at other addresses. */
struct trial {
	struct gcr_place *places;
	size_t count;
	struct gcr_place_chunk *chunks;
	size_t chunk_count;
};

/* Holds address space for a chunk. */
static int hold_somewhere(size_t bytes, uintptr_t *ret_start, struct gcr_error *error)
{
	void *memory = mmap(NULL, bytes + GCR_CHUNK_BYTES, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t start, aligned;
	int r;

	if (memory == MAP_FAILED)
		return gcr_error_set(error, errno, "no address space for a trial: %s",
				     strerror(errno));
	start = (uintptr_t)memory;
	aligned = (start + GCR_CHUNK_BYTES - 1) / GCR_CHUNK_BYTES * GCR_CHUNK_BYTES;
	if (aligned > start)
		munmap(memory, aligned - start);
	if (start + GCR_CHUNK_BYTES > aligned)
		munmap((void *)(aligned + bytes), start + GCR_CHUNK_BYTES - aligned);
	r = gcr_hold(aligned, bytes);
	if (r < 0) {
		munmap((void *)aligned, bytes);
		return gcr_error_set(error, -r, "addresses cannot be held: %s", strerror(-r));
	}
	*ret_start = aligned;
	return 0;
}

static int hold_places(const struct trial *trial, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_saved_range *ranges = calloc(trial->count, sizeof(*ranges));
	size_t count;
	int r = 0;

	if (!ranges)
		return gcr_error_set(error, ENOMEM, "out of memory");
	count = gcr_saved_ranges(trial->places, trial->count, ranges);
	for (size_t i = 0; i < count && r == 0; i++)
		r = gcr_hold(ranges[i].start, ranges[i].bytes);
	return r < 0 ? gcr_error_set(error, -r, "addresses cannot be held: %s", strerror(-r)) : 0;
}

bool gcr_managed_is_given_back(const struct gcr_place_chunk *chunk)
{
	struct gcr_chunk unused;

	return !gcr_mmap_hook_chunk(chunk->range.start, &unused) &&
	       gcr_hold_covers(chunk->range.start, chunk->range.bytes);
}

/*
 * Does the kernel report the pages that the CPU has mapped? Checked with a page that has just been
 * written to.
 */
static bool tells_touch(const struct gcr_place *place)
{
	*(volatile char *)place->start = 1;
	return gcr_touch_is_mapped((uintptr_t)place->start, 1);
}

static int make(const struct trial *trial, struct gcr_error *error)
{
	return gcr_places_make(trial->places, trial->count, trial->chunks, trial->chunk_count,
			       error);
}

/* The steps of the trial: makes memory, holds its addresses, frees it, and makes it again. */
static int carry_out(const struct trial *trial, bool *ret_tells_touch, struct gcr_error *error)
{
	int r = make(trial, error);

	*ret_tells_touch = r == 0 && tells_touch(&trial->places[0]);
	if (r == 0)
		r = hold_places(trial, error);
	if (r == 0)
		r = gcr_places_free(trial->places, trial->count, true, error);
	for (size_t i = 0; i < trial->chunk_count && r == 0; i++)
		if (!gcr_managed_is_given_back(&trial->chunks[i]))
			r = gcr_error_set(error, EADDRNOTAVAIL,
					  "addresses that this driver gave back are not held");
	if (r == 0)
		r = make(trial, error);
	if (r == 0)
		return gcr_places_free(trial->places, trial->count, false, error);
	gcr_places_free(trial->places, trial->count, false, NULL);
	return r;
}

int gcr_managed_try(const struct gcr_place *originals, size_t count,
		    const struct gcr_place_chunk *original_chunks, size_t chunk_count,
		    bool *ret_tells_touch, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_place *places = calloc(count, sizeof(*places));
	_cleanup_free_ struct gcr_place_chunk *chunks = calloc(chunk_count, sizeof(*chunks));
	struct trial trial = {
		.places = places, .count = count, .chunks = chunks, .chunk_count = chunk_count};
	int r = 0;

	if (!places || !chunks)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < chunk_count && r == 0; i++) {
		const struct gcr_place_chunk *chunk = &original_chunks[i];
		uintptr_t start = 0;

		r = hold_somewhere(chunk->range.bytes, &start, error);
		chunks[i] = *chunk;
		chunks[i].range.start = start;
		for (size_t j = chunk->first; j < chunk->first + chunk->count && r == 0; j++) {
			places[j] = originals[j];
			places[j].start = originals[j].start - chunk->range.start + start;
			places[j].is_there = false;
			places[j].is_loaded = false;
		}
	}
	if (r == 0)
		r = carry_out(&trial, ret_tells_touch, error);
	gcr_mmap_hook_release();
	if (r == 0)
		return 0;
	gcr_error_prefix(error, "managed memory, in a trial");
	/* Whatever the error was, nothing of the program's has been touched. */
	return r == -ENOMEM ? r : -EOPNOTSUPP;
}

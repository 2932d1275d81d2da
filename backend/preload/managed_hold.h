/* SPDX-License-Identifier: MIT */
/*
 * The moment in which managed memory is taken from a program whose threads use it: what they have
 * written since it was saved follows into the files, and its addresses are held. The threads are
 * stopped for that (by the daemon), anywhere: in malloc(3), in the driver, in the dynamic linker.
 * So gcr_saved_hold() calls none of these, allocates nothing and takes no lock. It reads the
 * memory, writes to files and moves mappings; all that it needs is made before.
 */
#ifndef GCR_PRELOAD_MANAGED_HOLD_H
#define GCR_PRELOAD_MANAGED_HOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/preload/descriptor.h"
#include "backend/preload/place.h"
#include "backend/preload/watch.h"
#include "lib/error.h"

/*
 * Memory of both sides moves in blocks: what a GPU touches comes to it with others of the same
 * block (its driver fetches ahead), never with those of another.
 */
#define GCR_BLOCK_BYTES (2ull << 20)

/* The block that @address is in. */
static inline uintptr_t gcr_block_of(CUdeviceptr address)
{
	return (uintptr_t)(address / GCR_BLOCK_BYTES * GCR_BLOCK_BYTES);
}

/* Where the last block ends that @place has a part of. */
static inline uintptr_t gcr_blocks_end(const struct gcr_place *place)
{
	return gcr_block_of(place->start + place->bytes + GCR_BLOCK_BYTES - 1);
}

/* Memory in one block, and where it is in a file. */
struct gcr_saved {
	uintptr_t start;
	size_t bytes;
	const struct gcr_descriptor *file;
	off_t offset;
	size_t place; /* of which allocation */
	/*
	 * Nobody but a GPU had its block while it was copied, and no GPU has touched it since. So
	 * only pages that the CPU has mapped now can be others than those in the file.
	 */
	bool is_certain;
};

/* Addresses to be held, whole blocks. */
struct gcr_saved_range {
	uintptr_t start;
	size_t bytes;
	void *memory; /* gcr_hold_make()'s, NULL: the range is held */
};

struct gcr_saved_all {
	struct gcr_saved *parts; /* by address */
	size_t part_count;
	struct gcr_saved_range *ranges;
	size_t range_count;
	char *memory; /* to compare with */
	struct gcr_watch watch;
};

/*
 * The addresses of @places, in whole blocks: nobody else has any in these. @ret_ranges: room for as
 * many as there are places. Returns how many there are.
 */
size_t gcr_saved_ranges(const struct gcr_place *places, size_t count,
			struct gcr_saved_range *ret_ranges);

/* What gcr_saved_hold() needs for @parts and the addresses of @ranges, which are not made yet. */
int gcr_saved_prepare(struct gcr_saved_all *saved, struct gcr_error *error);

/* Give all that back; the lists too. */
void gcr_saved_finish(struct gcr_saved_all *saved);

/*
 * Compare, write, hold, with all threads but our own and the driver's stopped. -EIO, -ENOSPC and so
 * on: nothing is held, unless *@ret_held says so. -ENOTRECOVERABLE: they were let go before it was
 * done, so that what they wrote last may be lost. Words are in @error.
 */
int gcr_saved_hold(struct gcr_saved_all *saved, bool *ret_held, struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The critical section in which managed memory is taken from a program whose threads use it: bytes
 * that the threads have written since the memory was saved are written into the files, and the
 * addresses are held. For this the daemon stops the threads, at arbitrary places: in malloc(3), in
 * the driver, in the dynamic linker. So gcr_saved_hold() calls none of these, allocates nothing and
 * takes no lock. gcr_saved_hold() only reads the memory, writes to files and moves mappings;
 * everything it needs is made before.
 */
#ifndef GCR_PRELOAD_MANAGED_HOLD_H
#define GCR_PRELOAD_MANAGED_HOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/preload/base/descriptor.h"
#include "backend/preload/managed/place.h"
#include "backend/preload/managed/watch.h"
#include "lib/error.h"

/*
 * Memory moves between CPU and GPU in blocks: a page that a GPU touches is moved together with
 * other pages of the same block (the GPU's driver prefetches), never with pages of another block.
 */
#define GCR_BLOCK_BYTES (2ull << 20)

/* The block that contains @address. */
static inline uintptr_t gcr_block_of(CUdeviceptr address)
{
	return (uintptr_t)(address / GCR_BLOCK_BYTES * GCR_BLOCK_BYTES);
}

/* The end of the last block that contains a part of @place. */
static inline uintptr_t gcr_blocks_end(const struct gcr_place *place)
{
	return gcr_block_of(place->start + place->bytes + GCR_BLOCK_BYTES - 1);
}

/* Memory within one block, and its position in a file. */
struct gcr_saved {
	uintptr_t start;
	size_t bytes;
	const struct gcr_descriptor *file;
	off_t offset;
	size_t place; /* index of its allocation */
	/*
	 * Only a GPU had the block while it was copied, and no GPU has touched it since. So only
	 * pages that the CPU has mapped now can differ from those in the file.
	 */
	bool is_certain;
};

/* Addresses to be held, whole blocks. */
struct gcr_saved_range {
	uintptr_t start;
	size_t bytes;
	void *memory; /* from gcr_hold_make(); NULL: the range is held */
};

struct gcr_saved_all {
	struct gcr_saved *parts; /* by address */
	size_t part_count;
	struct gcr_saved_range *ranges;
	size_t range_count;
	char *memory; /* buffer for the comparison */
	struct gcr_watch watch;
};

/*
 * Compute the address ranges of @places in whole blocks; no other memory lies in these blocks.
 * @ret_ranges has room for @count ranges. Returns the number of ranges.
 */
size_t gcr_saved_ranges(const struct gcr_place *places, size_t count,
			struct gcr_saved_range *ret_ranges);

/*
 * Prepares everything that gcr_saved_hold() needs for @parts and @ranges; also makes the ranges'
 * `memory`, which must not be set yet. Errors, with a message: -ENOMEM, ...; gcr_saved_finish()
 * frees the parts that a failed call has made.
 */
int gcr_saved_prepare(struct gcr_saved_all *saved, struct gcr_error *error);

/* Frees everything that gcr_saved_prepare() has made, and the lists. */
void gcr_saved_finish(struct gcr_saved_all *saved);

/*
 * Compare, write and hold, with all threads stopped except the library's own and the driver's.
 * -EIO, -ENOSPC and so on, with a message: nothing is held unless *@ret_held is set.
 * -ENOTRECOVERABLE: the threads were released too early, so their last writes may be lost.
 */
int gcr_saved_hold(struct gcr_saved_all *saved, bool *ret_held, struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The store and -o spill: chooses the segments of a snapshot that are moved to the disk. A segment
 * is moved as a whole, with the other chunks of its user that are in it. The functions here hold no
 * lock while they use the disk.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/pack/packs.h"
#include "fs/pack/spill.h"
#include "fs/store/subtree.h"
#include "lib/pack_file.h"

int gcr_store_start_spill(struct gcr_store *store, const struct gcr_options *options,
			  struct gcr_error *error)
{
	const struct gcr_spill_options spill = {
		.path = options->spill,
		.limit_bytes = options->spill_bytes ? options->spill_bytes : UINT64_MAX,
		.limit_percent = options->spill_percent,
	};

	return gcr_spill_open(store->fd, &spill, &store->spill, error);
}

void gcr_store_stop_spill(struct gcr_store *store)
{
	gcr_spill_close(TAKE_PTR(store->spill));
}

bool gcr_store_can_spill(const struct gcr_store *store)
{
	return gcr_spill_is_on(store->spill);
}

/* ---- choosing segments ---- */

/* A segment, and the packed bytes of the snapshot in it. */
struct part {
	uint32_t segment;
	uint64_t bytes;
};

struct parts {
	struct part *parts; /* sorted by segment */
	size_t count;
	size_t last; /* the last one used: consecutive chunks are mostly in the same segment */
	bool no_memory;
};

/* The index of the segment's part, or the index at which to insert the part. */
static size_t find_part(const struct parts *parts, uint32_t segment)
{
	size_t first = 0;
	size_t end = parts->count;

	if (parts->last < parts->count && parts->parts[parts->last].segment == segment)
		return parts->last;
	while (first < end) {
		size_t middle = first + (end - first) / 2;

		if (parts->parts[middle].segment < segment)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

static int insert_part(struct parts *parts, size_t at, uint32_t segment)
{
	struct part *grown = reallocarray(parts->parts, parts->count + 1, sizeof(struct part));

	if (!grown)
		return -ENOMEM;
	parts->parts = grown;
	memmove(&grown[at + 1], &grown[at], (parts->count - at) * sizeof(struct part));
	grown[at] = (struct part){.segment = segment};
	parts->count++;
	return 0;
}

static void add_piece(const struct gcr_pack_entry *entries, void *data)
{
	struct parts *parts = data;

	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++) {
		const struct gcr_pack_entry *entry = &entries[i];
		size_t at;

		if (entry->kind != GCR_PACK_STORED)
			continue;
		at = find_part(parts, entry->segment);
		if ((at == parts->count || parts->parts[at].segment != entry->segment) &&
		    insert_part(parts, at, entry->segment) < 0) {
			parts->no_memory = true;
			return;
		}
		parts->parts[at].bytes += gcr_pack_entry_packed_bytes(entry);
		parts->last = at;
	}
}

/* The largest part first: fewer bytes of other snapshots are moved with it. */
static int compare_parts(const void *left, const void *right)
{
	const struct part *a = left;
	const struct part *b = right;

	return a->bytes > b->bytes ? -1 : a->bytes < b->bytes;
}

int gcr_snapshot_spill(struct gcr_snapshot *snapshot, uint64_t wanted_bytes,
		       uint64_t *ret_freed_bytes, struct gcr_error *error)
{
	struct gcr_packs *packs = gcr_subtree_packs(snapshot->subtree);
	_cleanup_free_ struct part *free_parts = NULL;
	struct gcr_error spill_error = {0};
	struct gcr_error refusal = {0};
	struct parts parts = {0};
	uint64_t freed_bytes = 0;
	int result;

	*ret_freed_bytes = 0;
	if (!gcr_store_can_spill(snapshot->store))
		return gcr_error_set(error, EOPNOTSUPP,
				     "there is no directory for it (see spill in gpucrfs(8))");
	if (!packs)
		return 0;
	result = gcr_subtree_each_packed(snapshot->subtree, add_piece, &parts);
	free_parts = parts.parts;
	if (result < 0 || parts.no_memory)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (parts.count)
		qsort(parts.parts, parts.count, sizeof(struct part), compare_parts);
	for (size_t i = 0; i < parts.count && freed_bytes < wanted_bytes; i++) {
		uint64_t bytes = 0;

		result = gcr_packs_spill(packs, parts.parts[i].segment, &bytes, &spill_error);
		/* There may be room for a smaller segment. */
		if (result < 0 && result != -EDQUOT && result != -ENOSPC)
			break;
		if (result < 0 && (!refusal.number || refusal.number == EDQUOT))
			refusal = spill_error;
		result = 0;
		freed_bytes += bytes;
	}
	*ret_freed_bytes = freed_bytes;
	if (result < 0) {
		*error = spill_error;
		return result;
	}
	if (freed_bytes || !refusal.number)
		return 0;
	*error = refusal;
	return -refusal.number;
}

/* ---- spilled bytes of a snapshot ---- */

struct spilled {
	uint32_t *segments; /* sorted */
	size_t count;
	uint64_t bytes;
};

static int compare_numbers(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left;
	uint32_t b = *(const uint32_t *)right;

	return a < b ? -1 : a > b;
}

static void count_piece(const struct gcr_pack_entry *entries, void *data)
{
	struct spilled *spilled = data;

	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++)
		if (entries[i].kind == GCR_PACK_STORED &&
		    !(entries[i].flags & GCR_PACK_FLAG_SHARED) &&
		    bsearch(&entries[i].segment, spilled->segments, spilled->count,
			    sizeof(*spilled->segments), compare_numbers))
			spilled->bytes += gcr_pack_entry_packed_bytes(&entries[i]);
}

int gcr_snapshot_spilled_bytes(struct gcr_snapshot *snapshot, uint64_t *ret_bytes)
{
	struct gcr_packs *packs = gcr_subtree_packs(snapshot->subtree);
	_cleanup_free_ uint32_t *segments = NULL;
	struct spilled spilled = {0};
	int result = 0;

	if (packs)
		result = gcr_packs_spilled(packs, &segments, &spilled.count);
	spilled.segments = segments;
	if (!result && spilled.count)
		result = gcr_subtree_each_packed(snapshot->subtree, count_piece, &spilled);
	if (result < 0)
		return result;
	*ret_bytes = spilled.bytes;
	return 0;
}

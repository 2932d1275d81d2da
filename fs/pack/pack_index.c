/* SPDX-License-Identifier: MIT */
/*
 * The index of chunks: an array, and buckets that are lists within it, linked by index, so that a
 * chunk takes no more than 44 bytes. Shareable chunks are in the bucket of their digest, the others
 * in that of their place: many of the latter may be equal, and no search uses their digest. The
 * lock of the packs guards the index.
 */
#include "fs/pack/packs_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "lib/clock.h"

#define NONE	       UINT32_MAX
#define CAPACITY_FIRST 1024

void gcr_pack_index_init(struct gcr_pack_index *index)
{
	*index = (struct gcr_pack_index){.free_chunk = NONE};
	/* Users who choose the bytes of chunks must not know which chunks share a bucket. */
	if (getrandom(&index->seed, sizeof(index->seed), 0) != sizeof(index->seed))
		index->seed = (uint64_t)gcr_clock_usec() ^ (uintptr_t)index;
}

void gcr_pack_index_finish(struct gcr_pack_index *index)
{
	free(index->chunks);
	free(index->buckets);
	*index = (struct gcr_pack_index){.free_chunk = NONE};
}

static bool is_alone(const struct gcr_pack_entry *entry)
{
	return entry->flags & GCR_PACK_FLAG_ALONE;
}

static uint32_t *bucket_of_digest(const struct gcr_pack_index *index,
				  const struct gcr_digest *digest)
{
	uint64_t hash = gcr_digest_hash(digest->bytes, sizeof(digest->bytes), index->seed);

	return &index->buckets[hash & (index->buckets_count - 1)];
}

static uint32_t *bucket_of(const struct gcr_pack_index *index, const struct gcr_pack_entry *entry)
{
	const uint32_t place[] = {entry->segment, entry->offset};

	if (!is_alone(entry))
		return bucket_of_digest(index, &entry->digest);
	return &index->buckets[gcr_digest_hash(place, sizeof(place), index->seed) &
			       (index->buckets_count - 1)];
}

static bool may_share(const struct gcr_pack_entry *entry, const struct gcr_digest *digest)
{
	return !is_alone(entry) && gcr_digest_equal(&entry->digest, digest);
}

struct gcr_pack_chunk *gcr_pack_index_find(struct gcr_pack_index *index,
					   const struct gcr_digest *digest,
					   const struct gcr_pack_chunk *previous)
{
	uint32_t number;

	if (!index->count)
		return NULL;
	number = previous ? previous->next : *bucket_of_digest(index, digest);
	while (number != NONE && !may_share(&index->chunks[number].entry, digest))
		number = index->chunks[number].next;
	return number == NONE ? NULL : &index->chunks[number];
}

static bool is_place(const struct gcr_pack_entry *left, const struct gcr_pack_entry *right)
{
	return left->segment == right->segment && left->offset == right->offset &&
	       is_alone(left) == is_alone(right) && gcr_digest_equal(&left->digest, &right->digest);
}

struct gcr_pack_chunk *gcr_pack_index_find_entry(struct gcr_pack_index *index,
						 const struct gcr_pack_entry *entry)
{
	uint32_t number;

	if (!index->count)
		return NULL;
	number = *bucket_of(index, entry);
	while (number != NONE && !is_place(&index->chunks[number].entry, entry))
		number = index->chunks[number].next;
	return number == NONE ? NULL : &index->chunks[number];
}

static void link_chunk(struct gcr_pack_index *index, uint32_t number)
{
	struct gcr_pack_chunk *chunk = &index->chunks[number];
	uint32_t *bucket = bucket_of(index, &chunk->entry);

	chunk->next = *bucket;
	*bucket = number;
}

int gcr_pack_index_reserve(struct gcr_pack_index *index)
{
	size_t capacity = index->capacity ? index->capacity * 2 : CAPACITY_FIRST;
	_cleanup_free_ uint32_t *buckets = NULL;
	struct gcr_pack_chunk *chunks;

	if (index->free_chunk != NONE || index->used < index->capacity)
		return 0;
	if (capacity >= NONE)
		return -ENOMEM;
	buckets = malloc(capacity * sizeof(*buckets));
	if (!buckets)
		return -ENOMEM;
	chunks = reallocarray(index->chunks, capacity, sizeof(*chunks));
	if (!chunks)
		return -ENOMEM;
	memset(buckets, 0xff, capacity * sizeof(*buckets));
	free(index->buckets);
	index->buckets = TAKE_PTR(buckets);
	index->buckets_count = capacity;
	index->chunks = chunks;
	index->capacity = capacity;
	/* The free list is empty: all used elements are chunks. */
	for (uint32_t i = 0; i < index->used; i++)
		link_chunk(index, i);
	return 0;
}

void gcr_pack_index_insert(struct gcr_pack_index *index, const struct gcr_pack_entry *entry)
{
	uint32_t number = index->free_chunk;

	if (number == NONE)
		number = (uint32_t)index->used++;
	else
		index->free_chunk = index->chunks[number].next;
	index->chunks[number] = (struct gcr_pack_chunk){.entry = *entry, .references = 1};
	link_chunk(index, number);
	index->count++;
}

void gcr_pack_index_remove(struct gcr_pack_index *index, struct gcr_pack_chunk *chunk)
{
	uint32_t number = (uint32_t)(chunk - index->chunks);
	uint32_t *link = bucket_of(index, &chunk->entry);

	while (*link != number)
		link = &index->chunks[*link].next;
	*link = chunk->next;
	chunk->next = index->free_chunk;
	index->free_chunk = number;
	index->count--;
}

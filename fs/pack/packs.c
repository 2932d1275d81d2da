/* SPDX-License-Identifier: MIT */
/*
 * The packed chunks of one user: references, placement and removal. packs->lock guards the index,
 * the segments and the sums; the lock is not held while a chunk is unpacked: a reference keeps the
 * chunk in place. In the lock order only the account's lock comes after it.
 */
#include "fs/pack/packs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/pack/packs_private.h"
#include "fs/pack/spill.h"
#include "lib/beneath.h"
#include "lib/full_io.h"

/*
 * Maximum of shareable chunks with one digest: equal digests are easily forged, and each chunk of a
 * digest is unpacked for comparison. Further ones are stored alone.
 */
#define EQUAL_DIGESTS 4

/* Chunks dropped per critical section; other threads have a turn in between. */
#define DROPPED_CHUNKS 512

/* A segment with more pages than this (half of them) is not filled again. */
#define FILLED_AGAIN_PAGES (GCR_PACK_PAGE_COUNT / 2)

/*
 * Limit of a user's segments: SPARSE_SEGMENTS, and one more per SPARSE_SEGMENT_BYTES of packed
 * chunks. A segment that is not filled again has at least one used page in GCR_PACK_RUN_PAGES, 4
 * MiB in all; a segment on a disk is never filled again.
 */
#define SPARSE_SEGMENTS	     256u
#define SPARSE_SEGMENT_BYTES (4u << 20)

static int take(const struct gcr_packs *packs, uint64_t bytes, bool is_there)
{
	if (!bytes || !packs->account.take)
		return 0;
	return packs->account.take(packs->account.data, packs->uid, bytes, is_there);
}

void gcr_packs_give(const struct gcr_packs *packs, uint64_t bytes)
{
	if (bytes && packs->account.give)
		packs->account.give(packs->account.data, packs->uid, bytes);
}

/* ---- segments ---- */

static int compare_segments(const void *left, const void *right)
{
	const struct gcr_pack_segment *a = *(struct gcr_pack_segment *const *)left;
	const struct gcr_pack_segment *b = *(struct gcr_pack_segment *const *)right;

	return a->number < b->number ? -1 : a->number > b->number;
}

struct gcr_pack_segment *gcr_packs_find_segment(const struct gcr_packs *packs, uint32_t number)
{
	const struct gcr_pack_segment key = {.number = number};
	const struct gcr_pack_segment *pointer = &key;
	struct gcr_pack_segment **found = NULL;

	if (packs->segments_count)
		found = bsearch(&pointer, packs->segments, packs->segments_count,
				sizeof(struct gcr_pack_segment *), compare_segments);
	return found ? *found : NULL;
}

static int append_segment(struct gcr_packs *packs, uint32_t number, bool create)
{
	_cleanup_(gcr_pack_segment_close_cleanup) struct gcr_pack_segment *segment = NULL;
	struct gcr_pack_segment **segments = reallocarray(
		packs->segments, packs->segments_count + 1, sizeof(struct gcr_pack_segment *));
	int result;

	if (!segments)
		return -ENOMEM;
	packs->segments = segments;
	result = gcr_pack_segment_open(packs, number, create, &segment);
	if (result < 0)
		return result;
	if (number > packs->last_number)
		packs->last_number = number;
	segments[packs->segments_count++] = TAKE_PTR(segment);
	return 0;
}

static void remove_segment(struct gcr_packs *packs, size_t at)
{
	struct gcr_pack_segment *segment = packs->segments[at];
	char name[16];

	snprintf(name, sizeof(name), "%" PRIu32, segment->number);
	unlinkat(packs->fd, name, 0);
	if (packs->filled == segment)
		packs->filled = NULL;
	packs->segments_count--;
	memmove(&packs->segments[at], &packs->segments[at + 1],
		(packs->segments_count - at) * sizeof(struct gcr_pack_segment *));
	if (segment->path) {
		/* No link names the file any more: a later daemon removes it if we do not. */
		segment->next_gone = packs->gone;
		packs->gone = segment;
		return;
	}
	gcr_packs_give(packs, segment->pages_there * GCR_PACK_PAGE_BYTES);
	gcr_pack_segment_close(segment);
}

void gcr_packs_trim(struct gcr_packs *packs)
{
	if (!packs->is_known)
		return;
	for (size_t i = packs->segments_count; i-- > 0;) {
		struct gcr_pack_segment *segment = packs->segments[i];

		if (segment->is_busy)
			continue;
		if (!segment->live_bytes)
			remove_segment(packs, i);
		else if (!segment->path)
			gcr_packs_give(packs, gcr_pack_segment_trim(segment));
	}
	gcr_packs_trim_disk_locked(packs);
}

/* The emptiest segment in memory that may be filled again, or NULL. */
static struct gcr_pack_segment *find_emptiest(const struct gcr_packs *packs)
{
	struct gcr_pack_segment *emptiest = NULL;

	for (size_t i = 0; i < packs->segments_count; i++) {
		struct gcr_pack_segment *segment = packs->segments[i];

		if (!segment->map || segment->is_busy || segment->is_sealed ||
		    segment->pages_there > FILLED_AGAIN_PAGES)
			continue;
		if (!emptiest || segment->pages_there < emptiest->pages_there)
			emptiest = segment;
	}
	return emptiest;
}

/* Has the user more segments than the chunks need, however they are distributed? */
static bool has_too_many_segments(const struct gcr_packs *packs)
{
	return packs->segments_count >=
	       SPARSE_SEGMENTS + packs->packed_bytes / SPARSE_SEGMENT_BYTES;
}

/*
 * Chooses the segment for the next chunk. Mostly empty segments are filled again before a new one
 * is created: each takes a mapping, a descriptor and a table of its pages, which no user limit
 * covers.
 */
static int segment_with_room(struct gcr_packs *packs, size_t bytes,
			     struct gcr_pack_segment **ret_segment)
{
	struct gcr_pack_segment *segment = packs->filled;
	int result;

	if (!segment && packs->segments_count)
		segment = packs->segments[packs->segments_count - 1];
	if (!segment || !gcr_pack_segment_has_room(segment, bytes)) {
		segment = packs->is_known ? find_emptiest(packs) : NULL;
		if (segment && !gcr_pack_segment_fill_run(segment))
			segment = NULL;
	}
	if (!segment) {
		if (packs->last_number == UINT32_MAX || has_too_many_segments(packs))
			return -ENOSPC;
		result = append_segment(packs, packs->last_number + 1, true);
		if (result < 0)
			return result;
		segment = packs->segments[packs->segments_count - 1];
	}
	packs->filled = segment;
	*ret_segment = segment;
	return 0;
}

/* ---- life ---- */

/* The number of a segment, from the name of its file; -1: not such a name. */
static int64_t parse_number(const char *name)
{
	unsigned long long number;
	char *end;

	if (*name < '0' || *name > '9')
		return -1;
	number = strtoull(name, &end, 10);
	return *end || number > UINT32_MAX ? -1 : (int64_t)number;
}

/* Loads the segments that an earlier daemon has left. */
static int load(struct gcr_packs *packs)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	uint64_t spilled_bytes = 0;
	uint64_t bytes = 0;
	int result = gcr_beneath_list(packs->fd, ".", &dir);

	if (result < 0)
		return result;
	while ((entry = readdir(dir))) {
		int64_t number = parse_number(entry->d_name);

		gcr_packs_remove_unfinished(packs->fd, entry->d_name);
		result = number < 0 ? 0 : append_segment(packs, (uint32_t)number, false);
		if (result < 0 && result != -ENOENT)
			return result;
	}
	if (packs->segments_count)
		qsort(packs->segments, packs->segments_count, sizeof(struct gcr_pack_segment *),
		      compare_segments);
	for (size_t i = 0; i < packs->segments_count; i++) {
		const struct gcr_pack_segment *segment = packs->segments[i];

		*(segment->path ? &spilled_bytes : &bytes) +=
			segment->pages_there * GCR_PACK_PAGE_BYTES;
		/* Changes the directory: only after it has been read. */
		if (segment->has_moved)
			gcr_pack_segment_move_link(packs, segment);
	}
	packs->is_known = !packs->segments_count;
	result = take(packs, bytes, true);
	if (!result)
		gcr_packs_take_disk_there(packs, spilled_bytes);
	return result;
}

static int open_directory(int parent_fd, const char *name)
{
	int fd;

	if (mkdirat(parent_fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int open_users_directory(int store_fd, uid_t uid)
{
	_cleanup_close_ int packs_fd = open_directory(store_fd, GCR_PACKS_NAME);
	char name[16];

	if (packs_fd < 0)
		return packs_fd;
	snprintf(name, sizeof(name), "%u", uid);
	return open_directory(packs_fd, name);
}

void gcr_packs_free(struct gcr_packs *packs)
{
	gcr_packs_finish_disk(packs);
	for (size_t i = 0; i < packs->segments_count; i++) {
		struct gcr_pack_segment *segment = packs->segments[i];
		uint64_t bytes = segment->pages_there * GCR_PACK_PAGE_BYTES;

		if (segment->path)
			gcr_packs_give_disk(packs, bytes);
		else
			gcr_packs_give(packs, bytes);
		gcr_pack_segment_close(segment);
	}
	free(packs->segments);
	gcr_pack_index_finish(&packs->index);
	pthread_cond_destroy(&packs->changed);
	pthread_mutex_destroy(&packs->lock);
	pthread_mutex_destroy(&packs->turn);
	if (packs->fd >= 0)
		close(packs->fd);
	free(packs);
}

int gcr_packs_open(int store_fd, uid_t uid, const struct gcr_packs_account *account,
		   struct gcr_packs **ret_packs, struct gcr_error *error)
{
	struct gcr_packs *packs = calloc(1, sizeof(*packs));
	int result;

	if (!packs)
		return gcr_error_set(error, ENOMEM, "out of memory");
	packs->uid = uid;
	atomic_init(&packs->references, 1);
	pthread_mutex_init(&packs->turn, NULL);
	pthread_mutex_init(&packs->lock, NULL);
	pthread_cond_init(&packs->changed, NULL);
	gcr_pack_index_init(&packs->index);
	packs->fd = open_users_directory(store_fd, uid);
	result = packs->fd < 0 ? packs->fd : 0;
	if (!result && account)
		packs->account = *account;
	if (!result)
		result = load(packs);
	if (result < 0) {
		/* No bytes were charged. */
		packs->account = (struct gcr_packs_account){0};
		gcr_packs_free(packs);
		return gcr_error_set(error, -result, "the packed chunks of user %u: %s", uid,
				     strerror(-result));
	}
	*ret_packs = packs;
	return 0;
}

struct gcr_packs *gcr_packs_ref(struct gcr_packs *packs)
{
	atomic_fetch_add_explicit(&packs->references, 1, memory_order_relaxed);
	return packs;
}

bool gcr_packs_are_empty(struct gcr_packs *packs)
{
	GCR_PACKS_LOCK_SCOPE(packs);
	return packs->is_known && !packs->segments_count && !packs->gone && !packs->is_trimming;
}

uid_t gcr_packs_uid(const struct gcr_packs *packs)
{
	return packs->uid;
}

int gcr_packs_directory(const struct gcr_packs *packs)
{
	return packs->fd;
}

/* ---- chunks ---- */

static void refer(struct gcr_packs *packs, struct gcr_pack_chunk *chunk)
{
	uint32_t bytes = gcr_pack_entry_bytes(&chunk->entry);

	chunk->references++;
	packs->unpacked_bytes += bytes;
	packs->shared_bytes += bytes;
}

static void insert(struct gcr_packs *packs, const struct gcr_pack_entry *entry)
{
	gcr_pack_index_insert(&packs->index, entry);
	packs->packed_bytes += gcr_pack_entry_packed_bytes(entry);
	packs->unpacked_bytes += gcr_pack_entry_bytes(entry);
}

/* Drops a reference. The caller frees the memory after all chunks have been dropped. */
static void unrefer(struct gcr_packs *packs, const struct gcr_pack_entry *entry)
{
	struct gcr_pack_chunk *chunk = gcr_pack_index_find_entry(&packs->index, entry);
	uint32_t packed_bytes = gcr_pack_entry_packed_bytes(entry);
	uint32_t bytes = gcr_pack_entry_bytes(entry);

	if (!chunk)
		return;
	packs->unpacked_bytes -= bytes;
	if (--chunk->references) {
		packs->shared_bytes -= bytes;
		return;
	}
	gcr_pack_index_remove(&packs->index, chunk);
	packs->packed_bytes -= packed_bytes;
	gcr_pack_segment_release(gcr_packs_find_segment(packs, entry->segment), entry->offset,
				 packed_bytes);
}

/*
 * Takes a reference to the @nth chunk with this digest, whose bytes are still to be compared, and
 * returns 1; 0: the size of the chunk differs; -ENOENT: there are no more.
 */
static int find_candidate(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
			  size_t nth, struct gcr_pack_entry *ret_entry)
{
	struct gcr_pack_chunk *chunk = NULL;

	GCR_PACKS_LOCK_SCOPE(packs);
	do
		chunk = gcr_pack_index_find(&packs->index, digest, chunk);
	while (chunk && nth--);
	if (!chunk)
		return -ENOENT;
	if (gcr_pack_entry_bytes(&chunk->entry) != size)
		return 0;
	refer(packs, chunk);
	*ret_entry = chunk->entry;
	return 1;
}

int gcr_packs_share(struct gcr_packs *packs, struct gcr_packer *packer,
		    const struct gcr_digest *digest, const void *bytes, size_t size,
		    struct gcr_pack_entry *ret_entry)
{
	_cleanup_free_ void *unpacked = NULL;
	struct gcr_pack_entry entry;

	for (size_t nth = 0; nth < EQUAL_DIGESTS; nth++) {
		int result = find_candidate(packs, digest, size, nth, &entry);

		if (result < 0)
			break;
		if (!result)
			continue;
		if (!unpacked)
			unpacked = malloc(size);
		if (unpacked && !gcr_packs_read(packs, packer, &entry, unpacked, size) &&
		    !memcmp(unpacked, bytes, size)) {
			entry.flags = GCR_PACK_FLAG_SHARED;
			*ret_entry = entry;
			return 0;
		}
		gcr_packs_drop(packs, &entry, 1);
		if (!unpacked)
			return -ENOMEM;
	}
	return -ENOENT;
}

/*
 * Is the stored chunk @left equal to the new chunk @right? Compares packed bytes. Segments on the
 * disk are not read with the lock held: callers try gcr_packs_share() before, which finds the
 * chunks there.
 */
static bool is_same(const struct gcr_packs *packs, const struct gcr_pack_entry *left,
		    const struct gcr_pack_entry *right, const void *packed)
{
	const struct gcr_pack_segment *segment = gcr_packs_find_segment(packs, left->segment);

	return segment->map && left->form == right->form &&
	       left->bytes_less_1 == right->bytes_less_1 &&
	       left->packed_bytes_less_1 == right->packed_bytes_less_1 &&
	       !memcmp(segment->map + left->offset, packed, gcr_pack_entry_packed_bytes(right));
}

/*
 * The stored chunk that is equal to @entry. NULL: there is none; GCR_PACK_FLAG_ALONE of @entry is
 * then set if later chunks must not be compared with that entry.
 */
static struct gcr_pack_chunk *find_same(struct gcr_packs *packs, struct gcr_pack_entry *entry,
					const void *packed)
{
	struct gcr_pack_chunk *chunk = NULL;
	size_t count = 0;

	if (entry->flags & GCR_PACK_FLAG_ALONE)
		return NULL;
	while ((chunk = gcr_pack_index_find(&packs->index, &entry->digest, chunk))) {
		if (is_same(packs, &chunk->entry, entry, packed))
			return chunk;
		if (++count < EQUAL_DIGESTS)
			continue;
		entry->flags |= GCR_PACK_FLAG_ALONE;
		return NULL;
	}
	return NULL;
}

/* Reserves room for a chunk, stores its bytes, and sets its place in @entry. */
static int store(struct gcr_packs *packs, struct gcr_pack_entry *entry, const void *packed)
{
	uint32_t packed_bytes = gcr_pack_entry_packed_bytes(entry);
	struct gcr_pack_segment *segment = NULL;
	uint64_t cost;
	int result;

	result = gcr_pack_index_reserve(&packs->index);
	if (!result)
		result = segment_with_room(packs, packed_bytes, &segment);
	if (result < 0)
		return result;
	cost = gcr_pack_segment_cost(segment, packed_bytes);
	result = take(packs, cost, false);
	if (result < 0)
		return result;
	result = gcr_pack_segment_append(segment, packed, packed_bytes, &entry->offset);
	if (result < 0) {
		gcr_packs_give(packs, cost);
		return result;
	}
	entry->segment = segment->number;
	return 0;
}

static int add(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
	       enum gcr_pack_form form, const void *packed, size_t packed_size, uint8_t flags,
	       struct gcr_pack_entry *ret_entry)
{
	struct gcr_pack_chunk *chunk;
	struct gcr_pack_entry entry = {
		.digest = *digest,
		.packed_bytes_less_1 = (uint16_t)(packed_size - 1),
		.bytes_less_1 = (uint16_t)(size - 1),
		.kind = GCR_PACK_STORED,
		.form = (uint8_t)form,
		.flags = flags,
	};
	int result;

	GCR_PACKS_LOCK_SCOPE(packs);
	chunk = find_same(packs, &entry, packed);
	if (chunk) {
		refer(packs, chunk);
		*ret_entry = chunk->entry;
		ret_entry->flags = GCR_PACK_FLAG_SHARED;
		return 0;
	}
	result = store(packs, &entry, packed);
	if (result < 0) {
		gcr_packs_trim(packs); /* removes a segment that was created for it */
		return result;
	}
	insert(packs, &entry);
	*ret_entry = entry;
	return 0;
}

int gcr_packs_add(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
		  enum gcr_pack_form form, const void *packed, size_t packed_size,
		  struct gcr_pack_entry *ret_entry)
{
	return add(packs, digest, size, form, packed, packed_size, 0, ret_entry);
}

int gcr_packs_add_alone(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
			enum gcr_pack_form form, const void *packed, size_t packed_size,
			struct gcr_pack_entry *ret_entry)
{
	return add(packs, digest, size, form, packed, packed_size, GCR_PACK_FLAG_ALONE, ret_entry);
}

void gcr_packs_zeros(size_t size, struct gcr_pack_entry *ret_entry)
{
	*ret_entry = (struct gcr_pack_entry){
		.kind = GCR_PACK_ZEROS,
		.bytes_less_1 = (uint16_t)(size - 1),
	};
	gcr_digest_of_zeros(size, &ret_entry->digest);
}

static void drop_some(struct gcr_packs *packs, const struct gcr_pack_entry *entries, size_t count)
{
	GCR_PACKS_LOCK_SCOPE(packs);
	for (size_t i = 0; i < count; i++)
		if (entries[i].kind == GCR_PACK_STORED)
			unrefer(packs, &entries[i]);
	gcr_packs_trim(packs);
}

void gcr_packs_drop(struct gcr_packs *packs, const struct gcr_pack_entry *entries, size_t count)
{
	for (size_t i = 0; i < count; i += DROPPED_CHUNKS)
		drop_some(packs, entries + i,
			  count - i < DROPPED_CHUNKS ? count - i : DROPPED_CHUNKS);
}

/*
 * The chunk's segment; NULL: there is none. *ret_packed: the packed bytes in the segment's mapping,
 * which stays valid until stop_reading(); NULL: the segment is on a disk.
 */
static struct gcr_pack_segment *start_reading(struct gcr_packs *packs,
					      const struct gcr_pack_entry *entry,
					      const uint8_t **ret_packed)
{
	struct gcr_pack_segment *segment = NULL;

	GCR_PACKS_LOCK_SCOPE(packs);
	if (gcr_pack_index_find_entry(&packs->index, entry))
		segment = gcr_packs_find_segment(packs, entry->segment);
	*ret_packed = NULL;
	if (segment && segment->map) {
		*ret_packed = segment->map + entry->offset;
		segment->readers++;
	}
	return segment;
}

static void stop_reading(struct gcr_packs *packs, struct gcr_pack_segment *segment)
{
	GCR_PACKS_LOCK_SCOPE(packs);
	if (!--segment->readers && segment->is_busy)
		pthread_cond_broadcast(&packs->changed);
}

/*
 * Reads a chunk from the disk; a segment with chunks keeps its file. The digest is compared, since
 * the disk may return wrong bytes, and those of an uncompressed chunk would be accepted.
 */
static int read_spilled(const struct gcr_pack_segment *segment, struct gcr_packer *packer,
			const struct gcr_pack_entry *entry, void *ret_bytes, size_t size)
{
	uint32_t packed_bytes = gcr_pack_entry_packed_bytes(entry);
	_cleanup_free_ char *packed = malloc(packed_bytes);
	int result;

	if (segment->fd < 0)
		return -EIO;
	if (!packed)
		return -ENOMEM;
	if (gcr_pread_all(segment->fd, packed, packed_bytes, entry->offset) !=
	    (ssize_t)packed_bytes)
		return -EIO;
	result = gcr_unpack(packer, (enum gcr_pack_form)entry->form, packed, packed_bytes,
			    ret_bytes, size);
	if (result < 0)
		return result;
	return gcr_digest_is_of(&entry->digest, ret_bytes, size) ? 0 : -EBADMSG;
}

int gcr_packs_read(struct gcr_packs *packs, struct gcr_packer *packer,
		   const struct gcr_pack_entry *entry, void *ret_bytes, size_t size)
{
	struct gcr_pack_segment *segment;
	const uint8_t *packed;
	int result;

	if (gcr_pack_entry_bytes(entry) != size)
		return -EBADMSG;
	if (entry->kind == GCR_PACK_ZEROS) {
		memset(ret_bytes, 0, size);
		return 0;
	}
	if (entry->kind != GCR_PACK_STORED)
		return -EBADMSG;
	segment = start_reading(packs, entry, &packed);
	if (!segment)
		return -EIO;
	if (!packed)
		return read_spilled(segment, packer, entry, ret_bytes, size);
	result = gcr_unpack(packer, (enum gcr_pack_form)entry->form, packed,
			    gcr_pack_entry_packed_bytes(entry), ret_bytes, size);
	stop_reading(packs, segment);
	return result;
}

/* ---- after a restart ---- */

/* Does the entry match the chunk that was claimed at this place before? */
static bool is_same_chunk(const struct gcr_pack_entry *left, const struct gcr_pack_entry *right)
{
	return left->packed_bytes_less_1 == right->packed_bytes_less_1 &&
	       left->bytes_less_1 == right->bytes_less_1 && left->form == right->form;
}

int gcr_packs_claim(struct gcr_packs *packs, const struct gcr_pack_entry *entry)
{
	struct gcr_pack_segment *segment;
	struct gcr_pack_chunk *chunk;
	int result;

	if (entry->kind != GCR_PACK_STORED)
		return 0;
	GCR_PACKS_LOCK_SCOPE(packs);
	chunk = gcr_pack_index_find_entry(&packs->index, entry);
	if (chunk) {
		if (!is_same_chunk(&chunk->entry, entry))
			return -EBADMSG;
		refer(packs, chunk);
		return 0;
	}
	segment = gcr_packs_find_segment(packs, entry->segment);
	result = segment ? gcr_pack_index_reserve(&packs->index) : -EBADMSG;
	if (!result)
		result = gcr_pack_segment_claim(segment, entry->offset,
						gcr_pack_entry_packed_bytes(entry));
	if (!result)
		insert(packs, entry);
	return result;
}

void gcr_packs_sweep(struct gcr_packs *packs)
{
	GCR_PACKS_LOCK_SCOPE(packs);
	packs->is_known = true;
	for (size_t i = 0; i < packs->segments_count; i++)
		gcr_pack_segment_loosen(packs->segments[i]);
	gcr_packs_trim(packs);
}

void gcr_packs_figures(struct gcr_packs *packs, struct gcr_packs_figures *ret_figures)
{
	uint64_t spilled_pages = 0;
	uint64_t spilled = 0;
	uint64_t pages = 0;

	GCR_PACKS_LOCK_SCOPE(packs);
	for (size_t i = 0; i < packs->segments_count; i++) {
		const struct gcr_pack_segment *segment = packs->segments[i];

		spilled += segment->path != NULL;
		*(segment->path ? &spilled_pages : &pages) += segment->pages_there;
	}
	*ret_figures = (struct gcr_packs_figures){
		.chunks = packs->index.count,
		.packed_bytes = packs->packed_bytes,
		.unpacked_bytes = packs->unpacked_bytes,
		.shared_bytes = packs->shared_bytes,
		.memory_bytes = pages * GCR_PACK_PAGE_BYTES,
		.spilled_bytes = spilled_pages * GCR_PACK_PAGE_BYTES,
		.segments = packs->segments_count,
		.spilled_segments = spilled,
	};
}

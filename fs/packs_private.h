/* SPDX-License-Identifier: MIT */
/*
 * What the files of the packs share: the index of chunks by digest (pack_index.c) and the segments
 * (pack_segment.c). Neither has a lock of its own: that of the packs guards them.
 */
#ifndef GCR_FS_PACKS_PRIVATE_H
#define GCR_FS_PACKS_PRIVATE_H

#include "fs/packs.h"

/* ---- the index ---- */

struct gcr_pack_chunk {
	struct gcr_pack_entry entry; /* its flags are of no meaning */
	uint32_t references;
	uint32_t next; /* in its bucket, or among those that are free */
};

struct gcr_pack_index {
	struct gcr_pack_chunk *chunks;
	uint32_t *buckets; /* a power of two of them */
	size_t buckets_count;
	size_t capacity; /* of chunks */
	size_t used;	 /* of these, with those that are free again */
	size_t count;
	uint32_t free_chunk; /* the first */
};

void gcr_pack_index_init(struct gcr_pack_index *index);
void gcr_pack_index_finish(struct gcr_pack_index *index);
/* Those with this digest, one after the other: begin with NULL, until it is NULL. */
struct gcr_pack_chunk *gcr_pack_index_find(struct gcr_pack_index *index,
					   const struct gcr_digest *digest,
					   const struct gcr_pack_chunk *previous);
/* Have room for one more: chunks that were found are elsewhere then. -ENOMEM. */
int gcr_pack_index_reserve(struct gcr_pack_index *index);
/* With one reference. There has to be room. */
void gcr_pack_index_insert(struct gcr_pack_index *index, const struct gcr_pack_entry *entry);
void gcr_pack_index_remove(struct gcr_pack_index *index, struct gcr_pack_chunk *chunk);

/* ---- a segment ---- */

#define GCR_PACK_PAGE_BYTES 4096u /* what goes back to the store at least */

struct gcr_pack_segment {
	uint32_t number; /* its name */
	int fd;
	uint8_t *map;
	uint32_t end; /* the next chunk comes here */
	uint64_t live_bytes;
	uint64_t pages_there; /* that have memory */
	uint16_t *pages;      /* of each: bytes that are used, and whether it has memory */
	/* Where pages may have become empty, from first to before end. */
	uint32_t loose_first;
	uint32_t loose_end;
};

/*
 * The file @number in the directory, or a new one. -ENOENT: what is there was never finished, and
 * is removed; -ENOSPC, -ENOMEM, ...
 */
int gcr_pack_segment_open(int directory_fd, uint32_t number, bool create,
			  struct gcr_pack_segment **ret_segment);
/* The file stays. */
void gcr_pack_segment_close(struct gcr_pack_segment *segment); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_segment *, gcr_pack_segment_close);

/* Is there room for so much behind what is there? */
bool gcr_pack_segment_has_room(const struct gcr_pack_segment *segment, size_t bytes);
/* Memory that it would take for so much more. */
uint64_t gcr_pack_segment_cost(const struct gcr_pack_segment *segment, size_t bytes);
/* Put them there: -ENOSPC, -ENOMEM, -EOPNOTSUPP, and nothing has changed. */
int gcr_pack_segment_append(struct gcr_pack_segment *segment, const void *bytes, size_t size,
			    uint32_t *ret_offset);
/* What an earlier daemon has put there is in use. -EBADMSG: it has no memory, or others use it. */
int gcr_pack_segment_claim(struct gcr_pack_segment *segment, uint32_t offset, size_t size);
/* No longer in use; the memory goes with gcr_pack_segment_trim(). */
void gcr_pack_segment_release(struct gcr_pack_segment *segment, uint32_t offset, size_t size);
/* Pages of which nothing is used go back: how many bytes. */
uint64_t gcr_pack_segment_trim(struct gcr_pack_segment *segment);
/* Look at all pages the next time. */
void gcr_pack_segment_loosen(struct gcr_pack_segment *segment);

#endif

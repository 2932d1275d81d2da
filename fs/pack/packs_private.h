/* SPDX-License-Identifier: MIT */
/*
 * What the files of the packs share: the index of chunks (pack_index.c), the segments
 * (pack_segment.c), and the packs themselves with the segments on a disk (pack_spill.c). Index and
 * segments have no locks of their own: that of the packs guards them.
 */
#ifndef GCR_FS_PACK_PACKS_PRIVATE_H
#define GCR_FS_PACK_PACKS_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "fs/pack/packs.h"
#include "lib/lock.h"

/* ---- the index ---- */

struct gcr_pack_chunk {
	struct gcr_pack_entry entry; /* of its flags only GCR_PACK_FLAG_ALONE has a meaning */
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
	uint64_t seed;	     /* of the hashes that choose buckets; random */
};

void gcr_pack_index_init(struct gcr_pack_index *index);
void gcr_pack_index_finish(struct gcr_pack_index *index);
/*
 * Chunks with this digest that may be shared, one after the other: begin with NULL, until the
 * result is NULL.
 */
struct gcr_pack_chunk *gcr_pack_index_find(struct gcr_pack_index *index,
					   const struct gcr_digest *digest,
					   const struct gcr_pack_chunk *previous);
/*
 * The chunk of @entry: with its digest, at its place. NULL: there is none. Of @entry's flags
 * GCR_PACK_FLAG_ALONE has to be the chunk's.
 */
struct gcr_pack_chunk *gcr_pack_index_find_entry(struct gcr_pack_index *index,
						 const struct gcr_pack_entry *entry);
/* Have room for one more: chunks that were found are elsewhere then. -ENOMEM. */
int gcr_pack_index_reserve(struct gcr_pack_index *index);
/* With one reference. There has to be room. */
void gcr_pack_index_insert(struct gcr_pack_index *index, const struct gcr_pack_entry *entry);
void gcr_pack_index_remove(struct gcr_pack_index *index, struct gcr_pack_chunk *chunk);

/* ---- a segment ---- */

#define GCR_PACK_PAGE_BYTES 4096u /* what goes back to the store at least */
#define GCR_PACK_PAGE_COUNT (GCR_PACK_SEGMENT_BYTES / GCR_PACK_PAGE_BYTES)
#define GCR_PACK_PAGE_THERE 0x8000u /* of a page: it has memory */
#define GCR_PACK_PAGE_USED  0x7fffu /* so many bytes of it are used */

struct gcr_pack_segment {
	uint32_t number;  /* its name */
	int fd;		  /* -1: the disk is not there */
	uint8_t *map;	  /* NULL: it is on a disk, where a page that cannot be read is a SIGBUS */
	char *path;	  /* on the disk; NULL: it is in the store */
	bool is_busy;	  /* somebody is at its file without the lock: nothing else changes it */
	bool is_sealed;	  /* nothing is appended */
	bool has_moved;	  /* its disk is mounted elsewhere: the link does not lead there yet */
	uint32_t readers; /* of the mapping, without the lock */
	struct gcr_pack_segment *next_gone;
	uint32_t end;	   /* the next chunk comes here */
	uint32_t room_end; /* and ends before this */
	uint64_t live_bytes;
	uint64_t pages_there; /* that have memory */
	uint16_t *pages; /* of each: bytes that are used, and whether it has memory (or disk) */
	/* Where pages may have become empty, from first to before end. */
	uint32_t loose_first;
	uint32_t loose_end;
};

/*
 * The file @number in the directory of the packs, or a new one. -ENOENT: what is there was never
 * finished, and is removed; -ENOSPC, -ENOMEM, ...
 */
int gcr_pack_segment_open(const struct gcr_packs *packs, uint32_t number, bool create,
			  struct gcr_pack_segment **ret_segment);
/* The file stays. */
void gcr_pack_segment_close(struct gcr_pack_segment *segment); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_segment *, gcr_pack_segment_close);

/* Unused pages of a segment that are worth filling: such a run of them. */
#define GCR_PACK_RUN_PAGES 64u

/*
 * The next chunks come into the longest run of unused pages. False: none is as long as
 * GCR_PACK_RUN_PAGES, and nothing has changed.
 */
bool gcr_pack_segment_fill_run(struct gcr_pack_segment *segment);
/* Is there room for so much where the next chunk comes? */
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
static inline bool gcr_pack_segment_is_loose(const struct gcr_pack_segment *segment)
{
	return segment->loose_first != segment->loose_end;
}

/* Make holes of pages from @page to before @end. -errno */
int gcr_pack_segment_punch(const struct gcr_pack_segment *segment, uint32_t page, uint32_t end);
/* The pages that have bytes, as the file system knows them. */
void gcr_pack_segment_find_pages(struct gcr_pack_segment *segment);

/* ---- the packs ---- */

struct gcr_packs {
	/* fixed for life */
	atomic_int references;
	uid_t uid;
	int fd;
	struct gcr_packs_account account;

	pthread_mutex_t turn;	/* see gcr_packs_lock() */
	pthread_mutex_t lock;	/* guards what follows */
	pthread_cond_t changed; /* a mapping has no reader any more; the trimmer has ended */
	struct gcr_pack_index index;
	struct gcr_pack_segment **segments; /* by number */
	size_t segments_count;
	struct gcr_pack_segment *filled; /* the one that chunks are added to; NULL: the last */
	struct gcr_pack_segment *gone;	 /* on the disk, to be removed */
	pthread_t trimmer;		 /* of the disk */
	bool is_trimming;		 /* it runs */
	bool has_trimmer;		 /* it has run, and is to be joined */
	uint32_t last_number;
	bool is_known; /* all that is there has been claimed: the rest may go */
	uint64_t packed_bytes;
	uint64_t unpacked_bytes;
	uint64_t shared_bytes;
};

/*
 * Lock the packs. Mutexes are not fair: a thread that locks one in a loop keeps others waiting.
 * Here the thread that waits for the lock has the turn meanwhile, so that such a loop waits behind
 * it.
 */
static inline pthread_mutex_t *gcr_packs_lock(struct gcr_packs *packs)
{
	pthread_mutex_lock(&packs->turn);
	pthread_mutex_lock(&packs->lock);
	pthread_mutex_unlock(&packs->turn);
	return &packs->lock;
}

/* Until the end of the scope. */
#define GCR_PACKS_LOCK_SCOPE(packs)                         \
	_cleanup_(gcr_lock_cleanup) __attribute__((unused)) \
	pthread_mutex_t *lock_scope_ = gcr_packs_lock(packs)

/* NULL: there is none. Lock: packs. */
struct gcr_pack_segment *gcr_packs_find_segment(const struct gcr_packs *packs, uint32_t number);
/*
 * Pages, and whole segments, of which nothing is used go back; those on the disk by a thread. Lock:
 * packs.
 */
void gcr_packs_trim(struct gcr_packs *packs);
/* What the account has of it goes back. Lock: packs. */
void gcr_packs_give(const struct gcr_packs *packs, uint64_t bytes);

/* ---- pack_spill.c ---- */

/*
 * In the directory its number is a link: open what it names, or know that it is not there now.
 * -EMFILE, -ENFILE, -ENOMEM.
 */
int gcr_pack_segment_follow(const struct gcr_packs *packs, struct gcr_pack_segment *segment);
/* One that has moved: workers find it by the link. */
void gcr_pack_segment_move_link(const struct gcr_packs *packs,
				const struct gcr_pack_segment *segment);
/* What a daemon that was killed had begun. */
void gcr_packs_remove_unfinished(int directory_fd, const char *name);
/*
 * Pages and files on the disk of which nothing is used go, by a thread: who drops chunks does not
 * wait for the disk. Lock: packs.
 */
void gcr_packs_trim_disk_locked(struct gcr_packs *packs);
/* What the accounts of the disk have. An earlier daemon has taken them; they go back. */
void gcr_packs_take_disk_there(const struct gcr_packs *packs, uint64_t bytes);
void gcr_packs_give_disk(const struct gcr_packs *packs, uint64_t bytes);
/* Nobody uses the packs any more: what the disk has stays. */
void gcr_packs_finish_disk(struct gcr_packs *packs);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Declarations shared by the files of the packs: the index of chunks (pack_index.c), the segments
 * (pack_segment.c), and the packs with their segments on a disk (pack_spill.c). Index and segments
 * have no locks of their own: the lock of the packs guards them.
 */
#ifndef GCR_FS_PACK_PACKS_PRIVATE_H
#define GCR_FS_PACK_PACKS_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "fs/pack/packs.h"
#include "lib/lock.h"

/* ---- the index ---- */

struct gcr_pack_chunk {
	struct gcr_pack_entry entry; /* of its flags only GCR_PACK_FLAG_ALONE is used */
	uint32_t references;
	uint32_t next; /* in the bucket, or in the list of free chunks */
};

struct gcr_pack_index {
	struct gcr_pack_chunk *chunks;
	uint32_t *buckets; /* array with a power of two of elements */
	size_t buckets_count;
	size_t capacity; /* of `chunks` */
	size_t used;	 /* elements ever used, including free ones */
	size_t count;
	uint32_t free_chunk; /* head of the free list */
	uint64_t seed;	     /* of the hashes that select buckets; random */
};

void gcr_pack_index_init(struct gcr_pack_index *index);
void gcr_pack_index_finish(struct gcr_pack_index *index);
/*
 * Iterates over the shareable chunks with this digest: start with NULL, stop when the result is
 * NULL.
 */
struct gcr_pack_chunk *gcr_pack_index_find(struct gcr_pack_index *index,
					   const struct gcr_digest *digest,
					   const struct gcr_pack_chunk *previous);
/* The chunk of @entry, with the same digest, place and GCR_PACK_FLAG_ALONE. NULL: there is none. */
struct gcr_pack_chunk *gcr_pack_index_find_entry(struct gcr_pack_index *index,
						 const struct gcr_pack_entry *entry);
/* Makes room for one more chunk; invalidates pointers to chunks. -ENOMEM. */
int gcr_pack_index_reserve(struct gcr_pack_index *index);
/* Adds a chunk with one reference. Room must have been reserved. */
void gcr_pack_index_insert(struct gcr_pack_index *index, const struct gcr_pack_entry *entry);
void gcr_pack_index_remove(struct gcr_pack_index *index, struct gcr_pack_chunk *chunk);

/* ---- a segment ---- */

#define GCR_PACK_PAGE_BYTES 4096u /* the smallest unit freed in the store */
#define GCR_PACK_PAGE_COUNT (GCR_PACK_SEGMENT_BYTES / GCR_PACK_PAGE_BYTES)
#define GCR_PACK_PAGE_THERE 0x8000u /* flag of a page with memory */
#define GCR_PACK_PAGE_USED  0x7fffu /* mask of a page: number of bytes in use */

struct gcr_pack_segment {
	uint32_t number;  /* its file name */
	int fd;		  /* -1: the disk is missing */
	uint8_t *map;	  /* NULL: on a disk, where an unreadable page would raise SIGBUS */
	char *path;	  /* on the disk; NULL: in the store */
	bool is_busy;	  /* a thread works on the file without the lock; others do not change it */
	bool is_sealed;	  /* no chunk may be appended */
	bool has_moved;	  /* the disk is mounted elsewhere: the link is not updated yet */
	uint32_t readers; /* threads that read the mapping without the lock */
	struct gcr_pack_segment *next_gone;
	uint32_t end;	   /* offset of the next chunk */
	uint32_t room_end; /* limit of the next chunk */
	uint64_t live_bytes;
	uint64_t pages_there; /* number of pages with memory */
	uint16_t *pages; /* of each page: bytes in use, and PAGE_THERE if it has memory (or disk) */
	/* Range of pages that may have become unused, from first to before end. */
	uint32_t loose_first;
	uint32_t loose_end;
};

/*
 * Opens the file @number in the directory of the packs, or creates it. -ENOENT: the file was never
 * finished, and has been removed; -ENOSPC, -ENOMEM, ...
 */
int gcr_pack_segment_open(const struct gcr_packs *packs, uint32_t number, bool create,
			  struct gcr_pack_segment **ret_segment);
/* Closes the segment without removing its file. */
void gcr_pack_segment_close(struct gcr_pack_segment *segment); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_segment *, gcr_pack_segment_close);

/* The shortest run of unused pages that is worth filling. */
#define GCR_PACK_RUN_PAGES 64u

/*
 * Directs the next chunks into the longest run of unused pages. False: none has GCR_PACK_RUN_PAGES,
 * and nothing has changed.
 */
bool gcr_pack_segment_fill_run(struct gcr_pack_segment *segment);
/* Does a chunk of @bytes fit at the append position? */
bool gcr_pack_segment_has_room(const struct gcr_pack_segment *segment, size_t bytes);
/* Additional memory needed to append @bytes. */
uint64_t gcr_pack_segment_cost(const struct gcr_pack_segment *segment, size_t bytes);
/* Appends a chunk. On -ENOSPC, -ENOMEM, -EOPNOTSUPP nothing has changed. */
int gcr_pack_segment_append(struct gcr_pack_segment *segment, const void *bytes, size_t size,
			    uint32_t *ret_offset);
/* Marks a chunk of an earlier daemon as in use. -EBADMSG: the range has no memory, or is in use. */
int gcr_pack_segment_claim(struct gcr_pack_segment *segment, uint32_t offset, size_t size);
/* Marks the chunk's bytes as unused; gcr_pack_segment_trim() frees the memory. */
void gcr_pack_segment_release(struct gcr_pack_segment *segment, uint32_t offset, size_t size);
/* Frees unused pages; returns the number of bytes. */
uint64_t gcr_pack_segment_trim(struct gcr_pack_segment *segment);
/* Has the next trim check all pages. */
void gcr_pack_segment_loosen(struct gcr_pack_segment *segment);
static inline bool gcr_pack_segment_is_loose(const struct gcr_pack_segment *segment)
{
	return segment->loose_first != segment->loose_end;
}

/* Punches holes for the pages from @page to before @end. -errno. */
int gcr_pack_segment_punch(const struct gcr_pack_segment *segment, uint32_t page, uint32_t end);
/* Finds the pages with data by asking the file system. */
void gcr_pack_segment_find_pages(struct gcr_pack_segment *segment);

/* ---- the packs ---- */

struct gcr_packs {
	/* Fixed for life. */
	atomic_int references;
	struct gcr_packs_users *users; /* whose list has a reference; NULL: none has */
	uid_t uid;
	int fd;
	struct gcr_packs_account account;

	pthread_mutex_t turn;	/* see gcr_packs_lock() */
	pthread_mutex_t lock;	/* guards the fields below */
	pthread_cond_t changed; /* a mapping lost its last reader, or the trimmer has ended */
	struct gcr_pack_index index;
	struct gcr_pack_segment **segments; /* sorted by number */
	size_t segments_count;
	/* The segment that chunks are added to; NULL: the last one. */
	struct gcr_pack_segment *filled;
	struct gcr_pack_segment *gone; /* on the disk, to be removed */
	pthread_t trimmer;	       /* thread that frees disk space */
	bool is_trimming;	       /* the trimmer runs */
	bool has_trimmer;	       /* the trimmer has been started, and must be joined */
	uint32_t last_number;
	bool is_known; /* all existing chunks have been claimed: the rest may be freed */
	uint64_t packed_bytes;
	uint64_t unpacked_bytes;
	uint64_t shared_bytes;
};

/*
 * Locks the packs. Mutexes are not fair: a thread that locks one in a loop starves others. Here a
 * thread that waits for `lock` holds `turn`, so that such a loop has to queue behind it.
 */
static inline pthread_mutex_t *gcr_packs_lock(struct gcr_packs *packs)
{
	pthread_mutex_lock(&packs->turn);
	pthread_mutex_lock(&packs->lock);
	pthread_mutex_unlock(&packs->turn);
	return &packs->lock;
}

/* Holds the lock until the end of the scope. */
#define GCR_PACKS_LOCK_SCOPE(packs)                         \
	_cleanup_(gcr_lock_cleanup) __attribute__((unused)) \
	pthread_mutex_t *lock_scope_ = gcr_packs_lock(packs)

/* The segment with this number; NULL: there is none. Lock: packs. */
struct gcr_pack_segment *gcr_packs_find_segment(const struct gcr_packs *packs, uint32_t number);
/* Frees unused pages and segments; those on the disk are freed by a thread. Lock: packs. */
void gcr_packs_trim(struct gcr_packs *packs);
/* Returns bytes to the account. Lock: packs. */
void gcr_packs_give(const struct gcr_packs *packs, uint64_t bytes);

/* Frees packs without references. Bytes of segments that are left are returned to the account. */
void gcr_packs_free(struct gcr_packs *packs);
/* Are there no segments, and none that is still to be removed from a disk? */
bool gcr_packs_are_empty(struct gcr_packs *packs);

/* ---- pack_spill.c ---- */

/*
 * Opens a segment whose file in the packs' directory is a symbolic link, by the link's target. A
 * target that is missing, or is no segment, is recorded and logged, and is no error. -EMFILE,
 * -ENFILE, -ENOMEM.
 */
int gcr_pack_segment_follow(const struct gcr_packs *packs, struct gcr_pack_segment *segment);
/*
 * Updates the link of a segment whose disk is mounted elsewhere: workers find the segment by the
 * link.
 */
void gcr_pack_segment_move_link(const struct gcr_packs *packs,
				const struct gcr_pack_segment *segment);
/* Removes an unfinished link of a daemon that was killed. */
void gcr_packs_remove_unfinished(int directory_fd, const char *name);
/*
 * Starts a thread that frees unused pages and files on the disk, so that callers that drop chunks
 * do not wait for the disk. Lock: packs.
 */
void gcr_packs_trim_disk_locked(struct gcr_packs *packs);
/*
 * Charge and release bytes in the accounts of the disk; the first is for bytes of an earlier
 * daemon.
 */
void gcr_packs_take_disk_there(const struct gcr_packs *packs, uint64_t bytes);
void gcr_packs_give_disk(const struct gcr_packs *packs, uint64_t bytes);
/*
 * Called when the packs are freed: waits for the thread that frees disk space, and closes the
 * segments that are still to be removed. The files on the disk stay.
 */
void gcr_packs_finish_disk(struct gcr_packs *packs);

#endif

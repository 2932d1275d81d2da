/* SPDX-License-Identifier: MIT */
/*
 * The packed chunks of one user, in segments: files of the store that chunks are appended to, and
 * whose unused pages are freed. Equal chunks are stored once among all snapshots of the user, and
 * never shared across users. The list of chunks and their reference counts exist in memory only: a
 * later daemon rebuilds them from the tables (fs/pack/pack_table.h).
 *
 * Segments use small pages, whatever the store uses: a huge page that is half used cannot be freed.
 */
#ifndef GCR_FS_PACK_PACKS_H
#define GCR_FS_PACK_PACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"
#include "lib/error.h"
#include "lib/pack.h"
#include "lib/pack_file.h"

struct gcr_packs; /* reference-counted, thread-safe */
struct gcr_spill;

/*
 * Accounts of each user's memory. Called with the lock of the packs held: the functions must not
 * block for long.
 */
struct gcr_packs_account {
	/* Reserves memory: 0, or -ENOSPC; always 0 with @is_there (bytes of an earlier daemon). */
	int (*take)(void *data, uid_t uid, uint64_t bytes, bool is_there);
	void (*give)(void *data, uid_t uid, uint64_t bytes);
	void *data;
	/* The account of the disk; outlives the packs. NULL: no segments on a disk. */
	struct gcr_spill *spill;
	/* Reserves a user's bytes on the disk: 0, or -EDQUOT with @error set; no lock is held. */
	int (*take_disk)(void *data, uid_t uid, uint64_t bytes, struct gcr_error *error);
	/* Adjusts a user's bytes on the disk; the lock may be held. Both functions may be NULL. */
	void (*count_disk)(void *data, uid_t uid, uint64_t more, uint64_t less);
};

/*
 * Opens the packs of @uid in the store, with the segments that an earlier daemon has left; their
 * bytes are charged to @account (copied; NULL: none). *ret_packs is a reference, the caller's. Sets
 * @error: -ENOMEM, -ENOSPC, ...
 */
int gcr_packs_open(int store_fd, uid_t uid, const struct gcr_packs_account *account,
		   struct gcr_packs **ret_packs, struct gcr_error *error);
struct gcr_packs *gcr_packs_ref(struct gcr_packs *packs);
/*
 * The chunks stay stored. Packs of gcr_packs_users_get() without chunks are closed, and their
 * directory is removed. Neither a lock of packs nor their account's may be held; NULL is allowed.
 */
void gcr_packs_unref(struct gcr_packs *packs);
GCR_DEFINE_CLEANUP(struct gcr_packs *, gcr_packs_unref);

uid_t gcr_packs_uid(const struct gcr_packs *packs);

/*
 * Looks for a stored chunk with the same bytes, and takes a reference to it. Candidates have the
 * same digest, and up to four of them are compared byte by byte. -ENOENT: none is equal; -ENOMEM.
 */
int gcr_packs_share(struct gcr_packs *packs, struct gcr_packer *packer,
		    const struct gcr_digest *digest, const void *bytes, size_t size,
		    struct gcr_pack_entry *ret_entry);
/*
 * Stores a chunk of @size bytes, as packed by gcr_pack(), or takes a reference to an equal one. If
 * four other chunks have the same digest, the chunk is stored as by gcr_packs_add_alone(), so that
 * no more than these are ever compared. -ENOSPC, -ENOMEM, -EIO: nothing has changed.
 */
int gcr_packs_add(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
		  enum gcr_pack_form form, const void *packed, size_t packed_size,
		  struct gcr_pack_entry *ret_entry);
/*
 * As gcr_packs_add(), but no other chunk ever shares this one: for bytes that other processes must
 * not be able to guess, and for users who must not guess the bytes of others.
 */
int gcr_packs_add_alone(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
			enum gcr_pack_form form, const void *packed, size_t packed_size,
			struct gcr_pack_entry *ret_entry);
/* The entry of a chunk of zeros, which takes no memory and no reference. */
void gcr_packs_zeros(size_t size, struct gcr_pack_entry *ret_entry);

/*
 * Drops one reference per entry; entries other than stored chunks are skipped. Memory is freed at
 * once, and faster for many entries in one call; disk space is freed later, by a thread.
 */
void gcr_packs_drop(struct gcr_packs *packs, const struct gcr_pack_entry *entries, size_t count);

/*
 * Unpacks a chunk to which the caller has a reference. -EIO: the segment does not exist, or its
 * disk is missing or fails; -EBADMSG: the bytes are not those that were packed, or @size is wrong;
 * -ENOMEM.
 */
int gcr_packs_read(struct gcr_packs *packs, struct gcr_packer *packer,
		   const struct gcr_pack_entry *entry, void *ret_bytes, size_t size);

/* ---- pack_spill.c: segments on a disk (fs/pack/spill.h) ---- */

/*
 * Moves the segment to the disk and frees its memory in the store. Chunks can be read and dropped
 * during the move. Blocks on the disk: no lock may be held. *ret_freed_bytes is 0 if the segment is
 * on the disk already, or gone, or in use by another thread. On errors nothing has changed; sets
 * @error: -ENOSPC the disk or the limit is full, -EIO, -EOPNOTSUPP there is no -o spill, ...
 */
int gcr_packs_spill(struct gcr_packs *packs, uint32_t segment, uint64_t *ret_freed_bytes,
		    struct gcr_error *error);
/* Waits until the thread that frees disk space is idle. Blocks on the disk. */
void gcr_packs_wait_disk(struct gcr_packs *packs);
/* The numbers of the segments on the disk, in order; the caller frees them. -ENOMEM. */
int gcr_packs_spilled(struct gcr_packs *packs, uint32_t **ret_numbers, size_t *ret_count);

/* ---- after a restart ---- */

/*
 * Takes a reference to a chunk that a table names; does nothing for entries other than stored
 * chunks. -EBADMSG: such a chunk cannot exist; -ENOMEM. Chunks of a segment whose disk is missing
 * are kept, and can be read when a later daemon finds the disk.
 */
int gcr_packs_claim(struct gcr_packs *packs, const struct gcr_pack_entry *entry);
/* After all tables have been read: frees everything that was not claimed. */
void gcr_packs_sweep(struct gcr_packs *packs);

struct gcr_packs_figures {
	uint64_t chunks;	 /* number of stored chunks */
	uint64_t packed_bytes;	 /* their packed size */
	uint64_t unpacked_bytes; /* size of the unpacked data, counted per reference */
	uint64_t shared_bytes;	 /* part of it, without the first reference of each chunk */
	uint64_t memory_bytes;	 /* memory of the segments in the store */
	uint64_t spilled_bytes;	 /* disk space of the segments on the disk */
	uint64_t segments;
	uint64_t spilled_segments; /* number of segments on the disk */
};
void gcr_packs_figures(struct gcr_packs *packs, struct gcr_packs_figures *ret_figures);

/* The directory of the segments, for the worker; the packs own the descriptor. */
int gcr_packs_directory(const struct gcr_packs *packs);

/* ---- packs_users.c: the packs of all users ---- */

struct gcr_packs_users; /* thread-safe */

/* @account is copied. -ENOMEM. */
int gcr_packs_users_create(int store_fd, const struct gcr_packs_account *account,
			   struct gcr_packs_users **ret_users);
/*
 * Closes the packs of all users, and removes their directories if they have no segments. Waits for
 * the disk. NULL is allowed.
 */
void gcr_packs_users_destroy(struct gcr_packs_users *users);
/*
 * The packs of @uid, opened at the first call; the caller owns the reference. Packs with chunks
 * stay open without one. Errors as of gcr_packs_open().
 */
int gcr_packs_users_get(struct gcr_packs_users *users, uid_t uid, struct gcr_packs **ret_packs,
			struct gcr_error *error);
/*
 * After a restart, when all tables have been read: gcr_packs_sweep() for all users with segments.
 */
void gcr_packs_users_sweep(struct gcr_packs_users *users);
/* The sum over all open packs. */
void gcr_packs_users_figures(struct gcr_packs_users *users, struct gcr_packs_figures *ret_figures);

#endif

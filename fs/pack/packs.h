/* SPDX-License-Identifier: MIT */
/*
 * The packed chunks of one user, in segments: files of the store that are appended to, and of which
 * whole pages go back when nobody needs them any more. Chunks that are the same are stored once,
 * among all snapshots of the user and never across users. Which are there, and how often each is
 * used, is known in memory only: the tables (fs/pack/pack_table.h) say it to a later daemon.
 *
 * Segments have small pages, whatever the store has: a huge page that is half used does not go
 * back.
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

/* Who counts the memory of each user. Called with the lock of the packs held: they may not wait for
 * long. */
struct gcr_packs_account {
	/* Promise so much: 0, or -ENOSPC. What @is_there has been taken by an earlier daemon: 0. */
	int (*take)(void *data, uid_t uid, uint64_t bytes, bool is_there);
	void (*give)(void *data, uid_t uid, uint64_t bytes);
	void *data;
	/* And the disk: outlives the packs. NULL: nothing goes there, or counts there. */
	struct gcr_spill *spill;
	/* What each user has there. Promise so much: 0, -EDQUOT, with words; no lock is held. */
	int (*take_disk)(void *data, uid_t uid, uint64_t bytes, struct gcr_error *error);
	/* What is there has grown, or become less; with the lock. Both or none may be NULL. */
	void (*count_disk)(void *data, uid_t uid, uint64_t more, uint64_t less);
};

/*
 * Those of @uid in the store, with all that an earlier daemon has left (which counts). @account may
 * be NULL. Errors, with words: -ENOMEM, -ENOSPC, ...
 */
int gcr_packs_open(int store_fd, uid_t uid, const struct gcr_packs_account *account,
		   struct gcr_packs **ret_packs, struct gcr_error *error);
struct gcr_packs *gcr_packs_ref(struct gcr_packs *packs);
/* The chunks stay where they are; NULL is allowed. */
void gcr_packs_unref(struct gcr_packs *packs);
GCR_DEFINE_CLEANUP(struct gcr_packs *, gcr_packs_unref);

uid_t gcr_packs_uid(const struct gcr_packs *packs);

/*
 * Is this chunk there already? Found by its digest, and compared byte by byte, with four chunks at
 * most: one reference more of it. -ENOENT: it is not; -ENOMEM.
 */
int gcr_packs_share(struct gcr_packs *packs, struct gcr_packer *packer,
		    const struct gcr_digest *digest, const void *bytes, size_t size,
		    struct gcr_pack_entry *ret_entry);
/*
 * A chunk of @size bytes, as gcr_pack() has packed it: one reference of it, which may be of one
 * that is the same. Where four others have the same digest it is stored as one of
 * gcr_packs_add_alone(), so that no more than these are ever compared with others. -ENOSPC,
 * -ENOMEM, -EIO: nothing has changed.
 */
int gcr_packs_add(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
		  enum gcr_pack_form form, const void *packed, size_t packed_size,
		  struct gcr_pack_entry *ret_entry);
/*
 * The same for a chunk that neither is one that is there already, nor becomes one of a later one:
 * whose bytes nobody else may guess, and who may guess nobody's.
 */
int gcr_packs_add_alone(struct gcr_packs *packs, const struct gcr_digest *digest, size_t size,
			enum gcr_pack_form form, const void *packed, size_t packed_size,
			struct gcr_pack_entry *ret_entry);
/* The entry of a chunk of zeros, which takes nothing and needs no references. */
void gcr_packs_zeros(size_t size, struct gcr_pack_entry *ret_entry);

/*
 * A reference less of each. Entries that are no stored chunks are skipped. Memory is given back at
 * once, and for many of them sooner than one by one; the disk later, by a thread.
 */
void gcr_packs_drop(struct gcr_packs *packs, const struct gcr_pack_entry *entries, size_t count);

/*
 * The bytes of a chunk, to which the caller has a reference. -EIO: there is no such segment, or
 * the disk on which it stands is not there or fails; -EBADMSG: it is not what was packed, or @size
 * is not its size; -ENOMEM.
 */
int gcr_packs_read(struct gcr_packs *packs, struct gcr_packer *packer,
		   const struct gcr_pack_entry *entry, void *ret_bytes, size_t size);

/* ---- pack_spill.c: segments on a disk (fs/pack/spill.h) ---- */

/*
 * Move the segment to the disk; what it takes of the store is given back. Chunks are read and
 * dropped meanwhile. Blocks on the disk: no lock may be held. *ret_freed_bytes 0: it is there
 * already, or gone, or somebody else is at it. Errors, with words: -ENOSPC the disk or the limit is
 * full, -EIO, -EOPNOTSUPP there is no -o spill, ...: nothing has changed.
 */
int gcr_packs_spill(struct gcr_packs *packs, uint32_t segment, uint64_t *ret_freed_bytes,
		    struct gcr_error *error);
/* Returns when that thread has nothing to do. Blocks on the disk. */
void gcr_packs_wait_disk(struct gcr_packs *packs);
/* The numbers of those that are there, in order; for the caller to free. -ENOMEM */
int gcr_packs_spilled(struct gcr_packs *packs, uint32_t **ret_numbers, size_t *ret_count);

/* ---- after a restart ---- */

/*
 * A table says that there is this chunk: a reference of it. -EBADMSG: there cannot be. Those of a
 * segment on a disk that is not there now are kept, and can be read when a later daemon finds it.
 */
int gcr_packs_claim(struct gcr_packs *packs, const struct gcr_pack_entry *entry);
/* All tables have been read: what nobody has claimed goes. */
void gcr_packs_sweep(struct gcr_packs *packs);

struct gcr_packs_figures {
	uint64_t chunks;	 /* that are stored */
	uint64_t packed_bytes;	 /* of them */
	uint64_t unpacked_bytes; /* that they stand for: of each reference */
	uint64_t shared_bytes;	 /* of these: of each reference but the first */
	uint64_t memory_bytes;	 /* that the segments take */
	uint64_t spilled_bytes;	 /* that those on the disk take there */
	uint64_t segments;
	uint64_t spilled_segments; /* of these: on the disk */
};
void gcr_packs_figures(struct gcr_packs *packs, struct gcr_packs_figures *ret_figures);

/* The directory of the segments, for the worker; stays theirs. */
int gcr_packs_directory(const struct gcr_packs *packs);

/* ---- packs_users.c: those of all users ---- */

struct gcr_packs_users; /* thread-safe */

/* @account is copied. -ENOMEM. */
int gcr_packs_users_create(int store_fd, const struct gcr_packs_account *account,
			   struct gcr_packs_users **ret_users);
/* Directories without chunks are removed. NULL is allowed. */
void gcr_packs_users_destroy(struct gcr_packs_users *users);
/* Opened when they are first asked for; a reference of the caller's. Errors of gcr_packs_open(). */
int gcr_packs_users_get(struct gcr_packs_users *users, uid_t uid, struct gcr_packs **ret_packs,
			struct gcr_error *error);
/* After a restart, when all tables have been read: of all users that have segments. */
void gcr_packs_users_sweep(struct gcr_packs_users *users);
/* The sum of those that are open. */
void gcr_packs_users_figures(struct gcr_packs_users *users, struct gcr_packs_figures *ret_figures);

#endif

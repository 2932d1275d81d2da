/* SPDX-License-Identifier: MIT */
/*
 * The files of one snapshot, packed or unpacked piece by piece, by any number of threads. Whoever
 * reads and writes them goes on meanwhile; a verb that begins ends it within a piece. Whatever
 * happens, each piece is either packed or not, and all that was done stays.
 */
#ifndef GCR_FS_STORE_PACK_WORK_H
#define GCR_FS_STORE_PACK_WORK_H

#include <stdbool.h>

#include "lib/cleanup.h"
#include "lib/error.h"

struct gcr_snapshot;
struct gcr_wanted;

struct gcr_pack_work; /* thread-safe */

/*
 * Of @snapshot, to which a reference is taken; what was never packed stays untouched when it is to
 * be unpacked. With @is_alone its chunks are shared with none. Errors of
 * gcr_snapshot_begin_packing(), with words.
 */
int gcr_pack_work_create(struct gcr_snapshot *snapshot, bool unpack, bool is_alone,
			 struct gcr_pack_work **ret_work, struct gcr_error *error);
void gcr_pack_work_destroy(struct gcr_pack_work *work); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_work *, gcr_pack_work_destroy);

/* More are of use only while nothing else is done, and each has its own scratch memory. */
#define GCR_PACK_WORK_THREADS_MAX 8
/* So many are of use here. */
unsigned int gcr_pack_work_threads(void);

struct gcr_pack_worker; /* what one thread needs to pack: buffers */

int gcr_pack_worker_create(struct gcr_pack_worker **ret_worker); /* -ENOMEM */
void gcr_pack_worker_destroy(struct gcr_pack_worker *worker);	 /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_worker *, gcr_pack_worker_destroy);

/*
 * The next piece: 1, or 0 if there is none left to begin with. @worker may be NULL to unpack. What
 * goes wrong with one file alone is left to gcr_pack_work_result(), and the others go on. Errors,
 * with words: -ECANCELED a verb has begun, or the snapshot is gone; -ENOSPC, -ENOMEM, -EMFILE, ...
 * -ECANCELED without words: it waited for others, and is no longer @wanted (which may be NULL).
 */
int gcr_pack_work_step(struct gcr_pack_work *work, struct gcr_pack_worker *worker,
		       const struct gcr_wanted *wanted, struct gcr_error *error);

/* What went wrong with single files, which stay as they are: of the first, with words; or 0. */
int gcr_pack_work_result(struct gcr_pack_work *work, struct gcr_error *error);

/* What is packed or unpacked; stays the work's. */
struct gcr_snapshot *gcr_pack_work_snapshot(const struct gcr_pack_work *work);

/* Files that stay as they are: others have them open, mapped or linked. */
unsigned int gcr_pack_work_skipped(struct gcr_pack_work *work);

#endif

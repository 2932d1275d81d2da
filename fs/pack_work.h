/* SPDX-License-Identifier: MIT */
/*
 * The files of one snapshot, packed or unpacked piece by piece, by any number of threads. Whoever
 * reads and writes them goes on meanwhile; a verb that begins ends it within a piece. Whatever
 * happens, each piece is either packed or not, and all that was done stays.
 */
#ifndef GCR_FS_PACK_WORK_H
#define GCR_FS_PACK_WORK_H

#include <stdbool.h>

#include "lib/cleanup.h"
#include "lib/error.h"

struct gcr_snapshot;

struct gcr_pack_work; /* thread-safe */

/* Of @snapshot, to which a reference is taken. Errors of gcr_snapshot_begin_packing(), with words.
 */
int gcr_pack_work_create(struct gcr_snapshot *snapshot, bool unpack,
			 struct gcr_pack_work **ret_work, struct gcr_error *error);
void gcr_pack_work_destroy(struct gcr_pack_work *work); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_work *, gcr_pack_work_destroy);

struct gcr_pack_worker; /* what one thread needs: buffers */

int gcr_pack_worker_create(struct gcr_pack_worker **ret_worker); /* -ENOMEM */
void gcr_pack_worker_destroy(struct gcr_pack_worker *worker);	 /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_worker *, gcr_pack_worker_destroy);

/*
 * The next piece: 1, or 0 if there is none left to begin with. Errors, with words: -EBUSY a verb
 * has begun, -ENOSPC, -ENOMEM, -ESTALE the snapshot is gone, -EIO, ...
 */
int gcr_pack_work_step(struct gcr_pack_work *work, struct gcr_pack_worker *worker,
		       struct gcr_error *error);

/* What is packed or unpacked; stays the work's. */
struct gcr_snapshot *gcr_pack_work_snapshot(const struct gcr_pack_work *work);

/* Files that stay as they are: others have them open, mapped or linked. */
unsigned int gcr_pack_work_skipped(struct gcr_pack_work *work);

#endif

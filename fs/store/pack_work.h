/* SPDX-License-Identifier: MIT */
/*
 * Pack or unpack the files of one snapshot piece by piece, on any number of threads. Readers and
 * writers of the files are not blocked; a verb that begins stops the work within a piece. At any
 * time each piece is either packed or not, and the pieces that were done stay so.
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
 * Begin work on @snapshot, to which a reference is taken. Unpacking a snapshot that was never
 * packed leaves it untouched. With @is_alone its chunks are not shared with other snapshots. Errors
 * of gcr_snapshot_begin_packing(), with a message.
 */
int gcr_pack_work_create(struct gcr_snapshot *snapshot, bool unpack, bool is_alone,
			 struct gcr_pack_work **ret_work, struct gcr_error *error);
void gcr_pack_work_destroy(struct gcr_pack_work *work); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_work *, gcr_pack_work_destroy);

/* More threads are of use only on an idle machine, and each has its own scratch memory. */
#define GCR_PACK_WORK_THREADS_MAX 8
/* The number of threads that are of use on this machine. */
unsigned int gcr_pack_work_threads(void);

struct gcr_pack_worker; /* the buffers of one thread that packs */

int gcr_pack_worker_create(struct gcr_pack_worker **ret_worker); /* -ENOMEM */
void gcr_pack_worker_destroy(struct gcr_pack_worker *worker);	 /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_pack_worker *, gcr_pack_worker_destroy);

/*
 * Pack or unpack the next piece. Returns 1, or 0 if there is none left to begin with. @worker may
 * be NULL to unpack. An error of a single file is left to gcr_pack_work_result(), and the work
 * continues with the other files. Errors, with a message: -ECANCELED a verb has begun, or the
 * snapshot is gone; -ENOSPC, -ENOMEM, -EMFILE, ... -ECANCELED without a message: the work is no
 * longer @wanted (NULL: always wanted), noticed while waiting for other pieces.
 */
int gcr_pack_work_step(struct gcr_pack_work *work, struct gcr_pack_worker *worker,
		       const struct gcr_wanted *wanted, struct gcr_error *error);

/*
 * The first error of a single file, with a message; 0 if there was none. Files with errors stay as
 * they are.
 */
int gcr_pack_work_result(struct gcr_pack_work *work, struct gcr_error *error);

/* The snapshot that is packed or unpacked; stays the work's. */
struct gcr_snapshot *gcr_pack_work_snapshot(const struct gcr_pack_work *work);

/* Number of files that stay as they are because they are open, mapped or linked elsewhere. */
unsigned int gcr_pack_work_skipped(struct gcr_pack_work *work);

#endif

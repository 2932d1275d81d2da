/* SPDX-License-Identifier: MIT */
/*
 * Room in a store that is too full: what is frozen is packed, the longest frozen first; then what
 * is kept of processes that run goes, and then, with -o spill=, packed bytes go to the disk, those
 * of the longest frozen first. The program that is to be frozen runs on meanwhile.
 */
#ifndef GCR_FS_RECLAIM_H
#define GCR_FS_RECLAIM_H

#include <stdint.h>

#include "fs/operation.h"
#include "lib/error.h"

/*
 * Have room for @bytes more in the store for the process of @task: claimed then, as by
 * gcr_store_claim(). It takes as long as the task may; nothing that has a task itself is touched.
 * No lock held. -ENOSPC, -ENOMEM with figures: all that could be done for it has been;
 * -ECANCELED: the operation is to stop, and words say if packing goes on.
 */
int gcr_reclaim(struct gcr_task *task, uint64_t bytes, struct gcr_error *error);

/*
 * The same for all that is packed of a snapshot of the task's own, which is to be unpacked; the
 * caller ends the claim when it is.
 */
int gcr_reclaim_to_unpack(struct gcr_task *task, struct gcr_snapshot *snapshot,
			  struct gcr_error *error);

#endif

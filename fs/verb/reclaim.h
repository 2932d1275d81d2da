/* SPDX-License-Identifier: MIT */
/*
 * Room in a store that is too full: what is frozen is packed, the longest frozen first; then what
 * is kept of processes that run goes, and then, with -o spill=, packed bytes go to the disk, those
 * of the longest frozen first. The program that is to be frozen runs on meanwhile.
 */
#ifndef GCR_FS_VERB_RECLAIM_H
#define GCR_FS_VERB_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/verb/task.h"
#include "lib/error.h"

/*
 * Have room for @bytes more in the store for the process of @task: claimed then, as by
 * gcr_store_claim(). It takes as long as the task may; nothing that has a task itself is touched.
 * *ret_waited: it was not there at once. No lock held. -ENOSPC, -ENOMEM with figures: all that
 * could be done for it has been; -ECANCELED: the operation is to stop, and words say if packing
 * goes on.
 */
int gcr_reclaim(struct gcr_task *task, uint64_t bytes, bool *ret_waited, struct gcr_error *error);

#endif

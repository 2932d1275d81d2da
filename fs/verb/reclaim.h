/* SPDX-License-Identifier: MIT */
/*
 * Makes room in a store that is too full. First, frozen processes are packed, the longest frozen
 * first; then the kept snapshots of running processes are dropped; then, with -o spill=, packed
 * bytes are moved to the disk, those of the longest frozen first. The program that is to be frozen
 * keeps running.
 */
#ifndef GCR_FS_VERB_RECLAIM_H
#define GCR_FS_VERB_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/verb/task.h"
#include "lib/error.h"

/*
 * Claim @bytes more in the store for the process of @task, as gcr_store_claim() does, and make room
 * if needed. May take as long as the task may. Processes that have a task themselves are not
 * touched. *ret_waited: the room was not free at once. Call without locks. -ENOSPC, -ENOMEM with
 * figures: all possible steps have been taken; -ECANCELED: the operation is to stop, and the
 * message says if a packing continues.
 */
int gcr_reclaim(struct gcr_task *task, uint64_t bytes, bool *ret_waited, struct gcr_error *error);

#endif

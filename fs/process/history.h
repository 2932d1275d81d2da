/* SPDX-License-Identifier: MIT */
/*
 * What a process's memory had in it at its last freeze, by digest: so that a file whose content has
 * not changed since keeps its time, and rsync passes it over. Lives in the daemon's memory.
 */
#ifndef GCR_FS_PROCESS_HISTORY_H
#define GCR_FS_PROCESS_HISTORY_H

#include "fs/process/process.h"
#include "fs/store/store.h"
#include "lib/digest.h"

struct gcr_history;

/*
 * Give each file of @snapshot, whose @digests are complete, the time of its content, and remember
 * both. Without memory for that the files have the time of this freeze.
 */
void gcr_history_apply(struct gcr_process *process, const struct gcr_snapshot *snapshot,
		       const struct gcr_digest *digests);

/* A snapshot of an earlier daemon is to be thawed: begin with what it has. */
void gcr_history_begin(struct gcr_process *process, const struct gcr_snapshot *snapshot,
		       const struct gcr_digest *digests);

void gcr_history_free(struct gcr_history *history); /* NULL is allowed */

#endif

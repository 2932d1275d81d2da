/* SPDX-License-Identifier: MIT */
/*
 * The contents of a process's memory files at its last freeze, as digests. A file whose content has
 * not changed since then keeps its modification time, so that rsync skips the file. The history
 * lives in the daemon's memory.
 */
#ifndef GCR_FS_PROCESS_HISTORY_H
#define GCR_FS_PROCESS_HISTORY_H

#include "fs/process/process.h"
#include "fs/store/store.h"
#include "lib/digest.h"

struct gcr_history;

/*
 * Sets the modification time of each file of @snapshot: the time that the history has for the same
 * content, or else now. Then the history has these contents and times. @digests: of all files, and
 * complete. If memory runs out, the files keep the time of this freeze.
 */
void gcr_history_apply(struct gcr_process *process, const struct gcr_snapshot *snapshot,
		       const struct gcr_digest *digests);

/*
 * Starts a history with the contents and present times of the files of @snapshot, which an earlier
 * daemon has made and which is about to be thawed. Does nothing if the process has a history
 * already, or memory runs out.
 */
void gcr_history_begin(struct gcr_process *process, const struct gcr_snapshot *snapshot,
		       const struct gcr_digest *digests);

void gcr_history_free(struct gcr_history *history); /* NULL is allowed */

#endif

/* SPDX-License-Identifier: MIT */
/* Files of the store made ready for the GPU's copy engines before they are needed. */
#ifndef GCR_FS_PROCESS_PIN_H
#define GCR_FS_PROCESS_PIN_H

#include "fs/daemon.h"
#include "fs/process/process.h"

struct gcr_snapshot;

/*
 * Have the files of a frozen process (for its thaw), or those kept ready for one that runs (for
 * its freeze), registered by the workers of its GPUs, if these run and are not in use. To be called
 * from time to time: nothing is waited for, and it is done once for each worker.
 */
void gcr_pin_files(struct gcr_daemon *daemon, struct gcr_process *process);
/*
 * The other way, before files are packed: of a file that is open there it cannot be seen that
 * nobody else has it. gcr_snapshot_begin_packing() has been called: nothing of it is registered
 * again. -EAGAIN: some still is, or a worker is in use; ask again. One that is in use for longer
 * gives up by itself what has been packed.
 */
int gcr_unpin_files(struct gcr_process *process, struct gcr_snapshot *snapshot);

#endif

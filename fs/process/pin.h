/* SPDX-License-Identifier: MIT */
/* Registration of store files with the GPU's copy engines ahead of a freeze or thaw. */
#ifndef GCR_FS_PROCESS_PIN_H
#define GCR_FS_PROCESS_PIN_H

#include "fs/daemon.h"
#include "fs/process/process.h"

struct gcr_snapshot;

/*
 * Has the workers of the process's GPUs register files: those of a frozen process (for its thaw),
 * or the files kept ready for a running one (for its freeze). Skips workers that do not run or are
 * in use. To be called periodically: the call does not wait for the registration, and each worker
 * registers the files once.
 */
void gcr_pin_files(struct gcr_daemon *daemon, struct gcr_process *process);
/*
 * Has the workers unregister the files before packing: while a worker has a file open, the packer
 * cannot tell that no other process uses the file. The caller has called
 * gcr_snapshot_begin_packing(), so no file is registered again. -EAGAIN: some files are still
 * registered, or a worker is in use; retry. A worker that is in use for longer releases packed
 * files by itself.
 */
int gcr_unpin_files(struct gcr_process *process, struct gcr_snapshot *snapshot);

#endif

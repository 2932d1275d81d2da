/* SPDX-License-Identifier: MIT */
/* Signs of GPU memory sharing in processes without a preload library. */
#ifndef GCR_FS_PROCESS_UNSEEN_H
#define GCR_FS_PROCESS_UNSEEN_H

#include "fs/process/process.h"
#include "lib/error.h"

/*
 * May @process, whose driver calls are not observed, share GPU memory with another GPU process?
 * -EOPNOTSUPP if both have mapped a library that shares such memory (lib/sharing_sign.h), and the
 * other process belongs to the same user or the same tree; @error names the library and the other
 * process. A process whose preload library reports no sharing does not count. -ETIMEDOUT: a process
 * could not be looked at in time, so the answer is unknown; -ESRCH; -ENOMEM. Sets @error. Blocks
 * for up to some 20 s; no lock held.
 */
int gcr_unseen_check(struct gcr_process *process, struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/* Sharing of GPU memory that cannot be seen, since no preload library tells of it. */
#ifndef GCR_FS_PROCESS_UNSEEN_H
#define GCR_FS_PROCESS_UNSEEN_H

#include "fs/process/process.h"
#include "lib/error.h"

/*
 * May @process, whose calls nobody watches, share GPU memory with another GPU process? -EOPNOTSUPP,
 * with words that name the library and the other process: both have mapped a library that shares
 * such memory (lib/sharing_sign.h), and the other is its user's, or of its tree. Another one whose
 * preload library says that it shares nothing does not count. -ETIMEDOUT, with words: it is not
 * known, since such a process could not be looked at in time. -ESRCH; -ENOMEM. Blocks for some 20 s
 * at most; no lock held.
 */
int gcr_unseen_check(struct gcr_process *process, struct gcr_error *error);

#endif

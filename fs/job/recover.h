/* SPDX-License-Identifier: MIT */
/* Recovery of processes that an earlier daemon left frozen or in the middle of a verb. */
#ifndef GCR_FS_JOB_RECOVER_H
#define GCR_FS_JOB_RECOVER_H

#include "fs/daemon.h"
#include "fs/process/process.h"

/*
 * Add every process with a record to the table, with the vendor that has frozen it, before any
 * library can connect: if a program uses GPUs of two vendors, only the library of that vendor is to
 * be asked. The entries stay until gcr_recover() has handled them. -errno: the records cannot be
 * read.
 */
int gcr_recover_list(struct gcr_daemon *daemon);

/*
 * Add every process with a record to the table, in the record's state, and start the recovery of
 * each, except of those that an earlier daemon noted as failed. Records of processes that have
 * ended are removed. -errno: the records cannot be listed.
 */
int gcr_recover(struct gcr_daemon *daemon);

/*
 * The library of a process that the daemon takes for running says that its memory is out: the
 * process could not be listed at the start. If the process has a record, start its recovery now.
 */
void gcr_recover_late(struct gcr_process *process);

/*
 * If gcr_recover() could not list a process that has a record, or had no memory or no descriptor to
 * read a record: try again. Returns false if there is no such process (any more); then the
 * interrupted swaps are finished. True: call again later. The caller keeps *again_usec, at first 0:
 * until that time (monotonic) a call does nothing. Called by one thread, without locks.
 */
bool gcr_recover_missed(struct gcr_daemon *daemon, int64_t *again_usec);

/*
 * The library of a process that the daemon takes for frozen says that the program runs: the library
 * could not be told of the commit, and has taken its memory back. Start a recovery.
 */
void gcr_recover_returned(struct gcr_process *process);

/*
 * After gcr_recover(): finish the swaps that an earlier daemon was carrying out. If both processes
 * are frozen now, or the one to be thawed has ended, the process that was frozen for the swap is
 * thawed again. Both get a message. A swap that cannot be finished yet is finished when the
 * recovery of either process ends, and no process is missed (see gcr_recover_missed()).
 */
void gcr_recover_swaps(struct gcr_daemon *daemon);

/* The recovery of a process has ended; called on its thread, without locks. */
void gcr_recover_ended(struct gcr_daemon *daemon);

#endif

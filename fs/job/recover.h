/* SPDX-License-Identifier: MIT */
/* What an earlier daemon left: frozen processes, and verbs it died in. */
#ifndef GCR_FS_JOB_RECOVER_H
#define GCR_FS_JOB_RECOVER_H

#include "fs/daemon.h"
#include "fs/process/process.h"

/*
 * Take every process with a record into the table as one of the vendor that has frozen it, before
 * any library can come: of a program that uses the GPUs of two only that vendor's is to be asked.
 * They stay until gcr_recover() has seen to them.
 */
int gcr_recover_list(struct gcr_daemon *daemon);

/*
 * Take every process with a record into the table, in the record's state, and start settling
 * those that were in a verb. Records of processes that have ended are removed.
 */
int gcr_recover(struct gcr_daemon *daemon);

/*
 * A process that is taken for a running one, and whose library says that its memory is out: at the
 * start it could not be listed. If it has a record, it is settled now.
 */
void gcr_recover_late(struct gcr_process *process);

/*
 * A process that is taken for a frozen one, and whose library says that it runs: it could not be
 * told of the commit, and has taken its memory back. The same for it.
 */
void gcr_recover_returned(struct gcr_process *process);

/*
 * After gcr_recover(): of two that an earlier daemon was exchanging, and that are both frozen now,
 * or of which the other one has ended, the one that ran comes back. They are told. What cannot be
 * settled yet is left for the end of the recovery of either.
 */
void gcr_recover_exchanges(struct gcr_daemon *daemon);

/* The recovery of a process has ended, on its thread, which holds no lock. */
void gcr_recover_ended(struct gcr_daemon *daemon);

#endif

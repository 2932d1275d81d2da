/* SPDX-License-Identifier: MIT */
/* What an earlier daemon left: frozen processes, and verbs it died in. */
#ifndef GCR_FS_RECOVER_H
#define GCR_FS_RECOVER_H

#include "fs/daemon.h"

/*
 * Take every process with a record into the table, in the record's state, and start settling
 * those that were in a verb. Records of processes that have ended are removed.
 */
int gcr_recover(struct gcr_daemon *daemon);

#endif

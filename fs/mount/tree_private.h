/* SPDX-License-Identifier: MIT */
/* Functions that the files of the tree share. */
#ifndef GCR_FS_MOUNT_TREE_PRIVATE_H
#define GCR_FS_MOUNT_TREE_PRIVATE_H

#include "fs/mount/tree.h"

/* Is CRIU's log of the place readable for root alone? */
bool gcr_tree_is_place_log_hidden(struct gcr_daemon *daemon, const struct gcr_place *place);
/* Likewise for a process; also true if the log of the place that it was restored from is hidden. */
bool gcr_tree_is_process_log_hidden(struct gcr_daemon *daemon, struct gcr_process *process);

#endif

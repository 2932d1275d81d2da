/* SPDX-License-Identifier: MIT */
/* What the files about the tree share. */
#ifndef GCR_FS_MOUNT_TREE_PRIVATE_H
#define GCR_FS_MOUNT_TREE_PRIVATE_H

#include "fs/mount/tree.h"

/* Is CRIU's log for root alone? */
bool gcr_tree_is_place_log_hidden(struct gcr_daemon *daemon, const struct gcr_place *place);
/* Also if it is that of the place which the process has been restored from. */
bool gcr_tree_is_process_log_hidden(struct gcr_daemon *daemon, struct gcr_process *process);

#endif

/* SPDX-License-Identifier: MIT */
/* What a preload library lists as its program's memory, compared with what there can be. */
#ifndef GCR_FS_PROCESS_LISTED_H
#define GCR_FS_PROCESS_LISTED_H

#include <stddef.h>

#include "fs/daemon.h"
#include "lib/error.h"
#include "lib/extent.h"

/*
 * Sets the GPU's index in each extent. On no GPU can be more than it has, and in managed memory not
 * more than the GPUs and the host have: what is asked for more would only take the store from
 * others. -ENODEV: a GPU that is not here; -EPROTO; with words.
 */
int gcr_listed_check(struct gcr_daemon *daemon, struct gcr_extent *extents, size_t count,
		     struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/* Checks a preload library's list of its program's memory against the memory of the machine. */
#ifndef GCR_FS_PROCESS_LISTED_H
#define GCR_FS_PROCESS_LISTED_H

#include <stddef.h>

#include "fs/daemon.h"
#include "lib/error.h"
#include "lib/extent.h"

/*
 * Sets the GPU's index in each extent. Device memory on a GPU must not exceed the GPU's memory, and
 * managed memory not that of all GPUs and the host: larger requests would only take store memory
 * from other users. -ENODEV: a GPU is not present; -EPROTO: a sum is too large; -ENOMEM. Sets
 * @error.
 */
int gcr_listed_check(struct gcr_daemon *daemon, struct gcr_extent *extents, size_t count,
		     struct gcr_error *error);

#endif

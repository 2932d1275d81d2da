/* SPDX-License-Identifier: MIT */
/* Conditions that forbid the freeze of a process with any engine. */
#ifndef GCR_FS_PROCESS_OBSTACLES_H
#define GCR_FS_PROCESS_OBSTACLES_H

#include "fs/process/library.h"
#include "fs/process/process.h"
#include "lib/error.h"

/*
 * Checks the facts from the preload library. Returns 0, or sets @error: -ESRCH the program is
 * ending, -EOPNOTSUPP the program shares GPU memory or has another resource that cannot be
 * restored. Does not block.
 */
int gcr_obstacles_check(const struct gcr_process *process, const struct gcr_page_facts *facts,
			struct gcr_error *error);

#endif

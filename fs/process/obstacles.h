/* SPDX-License-Identifier: MIT */
/* What forbids the freeze of a process, whichever engine would do it. */
#ifndef GCR_FS_PROCESS_OBSTACLES_H
#define GCR_FS_PROCESS_OBSTACLES_H

#include "fs/process/link.h"
#include "fs/process/process.h"
#include "lib/error.h"

/*
 * By what its preload library says. 0, or with words: -ESRCH the program is ending, -EOPNOTSUPP it
 * shares GPU memory or has something else that would not come back. Does not block.
 */
int gcr_obstacles_check(const struct gcr_process *process, const struct gcr_page_facts *facts,
			struct gcr_error *error);

#endif

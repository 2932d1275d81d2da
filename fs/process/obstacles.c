/* SPDX-License-Identifier: MIT */
/*
 * The driver checkpoints a process that shares GPU memory and can never restore it (measured), and
 * some other resources come back changed. The rules are the same for every engine.
 */
#include "fs/process/obstacles.h"

#include <errno.h>

int gcr_obstacles_check(const struct gcr_process *process, const struct gcr_page_facts *facts,
			struct gcr_error *error)
{
	if (facts->flags & GCR_PAGE_ENDING)
		return gcr_error_set(error, ESRCH, "process %d is ending", (int)process->pid);
	if (*facts->obstacle)
		return gcr_error_set(error, EOPNOTSUPP, "%s", facts->obstacle);
	if (facts->sharings)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it shares GPU memory with another process (%s IPC, or a "
				     "memory handle given away or taken)",
				     process->vendor->backend->api);
	return 0;
}

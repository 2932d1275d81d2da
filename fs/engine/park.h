/* SPDX-License-Identifier: MIT */
/* Parking preload libraries of frozen processes, so that CRIU can dump them. */
#ifndef GCR_FS_ENGINE_PARK_H
#define GCR_FS_ENGINE_PARK_H

#include <stdint.h>

#include "fs/process/process.h"
#include "lib/error.h"

/*
 * The library of @process, which is frozen by the vmm engine, lets go of everything that CRIU would
 * not dump, its connection to us among it, for @limit_ms at most. What is parked already stays so.
 * Errors, with words: -EOPNOTSUPP it holds what cannot be let go of, -ENOTCONN it has not
 * reconnected yet, -EBUSY, -ESRCH, -ETIMEDOUT.
 */
int gcr_park(struct gcr_process *process, uint32_t limit_ms, struct gcr_error *error);

/* It may connect again, and soon does. Nothing to do for one that is not parked. */
void gcr_unpark(struct gcr_process *process);

/* The same for one that an earlier daemon has parked, and whose page is known to nobody. */
void gcr_unpark_left(pid_t pid);

#endif

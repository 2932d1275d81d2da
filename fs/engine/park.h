/* SPDX-License-Identifier: MIT */
/* Parking: the preload library of a frozen process releases everything that CRIU cannot dump. */
#ifndef GCR_FS_ENGINE_PARK_H
#define GCR_FS_ENGINE_PARK_H

#include <stdint.h>

#include "fs/process/process.h"
#include "lib/error.h"

/*
 * Asks the library of @process, which the vmm engine has frozen, to release everything that CRIU
 * would not dump, its connection to the daemon included, for at most @limit_ms. 0 also if the
 * library is parked already. After an error too the library may be parked: call gcr_unpark().
 * Errors, with a message: -EOPNOTSUPP the library holds something that it cannot release, -ENOTCONN
 * it has not reconnected yet, -EBUSY, -ESRCH, -ETIMEDOUT, -EMFILE.
 */
int gcr_park(struct gcr_process *process, uint32_t limit_ms, struct gcr_error *error);

/* Lets the library connect again, which it soon does. Does nothing if the library is not parked. */
void gcr_unpark(struct gcr_process *process);

/*
 * As gcr_unpark(), for a library that an earlier daemon has parked: this daemon has no page of it.
 */
void gcr_unpark_left(pid_t pid);

#endif

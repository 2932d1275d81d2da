/* SPDX-License-Identifier: MIT */
/*
 * Parking: the program is about to be dumped by CRIU, which refuses a socket that leads out of the
 * tree. The agent closes its own, and makes another one when the time is up, when the daemon says
 * so in the page, or when it finds itself in a process that CRIU has restored. Its memory is out,
 * and the gate closed, all the while.
 */
#ifndef GCR_PRELOAD_PARK_H
#define GCR_PRELOAD_PARK_H

#include <stdint.h>

#include "lib/error.h"

/*
 * Is there nothing else that could not be dumped? -EOPNOTSUPP, with words. On success the page says
 * that it is parked.
 */
int gcr_park_begin(struct gcr_error *error);

/* With the socket closed: wait until it is over, for @limit_ms at most. */
void gcr_park_wait(uint32_t limit_ms);

#endif

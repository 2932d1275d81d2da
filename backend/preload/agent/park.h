/* SPDX-License-Identifier: MIT */
/*
 * Parking: the program is about to be dumped by CRIU, which refuses a socket that leads out of the
 * tree. The agent closes its socket, and opens another one when the time limit is over, when the
 * daemon clears the flag in the page, or when the agent finds itself in a process that CRIU has
 * restored. All this time the memory is out and the gate closed.
 */
#ifndef GCR_PRELOAD_PARK_H
#define GCR_PRELOAD_PARK_H

#include <stdint.h>

#include "lib/error.h"

/*
 * Checks that nothing else of the library prevents a dump, and marks the page as parked.
 * -EOPNOTSUPP, with a message; -EAGAIN: no descriptor is free.
 */
int gcr_park_begin(struct gcr_error *error);

/* Waits until parking ends, for at most @limit_ms. Called with the socket closed. */
void gcr_park_wait(uint32_t limit_ms);

#endif

/* SPDX-License-Identifier: MIT */
/* The agent's side of the gate (backend/preload/gate/gate.h). */
#ifndef GCR_PRELOAD_GATE_CLOSE_H
#define GCR_PRELOAD_GATE_CLOSE_H

#include <stdint.h>

#include "lib/error.h"

/*
 * Closes the gate to all other threads and waits until no call is inside, no capture
 * is open and every context is idle. When called with the gate closed, waits again for whatever is
 * missing. Errors that leave the gate closed, unless a capture is open: -ETIMEDOUT, with a message
 * that names the unfinished call, capture or GPU; -EINTR: @wake_fd became readable. Errors after
 * which the caller must open the gate: -EIO: the driver reports that a context has failed;
 * -EOPNOTSUPP: the driver cannot report whether a context is idle, or membarrier(2) does not work.
 * -ESRCH: the program is ending; the gate is open already.
 */
int gcr_gate_close(int64_t timeout_usec, int wake_fd, struct gcr_error *error);
void gcr_gate_open(void);

#endif

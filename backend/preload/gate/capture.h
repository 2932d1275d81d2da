/* SPDX-License-Identifier: MIT */
/* The open stream captures of the program. While a capture is open, the gate cannot close. */
#ifndef GCR_PRELOAD_CAPTURE_H
#define GCR_PRELOAD_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

/* Does the program have an open capture? */
bool gcr_captures_open(void);

/* For the agent, when no thread is inside a driver call: asks the driver about each known capture,
 * and drops those that ended without the library having seen it. */
void gcr_captures_verify(void);

/* The id of the thread that began one of the open captures; 0 if no capture is open. */
uint32_t gcr_captures_thread(void);

/* Is this stream part of an open capture, whether or not the capture began in this stream? */
bool gcr_captures_has(CUstream stream, bool per_thread);

#endif

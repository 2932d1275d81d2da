/* SPDX-License-Identifier: MIT */
/* Stream captures that are open: while there is one, the gate cannot close. */
#ifndef GCR_PRELOAD_CAPTURE_H
#define GCR_PRELOAD_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

bool gcr_captures_open(void);

/* For the agent, with nobody inside: forget those that have ended in some way we did not see. */
void gcr_captures_verify(void);

/* The thread that began one of those open; 0 if there is none. */
uint32_t gcr_captures_thread(void);

/* Is this stream part of a capture, begun in it or not? */
bool gcr_captures_has(CUstream stream, bool per_thread);

void gcr_captures_context_gone(CUcontext context);

/* In the child of a fork. */
void gcr_captures_forget(void);

#endif

/* SPDX-License-Identifier: MIT */
/* Waiting for the GPU in HIP: there gcr_contexts_wait() uses a thread of its own. */
#ifndef GCR_PRELOAD_HIP_IDLE_H
#define GCR_PRELOAD_HIP_IDLE_H

#ifdef GCR_HIP

#include "backend/rocm/adapt.h"

/*
 * Called before a stream capture begins. If the agent has abandoned its thread that waits for the
 * GPU, waits until this thread can no longer invalidate the capture.
 */
void gcr_hip_idle_let_pass(void);

#else

static inline void gcr_hip_idle_let_pass(void)
{
}

#endif

#endif

/* SPDX-License-Identifier: MIT */
/* HIP's gcr_contexts_wait() has a thread of its own. */
#ifndef GCR_PRELOAD_HIP_IDLE_H
#define GCR_PRELOAD_HIP_IDLE_H

#ifdef GCR_HIP

#include "backend/rocm/adapt.h"

/* Before a stream capture begins: not while a wait that was left behind would end it. */
void gcr_hip_idle_let_pass(void);

/* In the child of a fork. */
void gcr_hip_idle_forget(void);

#else

static inline void gcr_hip_idle_let_pass(void)
{
}

#endif

#endif

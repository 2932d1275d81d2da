/* SPDX-License-Identifier: MIT */
/* HIP's gcr_contexts_wait() has a thread of its own. */
#ifndef GCR_PRELOAD_HIP_IDLE_H
#define GCR_PRELOAD_HIP_IDLE_H

#include "backend/rocm/adapt.h"

/* In the child of a fork. */
void gcr_hip_idle_forget(void);

#endif

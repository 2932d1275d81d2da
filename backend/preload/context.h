/* SPDX-License-Identifier: MIT */
/* The contexts of the program that are alive, as far as its calls have shown. */
#ifndef GCR_PRELOAD_CONTEXT_H
#define GCR_PRELOAD_CONTEXT_H

#include <stddef.h>

#include "backend/cuda/cuda_api.h"

/*
 * For the agent, with the gate closed: primary contexts that came or went without our knowledge
 * are put right first. At most @room of them to @ret_contexts; returns how many there are.
 */
size_t gcr_contexts_alive(CUcontext *ret_contexts, size_t room);

/* In the child of a fork. */
void gcr_contexts_forget(void);

#endif

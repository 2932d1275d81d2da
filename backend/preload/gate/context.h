/* SPDX-License-Identifier: MIT */
/* The program's living contexts, as far as the library has seen them made. */
#ifndef GCR_PRELOAD_CONTEXT_H
#define GCR_PRELOAD_CONTEXT_H

#include <pthread.h>
#include <stddef.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/gate/event_wait.h"
#include "lib/error.h"

/*
 * For the agent, with the gate closed. First corrects the list for primary contexts that came or
 * went without the library's knowledge. Stores at most @room contexts in @ret_contexts; returns how
 * many contexts there are.
 */
size_t gcr_contexts_alive(CUcontext *ret_contexts, size_t room);

/*
 * For the agent, with the gate closed: waits until all work of every context is done. Returns 0;
 * the error of @pause, with a message that names the GPU; -EOPNOTSUPP: the driver cannot report
 * whether a context is idle; -EIO: the driver reports that a context has failed; -ENOMEM.
 */
int gcr_contexts_wait(gcr_pause *pause, void *patience, struct gcr_error *error);

/*
 * For calls that change the reference count of the primary context of @device. The first function
 * returns the lock that the caller holds during the call (NULL: no such device), the second the
 * context (NULL: not active). The third is called after a call that may have taken the count to 0.
 */
pthread_mutex_t *gcr_context_primary_lock(CUdevice device);
CUcontext gcr_context_primary(CUdevice device);
void gcr_context_primary_released(CUdevice device);

#endif

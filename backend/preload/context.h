/* SPDX-License-Identifier: MIT */
/* The contexts of the program that are alive, as far as its calls have shown. */
#ifndef GCR_PRELOAD_CONTEXT_H
#define GCR_PRELOAD_CONTEXT_H

#include <pthread.h>
#include <stddef.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/*
 * For the agent, with the gate closed: primary contexts that came or went without our knowledge
 * are put right first. At most @room of them to @ret_contexts; returns how many there are.
 */
size_t gcr_contexts_alive(CUcontext *ret_contexts, size_t room);

/* Called between two looks: 0 to look again, or -errno to leave off. */
typedef int gcr_pause(void *patience);

/*
 * For the agent, with the gate closed: wait until all work of every context is done. 0; what @pause
 * said, with words that name the GPU; -EOPNOTSUPP: the driver cannot tell; -EIO: it says that a
 * context has failed; -ENOMEM.
 */
int gcr_contexts_wait(gcr_pause *pause, void *patience, struct gcr_error *error);

/*
 * The same for one event of a context that is current. The words name the GPU, with @whose before
 * it: "" or "a green context of ".
 */
int gcr_event_wait(CUevent event, const char *whose, CUdevice device, gcr_pause *pause,
		   void *patience, struct gcr_error *error);

/*
 * For calls that change the reference count of the primary context of @device: the lock that the
 * caller holds during the call (NULL: there is no such device), the context (NULL: it is not
 * active), and what to do after a call that may have taken the count to 0.
 */
pthread_mutex_t *gcr_context_primary_lock(CUdevice device);
CUcontext gcr_context_primary(CUdevice device);
void gcr_context_primary_released(CUdevice device);

/* In the child of a fork. */
void gcr_contexts_forget(void);

#endif

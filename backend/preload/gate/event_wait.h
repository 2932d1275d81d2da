/* SPDX-License-Identifier: MIT */
/* Waiting for the driver by polling, so that the wait can be given up at any time. */
#ifndef GCR_PRELOAD_EVENT_WAIT_H
#define GCR_PRELOAD_EVENT_WAIT_H

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/* Called between two polls of the driver: 0 to poll again, or -errno to give up. */
typedef int gcr_pause(void *patience);

/*
 * Waits until an event of a context that is current has happened. Returns 0; the error of @pause,
 * with a message that names the GPU after @whose, which is "" or "a green context of "; -EIO: the
 * driver reports an error.
 */
int gcr_event_wait(CUevent event, const char *whose, CUdevice device, gcr_pause *pause,
		   void *patience, struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/* What the memory functions need to know of each GPU, asked once. */
#ifndef GCR_PRELOAD_DEVICE_H
#define GCR_PRELOAD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"
#include "lib/protocol.h"

struct gcr_device {
	bool exportable; /* cuMemCreate makes memory here that can be handed over */
	bool rdma;	 /* and other devices may reach it, as they may reach cuMemAlloc's */
	uint8_t uuid[GCR_UUID_BYTES];
};

/* NULL: no such device, or nothing can be known. Calls the driver the first time. */
const struct gcr_device *gcr_device_get(int ordinal);

/*
 * This thread's GPU is this one from here on, as far as that matters to who imports memory: in HIP
 * it belongs to the GPU that is current then. Calls the driver.
 */
void gcr_device_use(int ordinal);

/* The UUIDs again, after a thaw: an ordinal may be another GPU now. Calls the driver; its errors.
 */
int gcr_device_refresh(struct gcr_error *error);

/* In the child of a fork. */
void gcr_device_forget(void);

#endif

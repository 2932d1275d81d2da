/* SPDX-License-Identifier: MIT */
/* Properties of each GPU that the memory functions need, queried from the driver once. */
#ifndef GCR_PRELOAD_DEVICE_H
#define GCR_PRELOAD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"
#include "lib/protocol.h"

struct gcr_device {
	bool exportable; /* memory of cuMemCreate on this GPU can be handed over */
	bool rdma; /* peer devices (RDMA) may access that memory as they may access cuMemAlloc's */
	uint8_t uuid[GCR_UUID_BYTES];
};

/*
 * Returns the properties of the GPU, which live for ever. NULL: no such device, or its UUID cannot
 * be read. Calls the driver the first time.
 */
const struct gcr_device *gcr_device_get(int ordinal);

/*
 * Makes this GPU current for the calling thread where imports depend on that: in HIP imported
 * memory belongs to the GPU that is current. Calls the driver.
 */
void gcr_device_use(int ordinal);

/* Reads the UUIDs again after a thaw: an ordinal may be another GPU now. Calls the driver. */
int gcr_device_refresh(struct gcr_error *error);

#endif

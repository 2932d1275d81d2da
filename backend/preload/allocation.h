/* SPDX-License-Identifier: MIT */
/* What stands for the memory of cuMemAlloc and its family, for the other files of the table. */
#ifndef GCR_PRELOAD_ALLOCATION_H
#define GCR_PRELOAD_ALLOCATION_H

#include "backend/cuda/cuda_api.h"
#include "backend/preload/table.h"

/* The real memory that answers for the allocation at @address; false: it is none of ours. */
bool gcr_allocation_companion(CUdeviceptr address, CUdeviceptr *ret_companion);

/* A companion in the current context. */
CUresult gcr_allocation_new_companion(CUdeviceptr *ret_companion);

/* cuIpcCloseMemHandle of what gcr_memory_owns(). */
CUresult gcr_allocation_close(CUdeviceptr pointer);

/*
 * Contexts that may use each other's memory (cuCtxEnablePeerAccess). Held for reading while an
 * allocation gets its access rights, so that none is missed; see peer.c.
 */
void gcr_peer_hold(void);
void gcr_peer_let_go(void);
/*
 * The devices whose contexts may use memory allocated in @owner, besides @device, its own: room for
 * GCR_GPUS_MAX. Held for reading.
 */
size_t gcr_peer_devices(CUcontext owner, int device, int *ret_devices);
/* No access to or from this context any more: it has gone. */
void gcr_peer_context_gone(CUcontext context);
void gcr_peer_forget(void);

#endif

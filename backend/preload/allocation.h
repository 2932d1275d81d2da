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

/* Is an allocation of this size made so that it can be handed over? Smaller ones are not. */
bool gcr_allocation_takes(size_t bytes);

/* Make one, in the current context, that @companion answers for. On failure nothing is left of it,
 * and the companion is still the caller's. */
CUresult gcr_allocation_make(CUdeviceptr companion, size_t bytes, CUdeviceptr *ret_start);

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
/* @user, which is on @device, may use what is allocated in @owner, now and later; or not any more.
 * NULL stands for any context. CUDA_ERROR_OUT_OF_MEMORY, or what the driver says. */
CUresult gcr_peer_add(CUcontext user, int device, CUcontext owner);
void gcr_peer_drop(CUcontext user, CUcontext owner);
/* No access to or from this context any more: it has gone. */
void gcr_peer_context_gone(CUcontext context);
void gcr_peer_forget(void);

#endif

/* SPDX-License-Identifier: MIT */
/* Allocations of cuMemAlloc and its family that the library makes with the virtual memory
 * functions, for the other files that use the table. Each has a companion: a small real allocation
 * of cuMemAlloc_v2, about which the driver is asked instead (allocation.c). */
#ifndef GCR_PRELOAD_ALLOCATION_H
#define GCR_PRELOAD_ALLOCATION_H

#include "backend/cuda/cuda_api.h"
#include "backend/preload/memory/table.h"

/* Gets the companion of the allocation that contains @address. False: not the library's. */
bool gcr_allocation_companion(CUdeviceptr address, CUdeviceptr *ret_companion);

/* Allocates a companion in the current context. */
CUresult gcr_allocation_new_companion(CUdeviceptr *ret_companion);

/*
 * Does the library make allocations of this size itself, so that they can be handed over? True
 * above 1 MiB (and up to 2^50 bytes), if the library converts memory at all
 * (gcr_memory_converts()).
 */
bool gcr_allocation_takes(size_t bytes);

/* Makes an allocation in the current context, with @companion. On failure nothing is left of the
 * allocation, and the companion is still the caller's. */
CUresult gcr_allocation_make(CUdeviceptr companion, size_t bytes, CUdeviceptr *ret_start);

/*
 * Is @address in a device allocation made by the library? cuMemFree looks in the table itself.
 */
bool gcr_allocation_owns(CUdeviceptr address);

/*
 * Freeing: marks the allocation that begins at @address as being freed, so that no other thread
 * frees it, and returns it. The caller frees the companion, then calls one of the functions below.
 * NULL: no allocation begins there; *ret_ours: is @address inside one nevertheless?
 */
struct gcr_mapping *gcr_allocation_begin_free(CUdeviceptr address, CUdeviceptr *ret_companion,
					      bool *ret_ours);
/* Ends a free in which the companion could not be freed: the allocation is as before. */
void gcr_allocation_abandon_free(struct gcr_mapping *mapping);
/*
 * Ends a free in which the companion is freed, so that all work that could use the memory has
 * ended: frees the memory.
 */
void gcr_allocation_finish_free(struct gcr_mapping *mapping);

/* Implements cuIpcCloseMemHandle for memory for which gcr_allocation_owns() returns true. */
CUresult gcr_allocation_close(CUdeviceptr pointer);

/*
 * Peers: contexts that may use each other's memory (cuCtxEnablePeerAccess; see peer.c).
 * gcr_peer_hold() takes the list's lock for reading. The caller holds it while an allocation gets
 * its access rights, so that no peer is missed.
 */
void gcr_peer_hold(void);
void gcr_peer_let_go(void);
/*
 * The devices whose contexts may use memory allocated in @owner, except @device, the owner's own.
 * @ret_devices has room for GCR_GPUS_MAX; returns the count. The caller holds the lock for reading.
 */
size_t gcr_peer_devices(CUcontext owner, int device, int *ret_devices);
/* Lets the context @user on @device use present and future memory of the context @owner; or
 * withdraws that right (NULL: any context). CUDA_ERROR_OUT_OF_MEMORY, or the driver's error. */
CUresult gcr_peer_add(CUcontext user, int device, CUcontext owner);
void gcr_peer_drop(CUcontext user, CUcontext owner);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * cuCtxEnablePeerAccess lets the contexts of one device use all memory that was allocated in a
 * context of another device, now and later. This does not apply to mapped memory, so access is
 * granted to each allocation of the library separately. The program's own mappings are left to the
 * program, as without the library.
 *
 * Locks: this file's lock, then the table's. The driver's cuMemSetAccess is called with this file's
 * lock held; that call does not wait for any thread of the program.
 */
#include <pthread.h>
#include <string.h>

#include "backend/preload/memory/allocation.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/base/listener.h"
#include "lib/protocol.h"

/* One right: the context @user may use memory that was allocated in @owner. */
struct peer {
	CUcontext user, owner;
	int device; /* of the user */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct peer *peers;
static size_t peer_count, peer_room;

void gcr_peer_hold(void)
{
	pthread_rwlock_rdlock(&lock);
}

void gcr_peer_let_go(void)
{
	pthread_rwlock_unlock(&lock);
}

static bool uses(int device, CUcontext owner)
{
	for (size_t i = 0; i < peer_count; i++)
		if (peers[i].device == device && peers[i].owner == owner)
			return true;
	return false;
}

size_t gcr_peer_devices(CUcontext owner, int device, int *ret_devices)
{
	size_t count = 0;

	for (int i = 0; i < GCR_GPUS_MAX; i++)
		if (i != device && uses(i, owner))
			ret_devices[count++] = i;
	return count;
}

/*
 * Finds the next allocation of @owner behind @address, and makes room for one more access right.
 * False: there are no more, or no memory.
 */
static bool next_of(CUcontext owner, CUdeviceptr *address, size_t *ret_bytes)
{
	struct gcr_mapping *mapping;

	GCR_TABLE_LOCK();
	for (mapping = gcr_table_next_mapping(*address); mapping;
	     mapping = gcr_table_next_mapping(mapping->start + mapping->bytes))
		if (mapping->allocation && mapping->allocation->context == owner &&
		    gcr_table_room_for_access(mapping, 1) == 0) {
			*address = mapping->start;
			*ret_bytes = mapping->bytes;
			return true;
		}
	return false;
}

static void note(CUdeviceptr start, const CUmemAccessDesc *access)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_mapping(start);

	if (mapping)
		gcr_table_set_access(mapping, access, 1);
}

/*
 * Changes the access of @device to all allocations of @owner. The lock is held for writing: no
 * allocation comes or goes.
 */
static CUresult change(CUcontext owner, int device, CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
				  .flags = flags};
	CUresult first = CUDA_SUCCESS;
	CUdeviceptr start = 0;
	size_t bytes;

	for (; next_of(owner, &start, &bytes); start += bytes) {
		CUresult result = GCR_REAL(cuMemSetAccess)(start, bytes, &access, 1);

		if (result == CUDA_SUCCESS)
			note(start, &access);
		else if (!first)
			first = result;
	}
	return first;
}

static void unlock(pthread_rwlock_t **held)
{
	pthread_rwlock_unlock(*held);
}

#define PEER_LOCK()                                        \
	_cleanup_(unlock) pthread_rwlock_t *held_ = &lock; \
	pthread_rwlock_wrlock(held_)

CUresult gcr_peer_add(CUcontext user, int device, CUcontext owner)
{
	CUresult result;

	PEER_LOCK();
	if (peer_count == peer_room) {
		size_t room = peer_room ? 2 * peer_room : 16;
		struct peer *longer = realloc(peers, room * sizeof(*peers));

		if (!longer)
			return CUDA_ERROR_OUT_OF_MEMORY;
		peers = longer;
		peer_room = room;
	}
	result = change(owner, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	if (result) {
		if (!uses(device, owner))
			change(owner, device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
		return result;
	}
	peers[peer_count++] = (struct peer){user, owner, device};
	return CUDA_SUCCESS;
}

void gcr_peer_drop(CUcontext user, CUcontext owner)
{
	PEER_LOCK();
	for (size_t i = 0; i < peer_count;) {
		struct peer peer = peers[i];

		if ((user && peer.user != user) || (owner && peer.owner != owner)) {
			i++;
			continue;
		}
		peers[i] = peers[--peer_count];
		if (!uses(peer.device, peer.owner))
			change(peer.owner, peer.device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	}
}

#ifndef GCR_HIP

GCR_OWN(cuCtxEnablePeerAccess);
CUresult gcr_own_cuCtxEnablePeerAccess(CUcontext owner, unsigned int flags)
{
	__typeof__(cuCtxEnablePeerAccess) *real = GCR_REAL(cuCtxEnablePeerAccess);
	CUcontext user;
	CUdevice device;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuCtxEnablePeerAccess);
	result = real(owner, flags);
	if (result)
		return result;
	result = gcr_green_current_owner(&user);
	if (!result)
		result = GCR_REAL(cuCtxGetDevice)(&device);
	if (!result)
		result = gcr_peer_add(user, device, gcr_green_owner(owner));
	if (result)
		GCR_REAL(cuCtxDisablePeerAccess)(owner);
	return result;
}

GCR_OWN(cuCtxDisablePeerAccess);
CUresult gcr_own_cuCtxDisablePeerAccess(CUcontext owner)
{
	__typeof__(cuCtxDisablePeerAccess) *real = GCR_REAL(cuCtxDisablePeerAccess);
	CUcontext user = NULL;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuCtxDisablePeerAccess);
	result = real(owner);
	if (result == CUDA_SUCCESS && gcr_green_current_owner(&user) == CUDA_SUCCESS && user)
		gcr_peer_drop(user, gcr_green_owner(owner));
	return result;
}

#endif

/* Drops all rights of the context and to its memory. */
static void context_gone(CUcontext context)
{
	gcr_peer_drop(context, NULL);
	gcr_peer_drop(NULL, context);
}

GCR_LISTEN(context_gone, context_gone);

static void forget(void)
{
	pthread_rwlock_init(&lock, NULL);
	peer_count = 0;
}

GCR_LISTEN(fork, forget);

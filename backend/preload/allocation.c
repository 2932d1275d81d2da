/* SPDX-License-Identifier: MIT */
/*
 * cuMemAlloc and its family, made with the virtual memory functions, so that the memory can be
 * handed over. The program sees what it would see without us.
 *
 * Every allocation has a companion, a real and small one of cuMemAlloc_v2. It is asked for first:
 * where the driver would refuse (no context, a stream capture, an error that sticks to the
 * context), it refuses with its own code. It belongs to the context as the memory would, is freed
 * first, with the driver's implicit synchronisation, and lends its attributes (attribute.c).
 */
#include "backend/preload/allocation.h"

#include <pthread.h>

#include "backend/preload/device.h"
#include "backend/preload/driver_error.h"
#include "backend/preload/gate.h"
#include "backend/preload/green.h"
#include "backend/preload/ipc.h"
#include "backend/preload/managed.h"
#include "backend/preload/memory.h"
#include "backend/preload/pool.h"
#include "backend/preload/shared_object.h"

/*
 * Above it. Up to 1 MiB the driver puts two or more into a 2 MiB block, and would need half the
 * VRAM that we need; above, each takes 2 MiB multiples as ours do, and as long: 57 us to allocate 2
 * MiB and 49 us to free it, ours 45 and 37, of which the companion takes 2 and 3 (H100, 580.159).
 */
#define THRESHOLD_BYTES (1ull << 20)

/* The smallest that the driver cuts from a block. */
#define COMPANION_BYTES 512

/* No GPU has as much; rounding up overflows above it. The driver refuses in its own words. */
#define MOST_BYTES (1ull << 50)

/* HIP keeps a thread's last error: so it has to refuse what we would refuse. */
#define INVALID_ADDRESS 512
#ifdef GCR_HIP
#define REFUSAL(asked) (asked)
#else
#define REFUSAL(asked) CUDA_ERROR_INVALID_VALUE
#endif

/* A row longer than this is not kept as a companion: it would waste too much. */
#define COMPANION_ROW_BYTES (64ull << 10)

bool gcr_allocation_companion(CUdeviceptr address, CUdeviceptr *ret_companion)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_allocation(address);

	if (!mapping)
		return false;
	*ret_companion = mapping->allocation->companion;
	return true;
}

CUresult gcr_allocation_new_companion(CUdeviceptr *ret_companion)
{
	return GCR_REAL(cuMemAlloc_v2)(ret_companion, COMPANION_BYTES);
}

bool gcr_memory_owns(unsigned long long address)
{
	GCR_TABLE_LOCK();

	return gcr_table_find_allocation(address) != NULL;
}

/* ---- making one ---- */

bool gcr_allocation_takes(size_t bytes)
{
	return bytes > THRESHOLD_BYTES && bytes <= MOST_BYTES && gcr_memory_converts();
}

/* What there is of an allocation that is being made, or taken apart. */
struct parts {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr start;
	size_t bytes;
	bool created, reserved, mapped;
};

static void take_apart(const struct parts *parts)
{
	if (parts->mapped)
		GCR_REAL(cuMemUnmap)(parts->start, parts->bytes);
	if (parts->created)
		GCR_REAL(cuMemRelease)(parts->handle);
	if (parts->reserved)
		GCR_REAL(cuMemAddressFree)(parts->start, parts->bytes);
}

/* Memory of the device, mapped but not accessible. */
static CUresult put_together(int device, bool rdma, size_t bytes, struct parts *parts)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.allocFlags = {.gpuDirectRDMACapable = rdma},
	};
	CUresult result;

	parts->bytes = bytes;
	result = GCR_REAL(cuMemCreate)(&parts->handle, bytes, &prop, 0);
	parts->created = result == CUDA_SUCCESS;
	if (!result) {
		result = GCR_REAL(cuMemAddressReserve)(&parts->start, bytes, 0, 0, 0);
		parts->reserved = result == CUDA_SUCCESS;
	}
	if (!result) {
		result = GCR_REAL(cuMemMap)(parts->start, bytes, 0, parts->handle, 0);
		parts->mapped = result == CUDA_SUCCESS;
	}
	return result;
}

/* The device's own contexts may use it, and those of its context's peers. */
static CUresult grant_access(CUcontext context, int device, struct gcr_mapping *mapping)
{
	CUmemAccessDesc access[1 + GCR_GPUS_MAX];
	int devices[GCR_GPUS_MAX];
	size_t count = gcr_peer_devices(context, device, devices);
	CUresult result;

	for (size_t i = 0; i <= count; i++)
		access[i] = (CUmemAccessDesc){
			.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
				     .id = i ? devices[i - 1] : device},
			.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
		};
	if (gcr_table_room_for_access(mapping, count + 1) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = GCR_REAL(cuMemSetAccess)(mapping->start, mapping->bytes, access, count + 1);
	if (!result)
		gcr_table_set_access(mapping, access, count + 1);
	return result;
}

/* Into the table; what it consists of belongs to the table then. */
static CUresult enter(const struct parts *parts, int device, struct gcr_mapping *mapping)
{
	struct gcr_memory *dead = NULL;
	bool entered;

	gcr_table_lock();
	mapping->memory =
		gcr_table_add_memory(GCR_MEMORY_ALLOCATED, device, parts->bytes, parts->handle);
	entered = mapping->memory && gcr_table_add_mapping(mapping, &dead) == 0;
	if (mapping->memory) {
		if (!entered)
			mapping->memory->real = 0;
		gcr_table_unref(mapping->memory, &dead);
	}
	gcr_table_unlock();
	gcr_table_release_dead(dead);
	return entered ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gcr_allocation_make(CUdeviceptr companion, size_t bytes, CUdeviceptr *ret_start)
{
	size_t mapped_bytes = (bytes + GCR_MEMORY_GRANULARITY - 1) & ~(GCR_MEMORY_GRANULARITY - 1);
	_cleanup_(gcr_table_free_mapping_cleanup) struct gcr_mapping *mapping = NULL;
	const struct gcr_device *device;
	struct parts parts = {0};
	CUcontext context = NULL;
	CUdevice ordinal;
	CUresult result;

	if (gcr_green_current_owner(&context) || GCR_REAL(cuCtxGetDevice)(&ordinal))
		return CUDA_ERROR_INVALID_CONTEXT;
	device = gcr_device_get(ordinal);
	if (!device || !device->exportable)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = put_together(ordinal, device->rdma, mapped_bytes, &parts);
	if (result) {
		take_apart(&parts);
		return result;
	}
	mapping = gcr_table_new_mapping(parts.start, mapped_bytes, 0);
	if (mapping)
		mapping->allocation = calloc(1, sizeof(*mapping->allocation));
	if (!mapping || !mapping->allocation) {
		take_apart(&parts);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*mapping->allocation =
		(struct gcr_allocation){.companion = companion, .context = context, .bytes = bytes};
	gcr_peer_hold();
	result = grant_access(context, ordinal, mapping);
	if (!result)
		result = enter(&parts, ordinal, mapping);
	gcr_peer_let_go();
	if (result) {
		take_apart(&parts);
		return result;
	}
	*ret_start = TAKE_PTR(mapping)->start;
	return CUDA_SUCCESS;
}

GCR_OWN(cuMemAlloc_v2);
CUresult gcr_own_cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	__typeof__(cuMemAlloc_v2) *real = GCR_WRAPPED(cuMemAlloc_v2);
	CUdeviceptr companion;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemAlloc_v2);
	if (!pointer || !gcr_allocation_takes(bytes))
		return real(pointer, bytes);
	result = real(&companion, COMPANION_BYTES);
	if (result)
		return result;
	if (gcr_allocation_make(companion, bytes, pointer) == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	/* The driver by itself: it finds room where we found none, or has the better words. */
	gcr_driver_forget_error();
	GCR_REAL(cuMemFree_v2)(companion);
	return real(pointer, bytes);
}

/* The pitch is the driver's secret: it says what it is for one row, which is kept as companion. */
GCR_OWN(cuMemAllocPitch_v2);
CUresult gcr_own_cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
				    size_t height, unsigned int element_bytes)
{
	__typeof__(cuMemAllocPitch_v2) *real = GCR_WRAPPED(cuMemAllocPitch_v2);
	size_t bytes, row_bytes;
	CUdeviceptr companion;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemAllocPitch_v2);
	if (!pointer || !pitch || !width || __builtin_mul_overflow(width, height, &bytes) ||
	    bytes <= THRESHOLD_BYTES || !gcr_memory_converts())
		return real(pointer, pitch, width, height, element_bytes);
	result = real(&companion, &row_bytes, width, 1, element_bytes);
	if (result == CUDA_SUCCESS && row_bytes > COMPANION_ROW_BYTES) {
		GCR_REAL(cuMemFree_v2)(companion);
		result = GCR_REAL(cuMemAlloc_v2)(&companion, COMPANION_BYTES);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return real(pointer, pitch, width, height, element_bytes);
	if (result)
		return result;
	if (!__builtin_mul_overflow(row_bytes, height, &bytes) && bytes <= MOST_BYTES &&
	    gcr_allocation_make(companion, bytes, pointer) == CUDA_SUCCESS) {
		*pitch = row_bytes;
		return CUDA_SUCCESS;
	}
	gcr_driver_forget_error();
	GCR_REAL(cuMemFree_v2)(companion);
	return real(pointer, pitch, width, height, element_bytes);
}

/* ---- freeing it ---- */

/* The companion has gone, and with it all work that could use the memory. */
static void finish(struct gcr_mapping *mapping)
{
	CUdeviceptr start = mapping->start;
	size_t bytes = mapping->bytes;
	struct gcr_memory *dead = NULL;

	/* Not while a peer is given access to it. */
	gcr_peer_hold();
	gcr_table_lock();
	gcr_table_drop_mapping(mapping, &dead);
	gcr_table_unlock();
	gcr_peer_let_go();
	GCR_REAL(cuMemUnmap)(start, bytes);
	gcr_table_release_dead(dead);
	GCR_REAL(cuMemAddressFree)(start, bytes);
}

/*
 * The allocation that begins at @address, marked so that nobody else frees it. NULL: there is none;
 * *ret_ours says whether the address is in one all the same.
 */
static struct gcr_mapping *begin_free(CUdeviceptr address, CUdeviceptr *ret_companion,
				      bool *ret_ours)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_allocation(address);

	*ret_ours = mapping != NULL;
	if (!mapping || mapping->start != address || mapping->allocation->freeing ||
	    mapping->memory->origin != GCR_MEMORY_ALLOCATED)
		return NULL;
	mapping->allocation->freeing = true;
	*ret_companion = mapping->allocation->companion;
	return mapping;
}

static void abandon_free(struct gcr_mapping *mapping)
{
	GCR_TABLE_LOCK();

	mapping->allocation->freeing = false;
}

/* The driver's own, of which others may have something. */
static CUresult free_drivers(__typeof__(cuMemFree_v2) *real, CUdeviceptr pointer)
{
	struct gcr_shared_end range = gcr_shared_begin_end(GCR_SHARED_RANGE, pointer);
	struct gcr_shared_end memory = gcr_shared_begin_end(GCR_SHARED_POOL_MEMORY, pointer);
	struct gcr_ipc_end exported = gcr_ipc_begin_end(pointer);
	struct gcr_pool *pool = gcr_pool_take(pointer);
	CUresult result = real(pointer);

	gcr_pool_freed(pool, pointer, result);
	gcr_shared_finish_end(&range, result);
	gcr_shared_finish_end(&memory, result);
	gcr_ipc_finish_end(&exported, result);
	return result;
}

static CUresult free_drivers_async(__typeof__(cuMemFreeAsync) *real, CUdeviceptr pointer,
				   CUstream stream)
{
	struct gcr_shared_end memory = gcr_shared_begin_end(GCR_SHARED_POOL_MEMORY, pointer);
	struct gcr_ipc_end exported = gcr_ipc_begin_end(pointer);
	struct gcr_pool *pool = gcr_pool_take(pointer);
	CUresult result = real(pointer, stream);

	gcr_pool_freed(pool, pointer, result);
	gcr_shared_finish_end(&memory, result);
	gcr_ipc_finish_end(&exported, result);
	return result;
}

GCR_OWN(cuMemFree_v2);
CUresult gcr_own_cuMemFree_v2(CUdeviceptr pointer)
{
	__typeof__(cuMemFree_v2) *real = GCR_WRAPPED(cuMemFree_v2);
	struct gcr_mapping *mapping;
	CUdeviceptr companion;
	CUresult result;
	int managed_result;
	bool ours;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemFree_v2);
	mapping = begin_free(pointer, &companion, &ours);
	if (!mapping && !ours && gcr_managed_free(pointer, &managed_result))
		return (CUresult)managed_result;
	if (!mapping)
		return ours ? REFUSAL(real(INVALID_ADDRESS)) : free_drivers(real, pointer);
	result = real(companion);
	if (result)
		abandon_free(mapping);
	else
		finish(mapping);
	return result;
}

/* The driver may free memory of cuMemAlloc in the order of a stream; we wait for that. */
static CUresult free_own_async(__typeof__(cuMemFreeAsync) *real,
			       __typeof__(cuStreamSynchronize) *synchronize,
			       struct gcr_mapping *mapping, CUdeviceptr companion, CUstream stream)
{
	CUresult result;
	GCR_GATE_NO_CANCEL();

	result = real(companion, stream);
	if (result) {
		abandon_free(mapping);
		return result;
	}
	synchronize(stream);
	finish(mapping);
	return CUDA_SUCCESS;
}

static CUresult free_async(__typeof__(cuMemFreeAsync) *real,
			   __typeof__(cuStreamSynchronize) *synchronize, CUdeviceptr pointer,
			   CUstream stream)
{
	struct gcr_mapping *mapping;
	CUdeviceptr companion;
	bool ours;

	mapping = begin_free(pointer, &companion, &ours);
	if (mapping)
		return free_own_async(real, synchronize, mapping, companion, stream);
	return ours ? CUDA_ERROR_INVALID_VALUE : free_drivers_async(real, pointer, stream);
}

GCR_OWN(cuMemFreeAsync);
CUresult gcr_own_cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	__typeof__(cuMemFreeAsync) *real = GCR_WRAPPED(cuMemFreeAsync);

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuMemFreeAsync);
	gcr_gate_submitted();
	return free_async(real, GCR_REAL(cuStreamSynchronize), pointer, stream);
}

#ifndef GCR_HIP
GCR_OWN_AS(cuMemFreeAsync_ptsz, cuMemFreeAsync);
CUresult gcr_own_cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	__typeof__(cuMemFreeAsync) *real = GCR_WRAPPED_AS(cuMemFreeAsync_ptsz, cuMemFreeAsync);
	__typeof__(cuStreamSynchronize) *synchronize =
		(__typeof__(cuStreamSynchronize) *)gcr_entry_real(
			GCR_ENTRY_cuStreamSynchronize_ptsz);

	if (!real || !synchronize)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuMemFreeAsync_ptsz);
	gcr_gate_submitted();
	return free_async(real, synchronize, pointer, stream);
}
#endif

/* Once less: the mapping, if it was the last time. */
static CUresult begin_close(CUdeviceptr pointer, struct gcr_mapping **ret_mapping)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_allocation(pointer);

	if (!mapping || mapping->start != pointer || mapping->allocation->freeing ||
	    mapping->memory->origin != GCR_MEMORY_OPENED)
		return CUDA_ERROR_INVALID_VALUE;
	if (--mapping->allocation->opened == 0) {
		mapping->allocation->freeing = true;
		*ret_mapping = mapping;
	}
	return CUDA_SUCCESS;
}

CUresult gcr_allocation_close(CUdeviceptr pointer)
{
	struct gcr_mapping *mapping = NULL;
	CUresult result = begin_close(pointer, &mapping);

	if (!mapping)
		return result;
	result = GCR_REAL(cuMemFree_v2)(mapping->allocation->companion);
	if (result == CUDA_SUCCESS) {
		finish(mapping);
		return CUDA_SUCCESS;
	}
	gcr_table_lock();
	mapping->allocation->opened = 1;
	mapping->allocation->freeing = false;
	gcr_table_unlock();
	return result;
}

/* The next allocation of @context at or behind @address, as begin_free(). */
static struct gcr_mapping *take_from(CUcontext context, CUdeviceptr *address)
{
	struct gcr_mapping *mapping;

	GCR_TABLE_LOCK();
	while ((mapping = gcr_table_next_mapping(*address))) {
		*address = mapping->start + mapping->bytes;
		if (!mapping->allocation || mapping->allocation->context != context ||
		    mapping->allocation->freeing)
			continue;
		mapping->allocation->freeing = true;
		return mapping;
	}
	return NULL;
}

/* The driver has freed the companions; the memory they stood for must go the same way. */
void gcr_memory_context_gone(void *context)
{
	struct gcr_mapping *mapping;
	CUdeviceptr address = 0;

	while ((mapping = take_from((CUcontext)context, &address)))
		finish(mapping);
	gcr_peer_context_gone((CUcontext)context);
	gcr_ipc_context_gone((CUcontext)context);
	gcr_shared_context_gone((CUcontext)context);
}

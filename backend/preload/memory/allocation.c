/* SPDX-License-Identifier: MIT */
/*
 * cuMemAlloc and its family, made with the virtual memory functions so that the memory can be
 * handed over. The program sees the same behaviour as without the library.
 *
 * Every allocation has a companion, a real and small allocation of cuMemAlloc_v2. The companion is
 * made first: where the driver would refuse the allocation (no context, a stream capture, an error
 * that sticks to the context), the driver refuses the companion with the proper error code. The
 * companion belongs to the same context, is freed before the memory, with the driver's implicit
 * synchronisation, and supplies attributes of the allocation (attribute.c).
 */
#include "backend/preload/memory/allocation.h"

#include <pthread.h>

#include "backend/preload/base/converts.h"
#include "backend/preload/memory/device.h"
#include "backend/preload/gate/driver_error.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/base/listener.h"

/*
 * The library makes allocations larger than this. Up to 1 MiB the driver puts two or more
 * allocations into one block of 2 MiB, so the library would need twice the VRAM. Above that the
 * driver's allocations take multiples of 2 MiB too, and take no less time: for 2 MiB 57 us to
 * allocate and 49 us to free; the library's take 45 us and 37 us, of which the companion takes 2 us
 * and 3 us (H100, 580.159).
 */
#define THRESHOLD_BYTES (1ull << 20)

/* The smallest size that the driver cuts from a block. */
#define COMPANION_BYTES 512

/*
 * Larger requests are left to the driver, which refuses them with its own error: no GPU has as much
 * memory, and rounding up would overflow at the end of the range.
 */
#define MOST_BYTES (1ull << 50)

/* A real row longer than this is not kept as the companion, since too much VRAM would be wasted. */
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

bool gcr_allocation_owns(CUdeviceptr address)
{
	GCR_TABLE_LOCK();

	return gcr_table_find_allocation(address) != NULL;
}

/* ---- making one ---- */

bool gcr_allocation_takes(size_t bytes)
{
	return bytes > THRESHOLD_BYTES && bytes <= MOST_BYTES && gcr_memory_converts();
}

/* The parts of an allocation that is being made or undone. */
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

/* Makes device memory and maps it, without access. On failure the caller calls take_apart(). */
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

/* Gives access to the GPU of @context and to those of the context's peers. */
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

/* Adds the allocation to the table, which then owns its parts. */
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
	/* Fall back to the driver, which may find memory elsewhere or return a better error. */
	gcr_driver_forget_error();
	GCR_REAL(cuMemFree_v2)(companion);
	return real(pointer, bytes);
}

/*
 * The program's cuMemAllocPitch. Only the driver knows the pitch: a real allocation of one row
 * gives it, and is the companion.
 */
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

void gcr_allocation_finish_free(struct gcr_mapping *mapping)
{
	CUdeviceptr start = mapping->start;
	size_t bytes = mapping->bytes;
	struct gcr_memory *dead = NULL;

	/* The peers' lock: no peer is being given access to the mapping. */
	gcr_peer_hold();
	gcr_table_lock();
	gcr_table_drop_mapping(mapping, &dead);
	gcr_table_unlock();
	gcr_peer_let_go();
	GCR_REAL(cuMemUnmap)(start, bytes);
	gcr_table_release_dead(dead);
	GCR_REAL(cuMemAddressFree)(start, bytes);
}

struct gcr_mapping *gcr_allocation_begin_free(CUdeviceptr address, CUdeviceptr *ret_companion,
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

void gcr_allocation_abandon_free(struct gcr_mapping *mapping)
{
	GCR_TABLE_LOCK();

	mapping->allocation->freeing = false;
}

/* Lowers the open count of memory from cuIpcOpenMemHandle. *@ret_mapping: set on the last close. */
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
		gcr_allocation_finish_free(mapping);
		return CUDA_SUCCESS;
	}
	gcr_table_lock();
	mapping->allocation->opened = 1;
	mapping->allocation->freeing = false;
	gcr_table_unlock();
	return result;
}

/* Marks the next allocation of @context from *@address on as being freed. NULL: no more. */
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

/* The driver has freed the companions with the context: frees the memory of these allocations. */
static void context_gone(CUcontext context)
{
	struct gcr_mapping *mapping;
	CUdeviceptr address = 0;

	while ((mapping = take_from(context, &address)))
		gcr_allocation_finish_free(mapping);
}

GCR_LISTEN(context_gone, context_gone);

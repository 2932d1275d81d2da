/* SPDX-License-Identifier: MIT */
/*
 * HIP's functions that allocate device memory and have no counterpart in CUDA's driver; see
 * allocation.c. Memory that is requested with flags (fine-grained, uncached, for signals) is left
 * to HIP: memory that can be handed over has no such kinds.
 */
#include "backend/preload/memory/allocation.h"

#include "backend/preload/base/converts.h"
#include "backend/preload/memory/device.h"
#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/memory/memory.h"
#include "backend/rocm/hip_api.h"

/* A real row longer than this is not kept as the companion, since too much VRAM would be wasted. */
#define COMPANION_ROW_BYTES (64ull << 10)

GCR_OWN(hipExtMallocWithFlags);
hipError_t gcr_own_hipExtMallocWithFlags(void **pointer, size_t bytes, unsigned int flags)
{
	__typeof__(hipExtMallocWithFlags) *real = GCR_WRAPPED(hipExtMallocWithFlags);
	CUdeviceptr companion, start;
	CUresult result;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE_WHOLE(hipExtMallocWithFlags);
	if (!pointer || flags != hipDeviceMallocDefault || !gcr_allocation_takes(bytes))
		return real(pointer, bytes, flags);
	result = gcr_allocation_new_companion(&companion);
	if (result)
		return (hipError_t)result;
	if (gcr_allocation_make(companion, bytes, &start) == CUDA_SUCCESS) {
		*pointer = (void *)(uintptr_t)start;
		return hipSuccess;
	}
	gcr_driver_forget_error();
	GCR_REAL(cuMemFree_v2)(companion);
	return real(pointer, bytes, flags);
}

/*
 * Memory is handed over in pieces of 2 MiB. HIP 6 reports a granularity of 4 KiB, and memory that a
 * program makes in other sizes could not be taken off the GPU.
 */
GCR_OWN(hipMemGetAllocationGranularity);
hipError_t gcr_own_hipMemGetAllocationGranularity(size_t *bytes, const hipMemAllocationProp *prop,
						  hipMemAllocationGranularity_flags option)
{
	__typeof__(hipMemGetAllocationGranularity) *real =
		GCR_WRAPPED(hipMemGetAllocationGranularity);
	const struct gcr_device *device;
	hipError_t result;

	if (!real)
		return hipErrorNotFound;
	result = real(bytes, prop, option);
	if (result != hipSuccess || *bytes >= GCR_MEMORY_GRANULARITY || !gcr_memory_converts())
		return result;
	device = gcr_device_get(prop->location.id);
	if (device && device->exportable)
		*bytes = GCR_MEMORY_GRANULARITY;
	return result;
}

/* ---- rows ---- */

/*
 * Allocates @rows rows of @pitch bytes. Takes @row, real memory of one row, as the companion, or
 * frees it. Returns NULL on failure.
 */
static void *make_rows(void *row, size_t pitch, size_t rows)
{
	CUdeviceptr companion = (CUdeviceptr)(uintptr_t)row, start;
	size_t bytes;

	if (pitch > COMPANION_ROW_BYTES) {
		GCR_REAL(cuMemFree_v2)(companion);
		if (gcr_allocation_new_companion(&companion))
			return NULL;
	}
	if (!__builtin_mul_overflow(pitch, rows, &bytes) && gcr_allocation_takes(bytes) &&
	    gcr_allocation_make(companion, bytes, &start) == CUDA_SUCCESS)
		return (void *)(uintptr_t)start;
	gcr_driver_forget_error();
	GCR_REAL(cuMemFree_v2)(companion);
	return NULL;
}

/* Is an allocation of such rows large enough for the library? The pitch is not known yet. */
static bool takes_rows(size_t width, size_t rows)
{
	size_t bytes;

	return !__builtin_mul_overflow(width, rows, &bytes) && gcr_allocation_takes(bytes);
}

GCR_OWN(hipMallocPitch);
hipError_t gcr_own_hipMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	__typeof__(hipMallocPitch) *real = GCR_WRAPPED(hipMallocPitch);
	size_t row_pitch;
	void *row, *start;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE_WHOLE(hipMallocPitch);
	if (!pointer || !pitch || !takes_rows(width, height) ||
	    real(&row, &row_pitch, width, 1) != hipSuccess)
		return real(pointer, pitch, width, height);
	start = make_rows(row, row_pitch, height);
	if (!start)
		return real(pointer, pitch, width, height);
	*pointer = start;
	*pitch = row_pitch;
	return hipSuccess;
}

/* The layouts of hipExtent and hipPitchedPtr. */
struct extent {
	size_t width, height, depth;
};
struct pitched {
	void *pointer;
	size_t pitch, width, height;
};
hipError_t malloc_3d(struct pitched *pitched, struct extent extent);

GCR_OWN_AS(hipMalloc3D, malloc_3d);
hipError_t gcr_own_hipMalloc3D(struct pitched *pitched, struct extent extent)
{
	__typeof__(malloc_3d) *real = GCR_WRAPPED_AS(hipMalloc3D, malloc_3d);
	const struct extent one = {.width = extent.width, .height = 1, .depth = 1};
	struct pitched row;
	size_t rows;
	void *start;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE_WHOLE(hipMalloc3D);
	if (!pitched || __builtin_mul_overflow(extent.height, extent.depth, &rows) ||
	    !takes_rows(extent.width, rows) || real(&row, one) != hipSuccess)
		return real(pitched, extent);
	start = make_rows(row.pointer, row.pitch, rows);
	if (!start)
		return real(pitched, extent);
	*pitched = (struct pitched){.pointer = start,
				    .pitch = row.pitch,
				    .width = extent.width,
				    .height = extent.height};
	return hipSuccess;
}

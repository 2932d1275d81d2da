/* SPDX-License-Identifier: MIT */
/* cuMemFree and its family, for the library's allocations and for the driver's own memory. */
#include <stdbool.h>

#include "backend/preload/memory/allocation.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/ipc/ipc.h"
#include "backend/preload/managed/managed.h"
#include "backend/preload/memory/pool.h"
#include "backend/preload/memory/shared_object.h"
#include "lib/cleanup.h"

/*
 * The result of a call that the library refuses. HIP keeps each thread's last error, so HIP has to
 * be given a call that it refuses, whose result is @asked.
 */
#define INVALID_ADDRESS 512
#ifdef GCR_HIP
#define REFUSAL(asked) (asked)
#else
#define REFUSAL(asked) CUDA_ERROR_INVALID_VALUE
#endif

/* Frees memory of the driver's own, and updates the counts of memory that is shared. */
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
	mapping = gcr_allocation_begin_free(pointer, &companion, &ours);
	if (!mapping && !ours && gcr_managed_free(pointer, &managed_result))
		return (CUresult)managed_result;
	if (!mapping)
		return ours ? REFUSAL(real(INVALID_ADDRESS)) : free_drivers(real, pointer);
	result = real(companion);
	if (result)
		gcr_allocation_abandon_free(mapping);
	else
		gcr_allocation_finish_free(mapping);
	return result;
}

/* The driver may free cuMemAlloc's memory in stream order; here the library waits for the
 * stream. */
static CUresult free_own_async(__typeof__(cuMemFreeAsync) *real,
			       __typeof__(cuStreamSynchronize) *synchronize,
			       struct gcr_mapping *mapping, CUdeviceptr companion, CUstream stream)
{
	CUresult result;
	GCR_GATE_NO_CANCEL();

	result = real(companion, stream);
	if (result) {
		gcr_allocation_abandon_free(mapping);
		return result;
	}
	synchronize(stream);
	gcr_allocation_finish_free(mapping);
	return CUDA_SUCCESS;
}

static CUresult free_async(__typeof__(cuMemFreeAsync) *real,
			   __typeof__(cuStreamSynchronize) *synchronize, CUdeviceptr pointer,
			   CUstream stream)
{
	struct gcr_mapping *mapping;
	CUdeviceptr companion;
	bool ours;

	mapping = gcr_allocation_begin_free(pointer, &companion, &ours);
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

/* SPDX-License-Identifier: MIT */
/* Shared by the adapters' files: the HIP functions that they call, and the adapters. */
#ifndef GCR_ROCM_ADAPT_PRIVATE_H
#define GCR_ROCM_ADAPT_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"

/* HIP functions that adapters call. */
#define GCR_HIP_USED(X)                    \
	X(hipDeviceDisablePeerAccess)      \
	X(hipDeviceEnablePeerAccess)       \
	X(hipDeviceGetAttribute)           \
	X(hipDeviceGetLimit)               \
	X(hipDeviceGetPCIBusId)            \
	X(hipDeviceGetUuid)                \
	X(hipDeviceSetLimit)               \
	X(hipGetDevice)                    \
	X(hipGetDeviceCount)               \
	X(hipGetErrorName)                 \
	X(hipGetErrorString)               \
	X(hipHostMalloc)                   \
	X(hipHostRegister)                 \
	X(hipMemAdvise)                    \
	X(hipMemCreate)                    \
	X(hipMemExportToShareableHandle)   \
	X(hipMemGetAddressRange)           \
	X(hipMemGetAllocationGranularity)  \
	X(hipMemImportFromShareableHandle) \
	X(hipMemMap)                       \
	X(hipMemPrefetchAsync)             \
	X(hipMemSetAccess)                 \
	X(hipMemUnmap)                     \
	X(hipMemcpyPeer)                   \
	X(hipMemcpyPeerAsync)              \
	X(hipPointerGetAttribute)          \
	X(hipRuntimeGetVersion)            \
	X(hipSetDevice)                    \
	X(hipStreamGetDevice)

enum gcr_hip_slot {
#define SLOT(name) GCR_HIP_SLOT_##name,
	GCR_HIP_USED(SLOT)
#undef SLOT
		GCR_HIP_SLOTS,
};

/* Addresses of the functions, by slot, from the last search. */
extern _Atomic(void *) gcr_hip_slots[GCR_HIP_SLOTS];

/* The function, or NULL if the library lacks it. Not for functions that have an adapter. */
#define HIP(name)                                                                      \
	((__typeof__(name) *)atomic_load_explicit(&gcr_hip_slots[GCR_HIP_SLOT_##name], \
						  memory_order_relaxed))

/*
 * Converts results that HIP's runtime numbers on its own to those of CUDA's driver. All others are
 * equal.
 */
CUresult gcr_hip_result(hipError_t error);
/*
 * Is the HIP in use at least of @version (GCR_HIP_VERSION)? Also correct for a HIP older than 5.2,
 * whose versions have another format.
 */
bool gcr_hip_is_since(int version);

/* The adapters, each with the type of its function. */
#define ALIKE(cuda, hip)
#define ADAPTED(cuda, hip) __typeof__(cuda) gcr_hip_##cuda;
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED

#endif

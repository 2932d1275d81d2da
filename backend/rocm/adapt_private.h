/* SPDX-License-Identifier: MIT */
/* What the files of adapters share: the functions of HIP that they call, and themselves. */
#ifndef GCR_ROCM_ADAPT_PRIVATE_H
#define GCR_ROCM_ADAPT_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"

/* Functions of HIP that adapters call. */
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

/* By slot, as they were found last. */
extern _Atomic(void *) gcr_hip_slots[GCR_HIP_SLOTS];

/* NULL if the library does not have it: not that of which there is an adapter. */
#define HIP(name)                                                                      \
	((__typeof__(name) *)atomic_load_explicit(&gcr_hip_slots[GCR_HIP_SLOT_##name], \
						  memory_order_relaxed))

/* HIP's own numbers, of its runtime, in those of CUDA's driver. All others are the same. */
CUresult gcr_hip_result(hipError_t error);
/* Of a HIP older than 5.2, whose versions count otherwise, too. */
bool gcr_hip_is_since(int version);

/* The adapters, each of its function's type. */
#define ALIKE(cuda, hip)
#define ADAPTED(cuda, hip) __typeof__(cuda) gcr_hip_##cuda;
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver as the helper programs use it: libcuda.so.1 is opened at run time, so that no
 * program is linked with it, and its result codes are translated to errno and a message.
 *
 * Compiled with GCR_HIP this is HIP, libamdhip64.so: backend/rocm/adapt.h finds a function for each
 * of the names here. Messages have HIP's names then.
 */
#ifndef GCR_CUDA_DRIVER_H
#define GCR_CUDA_DRIVER_H

#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"
#include "lib/protocol.h"

/* Every entry point by its exported, versioned name. */
#define GCR_DRIVER_CALLS(X)                       \
	X(cuInit)                                 \
	X(cuDriverGetVersion)                     \
	X(cuGetErrorName)                         \
	X(cuGetErrorString)                       \
	X(cuDeviceGetCount)                       \
	X(cuDeviceGet)                            \
	X(cuDeviceGetName)                        \
	X(cuDeviceGetUuid_v2)                     \
	X(cuDeviceTotalMem_v2)                    \
	X(cuDeviceGetAttribute)                   \
	X(cuDeviceGetPCIBusId)                    \
	X(cuDevicePrimaryCtxRetain)               \
	X(cuDevicePrimaryCtxRelease_v2)           \
	X(cuCtxSetCurrent)                        \
	X(cuMemGetInfo_v2)                        \
	X(cuMemHostAlloc)                         \
	X(cuMemFreeHost)                          \
	X(cuMemHostRegister_v2)                   \
	X(cuMemHostUnregister)                    \
	X(cuMemcpyDtoHAsync_v2)                   \
	X(cuMemcpyHtoDAsync_v2)                   \
	X(cuMemsetD8Async)                        \
	X(cuStreamCreate)                         \
	X(cuStreamSynchronize)                    \
	X(cuStreamDestroy_v2)                     \
	X(cuEventCreate)                          \
	X(cuEventRecord)                          \
	X(cuEventQuery)                           \
	X(cuEventSynchronize)                     \
	X(cuEventDestroy_v2)                      \
	X(cuModuleLoadData)                       \
	X(cuModuleGetFunction)                    \
	X(cuModuleUnload)                         \
	X(cuLaunchKernel)                         \
	X(cuMemAddressReserve)                    \
	X(cuMemAddressFree)                       \
	X(cuMemGetAllocationGranularity)          \
	X(cuMemGetAllocationPropertiesFromHandle) \
	X(cuMemCreate)                            \
	X(cuMemRelease)                           \
	X(cuMemMap)                               \
	X(cuMemUnmap)                             \
	X(cuMemSetAccess)                         \
	X(cuMemExportToShareableHandle)           \
	X(cuMemImportFromShareableHandle)

/* NULL with drivers before 570, which lack these. HIP has none. */
#ifdef GCR_HIP
#define GCR_DRIVER_CHECKPOINT_CALLS(X)
#else
#define GCR_DRIVER_CHECKPOINT_CALLS(X)   \
	X(cuCheckpointProcessGetState)   \
	X(cuCheckpointProcessLock)       \
	X(cuCheckpointProcessCheckpoint) \
	X(cuCheckpointProcessRestore)    \
	X(cuCheckpointProcessUnlock)
#endif

/* The driver's functions that were found. Constant after gcr_driver_open(). */
struct gcr_driver {
#define GCR_DRIVER_FIELD(name) __typeof__(name) *name;
	GCR_DRIVER_CALLS(GCR_DRIVER_FIELD)
	GCR_DRIVER_CHECKPOINT_CALLS(GCR_DRIVER_FIELD)
#undef GCR_DRIVER_FIELD
	int api_version; /* 1000 * major + 10 * minor */
#ifdef GCR_HIP
	void *library;
#endif
};

/*
 * Loads the driver and initialises it; creates no context and uses no VRAM. The driver stays loaded
 * until the process ends. Errors, with a message: -ENODEV no driver or no GPU, -EOPNOTSUPP the
 * driver lacks an entry point that every helper needs, or an error of cuInit.
 */
int gcr_driver_open(struct gcr_driver *ret_driver, struct gcr_error *error);

#ifdef GCR_HIP
/*
 * The architecture that code for @device must be compiled for: "gfx90a", without the settings that
 * may follow in HIP (":sramecc+:xnack-"). -errno: HIP does not report it.
 */
#define GCR_DRIVER_ARCHITECTURE_BYTES 64
int gcr_driver_architecture(const struct gcr_driver *driver, CUdevice device,
			    char ret_name[GCR_DRIVER_ARCHITECTURE_BYTES]);
#else
/* Does the driver have the checkpoint calls? 0, or -EOPNOTSUPP with a message. */
int gcr_driver_check_checkpoint(const struct gcr_driver *driver, struct gcr_error *error);
#endif

/*
 * Returns 0 if @result is success; else the matching -errno, with the message "CALL: NAME (NUMBER):
 * description". OUT_OF_MEMORY is ENOMEM, NOT_SUPPORTED EOPNOTSUPP, NO_DEVICE ENODEV, NOT_READY
 * ETIMEDOUT, ILLEGAL_STATE EBUSY, NOT_PERMITTED EACCES, INVALID_VALUE EINVAL, and a result without
 * an errno is EIO.
 */
int gcr_driver_check(const struct gcr_driver *driver, CUresult result, const char *call,
		     struct gcr_error *error);

/* Finds the device with this UUID; -ENODEV if the driver does not show one. */
int gcr_driver_find(const struct gcr_driver *driver, const uint8_t uuid[GCR_UUID_BYTES],
		    CUdevice *ret_device, struct gcr_error *error);

#endif

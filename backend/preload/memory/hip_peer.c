/* SPDX-License-Identifier: MIT */
/* Peers in HIP: the functions name GPUs, which are contexts there. */
#include "backend/preload/memory/allocation.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"

GCR_OWN(hipDeviceEnablePeerAccess);
hipError_t gcr_own_hipDeviceEnablePeerAccess(int peer, unsigned int flags)
{
	__typeof__(hipDeviceEnablePeerAccess) *real = GCR_WRAPPED(hipDeviceEnablePeerAccess);
	CUresult peer_result;
	hipError_t result;
	CUdevice device;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE(hipDeviceEnablePeerAccess);
	result = real(peer, flags);
	if (result)
		return result;
	peer_result = GCR_REAL(cuCtxGetDevice)(&device);
	if (!peer_result)
		peer_result = gcr_peer_add(gcr_hip_context(device), device, gcr_hip_context(peer));
	if (peer_result)
		GCR_WRAPPED(hipDeviceDisablePeerAccess)(peer);
	return (hipError_t)peer_result;
}

GCR_OWN(hipDeviceDisablePeerAccess);
hipError_t gcr_own_hipDeviceDisablePeerAccess(int peer)
{
	__typeof__(hipDeviceDisablePeerAccess) *real = GCR_WRAPPED(hipDeviceDisablePeerAccess);
	hipError_t result;
	CUdevice device;

	if (!real)
		return hipErrorNotFound;
	GCR_GATE(hipDeviceDisablePeerAccess);
	result = real(peer);
	if (result == hipSuccess && GCR_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
		gcr_peer_drop(gcr_hip_context(device), gcr_hip_context(peer));
	return result;
}

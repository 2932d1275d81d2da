/* SPDX-License-Identifier: MIT */
/*
 * The functions that CUDA 13.1 to 13.4 added to the driver API, as far as this project calls or
 * simulates them: facts of NVIDIA's documentation. They are separate from cuda_api.h, which is
 * compared with CUDA 13.0. Types that are only passed on by address are not described.
 */
#ifndef GCR_CUDA_API_LATER_H
#define GCR_CUDA_API_LATER_H

#include "backend/cuda/cuda_api.h"

/* CUDA 13.1: the caller names the device of a binding. */
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
			       CUmemGenericAllocationHandle memHandle, size_t memOffset,
			       size_t size, unsigned long long flags);
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev,
				size_t mcOffset, CUdeviceptr memptr, size_t size,
				unsigned long long flags);

/* CUDA 13.2. */
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode);
CUresult cuStreamBeginCaptureToCig(CUstream hStream,
				   CUstreamCigCaptureParams *streamCigCaptureParams);
CUresult cuStreamEndCaptureToCig(CUstream hStream);

/* CUDA 13.3. */
typedef void (*CUgraphRecaptureCallback)(void);
CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
				       CUgraphRecaptureCallback callbackFunc, void *userData);

typedef cuuint32_t CUlogicalEndpointId;
typedef unsigned int CUlogicalEndpointIpcHandleType;
typedef struct CUlogicalEndpointProp_st CUlogicalEndpointProp;
CUresult cuLogicalEndpointCreate(CUlogicalEndpointId leId, const CUlogicalEndpointProp *prop);
CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId leId);
CUresult cuLogicalEndpointImport(CUlogicalEndpointId leId, const void *handle,
				 CUlogicalEndpointIpcHandleType handleType);
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
				  CUmemGenericAllocationHandle memHandle, cuuint64_t memOffset,
				  cuuint64_t size, unsigned long long flags);

#endif

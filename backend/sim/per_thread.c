/* SPDX-License-Identifier: MIT */
/* The _ptsz and _ptds variants, in which stream 0 is the calling thread's own stream. */
#include "backend/sim/sim.h"

#define PER_THREAD(name, suffix, parameters, arguments) \
	CUresult name##suffix parameters;               \
	CUresult name##suffix parameters                \
	{                                               \
		CUresult result;                        \
                                                        \
		per_thread_default = true;              \
		result = name arguments;                \
		per_thread_default = false;             \
		return result;                          \
	}

PER_THREAD(cuEventRecordWithFlags, _ptsz, (CUevent hEvent, CUstream hStream, unsigned int flags),
	   (hEvent, hStream, flags))
PER_THREAD(cuEventRecord, _ptsz, (CUevent hEvent, CUstream hStream), (hEvent, hStream))
PER_THREAD(cuGraphInstantiateWithParams, _ptsz,
	   (CUgraphExec * phGraphExec, CUgraph hGraph,
	    CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams),
	   (phGraphExec, hGraph, instantiateParams))
PER_THREAD(cuGraphLaunch, _ptsz, (CUgraphExec hGraph, CUstream hStream), (hGraph, hStream))
PER_THREAD(cuGraphUpload, _ptsz, (CUgraphExec hGraph, CUstream hStream), (hGraph, hStream))
PER_THREAD(cuLaunchCooperativeKernel, _ptsz,
	   (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	    unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	    unsigned int sharedMemBytes, CUstream hStream, void **kernelParams),
	   (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
	    hStream, kernelParams))
PER_THREAD(cuLaunchHostFunc, _ptsz, (CUstream hStream, CUhostFn fn, void *userData),
	   (hStream, fn, userData))
PER_THREAD(cuLaunchKernelEx, _ptsz,
	   (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
	   (config, f, kernelParams, extra))
PER_THREAD(cuLaunchKernel, _ptsz,
	   (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	    unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	    unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
	   (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
	    hStream, kernelParams, extra))
PER_THREAD(cuMemAllocAsync, _ptsz, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
	   (dptr, bytesize, hStream))
PER_THREAD(cuMemAllocFromPoolAsync, _ptsz,
	   (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
	   (dptr, bytesize, pool, hStream))
PER_THREAD(cuMemFreeAsync, _ptsz, (CUdeviceptr dptr, CUstream hStream), (dptr, hStream))
PER_THREAD(cuMemPrefetchAsync, _ptsz,
	   (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
	   (devPtr, count, dstDevice, hStream))
PER_THREAD(cuMemPrefetchAsync_v2, _ptsz,
	   (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
	    CUstream hStream),
	   (devPtr, count, location, flags, hStream))
PER_THREAD(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *pCopy, CUstream hStream),
	   (pCopy, hStream))
PER_THREAD(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *pCopy), (pCopy))
PER_THREAD(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *pCopy), (pCopy))
PER_THREAD(cuMemcpyAsync, _ptsz,
	   (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
	   (dst, src, ByteCount, hStream))
PER_THREAD(cuMemcpyDtoDAsync_v2, _ptsz,
	   (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
	   (dstDevice, srcDevice, ByteCount, hStream))
PER_THREAD(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
	   (dstDevice, srcDevice, ByteCount))
PER_THREAD(cuMemcpyDtoHAsync_v2, _ptsz,
	   (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
	   (dstHost, srcDevice, ByteCount, hStream))
PER_THREAD(cuMemcpyDtoH_v2, _ptds, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
	   (dstHost, srcDevice, ByteCount))
PER_THREAD(cuMemcpyHtoDAsync_v2, _ptsz,
	   (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
	   (dstDevice, srcHost, ByteCount, hStream))
PER_THREAD(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
	   (dstDevice, srcHost, ByteCount))
PER_THREAD(cuMemcpyPeerAsync, _ptsz,
	   (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
	    CUcontext srcContext, size_t ByteCount, CUstream hStream),
	   (dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream))
PER_THREAD(cuMemcpyPeer, _ptds,
	   (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
	    CUcontext srcContext, size_t ByteCount),
	   (dstDevice, dstContext, srcDevice, srcContext, ByteCount))
PER_THREAD(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
	   (dst, src, ByteCount))
PER_THREAD(cuMemsetD16Async, _ptsz,
	   (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream),
	   (dstDevice, us, N, hStream))
PER_THREAD(cuMemsetD16_v2, _ptds, (CUdeviceptr dstDevice, unsigned short us, size_t N),
	   (dstDevice, us, N))
PER_THREAD(cuMemsetD2D32Async, _ptsz,
	   (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
	    CUstream hStream),
	   (dstDevice, dstPitch, ui, Width, Height, hStream))
PER_THREAD(cuMemsetD2D32_v2, _ptds,
	   (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height),
	   (dstDevice, dstPitch, ui, Width, Height))
PER_THREAD(cuMemsetD2D8Async, _ptsz,
	   (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
	    CUstream hStream),
	   (dstDevice, dstPitch, uc, Width, Height, hStream))
PER_THREAD(cuMemsetD2D8_v2, _ptds,
	   (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height),
	   (dstDevice, dstPitch, uc, Width, Height))
PER_THREAD(cuMemsetD32Async, _ptsz,
	   (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream),
	   (dstDevice, ui, N, hStream))
PER_THREAD(cuMemsetD32_v2, _ptds, (CUdeviceptr dstDevice, unsigned int ui, size_t N),
	   (dstDevice, ui, N))
PER_THREAD(cuMemsetD8Async, _ptsz,
	   (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream),
	   (dstDevice, uc, N, hStream))
PER_THREAD(cuMemsetD8_v2, _ptds, (CUdeviceptr dstDevice, unsigned char uc, size_t N),
	   (dstDevice, uc, N))
PER_THREAD(cuStreamAddCallback, _ptsz,
	   (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
	   (hStream, callback, userData, flags))
PER_THREAD(cuStreamAttachMemAsync, _ptsz,
	   (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
	   (hStream, dptr, length, flags))
PER_THREAD(cuStreamBeginCapture, _ptsz, (CUstream hStream), (hStream))
PER_THREAD(cuStreamBeginCapture_v2, _ptsz, (CUstream hStream, CUstreamCaptureMode mode),
	   (hStream, mode))
PER_THREAD(cuStreamEndCapture, _ptsz, (CUstream hStream, CUgraph *phGraph), (hStream, phGraph))
PER_THREAD(cuStreamGetCaptureInfo, _ptsz,
	   (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
	   (hStream, captureStatus_out, id_out))
PER_THREAD(cuStreamGetCaptureInfo_v2, _ptsz,
	   (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
	    CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out),
	   (hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out))
PER_THREAD(cuStreamGetCaptureInfo_v3, _ptsz,
	   (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
	    CUgraph *graph_out, const CUgraphNode **dependencies_out,
	    const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out),
	   (hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
	    numDependencies_out))
PER_THREAD(cuStreamGetCtx, _ptsz, (CUstream hStream, CUcontext *pctx), (hStream, pctx))
PER_THREAD(cuStreamGetDevice, _ptsz, (CUstream hStream, CUdevice *device), (hStream, device))
PER_THREAD(cuStreamGetFlags, _ptsz, (CUstream hStream, unsigned int *flags), (hStream, flags))
PER_THREAD(cuStreamGetId, _ptsz, (CUstream hStream, unsigned long long *streamId),
	   (hStream, streamId))
PER_THREAD(cuStreamGetPriority, _ptsz, (CUstream hStream, int *priority), (hStream, priority))
PER_THREAD(cuStreamIsCapturing, _ptsz, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
	   (hStream, captureStatus))
PER_THREAD(cuStreamQuery, _ptsz, (CUstream hStream), (hStream))
PER_THREAD(cuStreamSynchronize, _ptsz, (CUstream hStream), (hStream))
PER_THREAD(cuStreamWaitEvent, _ptsz, (CUstream hStream, CUevent hEvent, unsigned int Flags),
	   (hStream, hEvent, Flags))
PER_THREAD(cuStreamWaitValue32_v2, _ptsz,
	   (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
	   (stream, addr, value, flags))
PER_THREAD(cuStreamWaitValue64_v2, _ptsz,
	   (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
	   (stream, addr, value, flags))
PER_THREAD(cuStreamWriteValue32_v2, _ptsz,
	   (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
	   (stream, addr, value, flags))
PER_THREAD(cuStreamWriteValue64_v2, _ptsz,
	   (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
	   (stream, addr, value, flags))

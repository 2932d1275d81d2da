/* SPDX-License-Identifier: MIT */
/*
 * A fake libcuda.so.1 with peculiarities that the simulator lacks: functions that no header
 * declares, and functions that cuGetProcAddress returns but the library does not export. Each
 * function calls back into the test.
 */
#include <stddef.h>
#include <string.h>

#include "backend/cuda/cuda_api_later.h"

typedef void look_function(void);

CUresult cuInit(unsigned int flags)
{
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 99000;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
	((look_function *)stream)();
	return CUDA_SUCCESS;
}

/*
 * A function newer than any table, with more integer and floating-point arguments than fit in
 * registers.
 */
double cuFutureCall(look_function *look, int one, double half, long two, float quarter, void *three,
		    int four, int five, int six, int seven, int eight, double more);
double cuFutureCall(look_function *look, int one, double half, long two, float quarter, void *three,
		    int four, int five, int six, int seven, int eight, double more)
{
	look();
	return one + half + two + quarter + (double)(intptr_t)three + four + five + six + seven +
	       eight + more;
}

static CUresult hidden_memset(CUdeviceptr look, unsigned char byte, size_t size)
{
	((look_function *)(uintptr_t)look)();
	return byte == 3 && size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult future_query(CUstream stream)
{
	((look_function *)stream)();
	return CUDA_ERROR_NOT_READY;
}

/*
 * Functions of CUDA 13.1 and later. Each reports whether the arguments are those the test passes.
 */

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
			       size_t offset, CUmemGenericAllocationHandle handle,
			       size_t memory_offset, size_t bytes, unsigned long long flags)
{
	return multicast == 0x100000001 && device == 2 && offset == 3 && handle == 0x100000004 &&
			       memory_offset == 5 && bytes == 6 && flags == 7
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
				size_t offset, CUdeviceptr pointer, size_t bytes,
				unsigned long long flags)
{
	return multicast == 0x100000001 && device == 2 && offset == 3 && pointer == 4 &&
			       bytes == 5 && flags == 6
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *prop)
{
	return id == 1 && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id)
{
	return id == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle,
				 CUlogicalEndpointIpcHandleType type)
{
	return id == 1 && handle && type == 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
				  CUmemGenericAllocationHandle handle, cuuint64_t memory_offset,
				  cuuint64_t bytes, unsigned long long flags)
{
	return id == 1 && device == 2 && offset == 3 && handle == 0x100000004 &&
			       memory_offset == 5 && bytes == 6 && flags == 7
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned int mode)
{
	if (!stream || mode != 3)
		return CUDA_ERROR_INVALID_VALUE;
	function(data);
	return CUDA_SUCCESS;
}

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
				     void *attributes, CUstream stream);
CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
				     void *attributes, CUstream stream)
{
	return to == 1 && from == 2 && bytes == 3 && attributes == (void *)4 &&
			       stream == (CUstream)5
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
				       CUgraphRecaptureCallback function, void *data)
{
	return mode == CU_STREAM_CAPTURE_MODE_RELAXED && graph == (CUgraph)3 && function &&
			       data == (void *)5
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *parameters)
{
	return parameters == (CUstreamCigCaptureParams *)2 ? CUDA_SUCCESS
							   : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Shareable memory pools. Pools and the allocations from them are consecutive numbers. */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	static uintptr_t last;

	*pool = (CUmemoryPool)(++last * 0x1000);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
				 CUstream stream)
{
	*pointer = (uintptr_t)pool + bytes;
	return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	return pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
					  CUmemAllocationHandleType type, unsigned long long flags)
{
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
					    CUmemAllocationHandleType type,
					    unsigned long long flags)
{
	return cuMemPoolCreate(pool, NULL);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
				CUmemPoolPtrExportData *data)
{
	*pointer = (uintptr_t)pool + 0x800;
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	*function = NULL;
	if (strcmp(symbol, "cuStreamQuery") == 0)
		*function = version >= 99000 ? (void *)future_query : (void *)cuStreamQuery;
	if (strcmp(symbol, "cuMemsetD8") == 0)
		*function = (void *)hidden_memset;
	if (strcmp(symbol, "cuLaunchHostFunc") == 0 && version >= 13020)
		*function = (void *)cuLaunchHostFunc_v2;
	if (strcmp(symbol, "cuFutureCall") == 0)
		*function = (void *)cuFutureCall;
	if (strcmp(symbol, "cuDriverGetVersion") == 0)
		*function = (void *)cuDriverGetVersion;
	if (strcmp(symbol, "hipMalloc") == 0 || strcmp(symbol, "cudaMalloc") == 0)
		*function = (void *)future_query;
	*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

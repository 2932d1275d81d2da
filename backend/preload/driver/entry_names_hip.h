/* SPDX-License-Identifier: MIT */
/*
 * Maps each hand-written wrapper to the HIP function that it replaces: every entry point of class
 * OWN in entry_points_hip.def appears once. A CUDA wrapper is reused for a HIP function if the two
 * functions have the same binary interface and meaning; other HIP functions have wrappers in
 * hip_*.c.
 */
#ifndef GCR_PRELOAD_ENTRY_NAMES_HIP_H
#define GCR_PRELOAD_ENTRY_NAMES_HIP_H

/* allocation.c */
#define GCR_HIP_NAME_cuMemAllocPitch_v2 hipMemAllocPitch
#define GCR_HIP_NAME_cuMemAlloc_v2	hipMalloc
#define GCR_HIP_NAME_cuMemFreeAsync	hipFreeAsync
#define GCR_HIP_NAME_cuMemFree_v2	hipFree

/* attribute.c */
#define GCR_HIP_NAME_cuMemGetAccess	     hipMemGetAccess
#define GCR_HIP_NAME_cuMemGetAddressRange_v2 hipMemGetAddressRange
#define GCR_HIP_NAME_cuPointerGetAttribute   hipPointerGetAttribute
#define GCR_HIP_NAME_cuPointerGetAttributes  hipDrvPointerGetAttributes
#define GCR_HIP_NAME_cuPointerSetAttribute   hipPointerSetAttribute

/* callback.c */
#define GCR_HIP_NAME_cuLaunchHostFunc	      hipLaunchHostFunc
#define GCR_HIP_NAME_cuLaunchHostFunc_ptsz    hipLaunchHostFunc_spt
#define GCR_HIP_NAME_cuStreamAddCallback      hipStreamAddCallback
#define GCR_HIP_NAME_cuStreamAddCallback_ptsz hipStreamAddCallback_spt

/* capture.c */
#define GCR_HIP_NAME_cuStreamBeginCaptureToGraph  hipStreamBeginCaptureToGraph
#define GCR_HIP_NAME_cuStreamBeginCapture_v2	  hipStreamBeginCapture
#define GCR_HIP_NAME_cuStreamBeginCapture_v2_ptsz hipStreamBeginCapture_spt
#define GCR_HIP_NAME_cuStreamDestroy_v2		  hipStreamDestroy
#define GCR_HIP_NAME_cuStreamEndCapture		  hipStreamEndCapture
#define GCR_HIP_NAME_cuStreamEndCapture_ptsz	  hipStreamEndCapture_spt

/* handle.c */
#define GCR_HIP_NAME_cuMemAddressFree			    hipMemAddressFree
#define GCR_HIP_NAME_cuMemCreate			    hipMemCreate
#define GCR_HIP_NAME_cuMemExportToShareableHandle	    hipMemExportToShareableHandle
#define GCR_HIP_NAME_cuMemGetAllocationPropertiesFromHandle hipMemGetAllocationPropertiesFromHandle
#define GCR_HIP_NAME_cuMemImportFromShareableHandle	    hipMemImportFromShareableHandle
#define GCR_HIP_NAME_cuMemMap				    hipMemMap
#define GCR_HIP_NAME_cuMemRelease			    hipMemRelease
#define GCR_HIP_NAME_cuMemRetainAllocationHandle	    hipMemRetainAllocationHandle
#define GCR_HIP_NAME_cuMemSetAccess			    hipMemSetAccess
#define GCR_HIP_NAME_cuMemUnmap				    hipMemUnmap

/* hip_allocation.c */
#define GCR_HIP_NAME_hipExtMallocWithFlags	    hipExtMallocWithFlags
#define GCR_HIP_NAME_hipMalloc3D		    hipMalloc3D
#define GCR_HIP_NAME_hipMallocPitch		    hipMallocPitch
#define GCR_HIP_NAME_hipMemGetAllocationGranularity hipMemGetAllocationGranularity

/* hip_attribute.c */
#define GCR_HIP_NAME_hipMemPtrGetInfo	     hipMemPtrGetInfo
#define GCR_HIP_NAME_hipPointerGetAttributes hipPointerGetAttributes

/* hip_context.c */
#define GCR_HIP_NAME_hipDeviceDisablePeerAccess hipDeviceDisablePeerAccess
#define GCR_HIP_NAME_hipDeviceEnablePeerAccess	hipDeviceEnablePeerAccess
#define GCR_HIP_NAME_hipDeviceReset		hipDeviceReset

/* hip_exact.c */
#define GCR_HIP_NAME_hipMalloc3DArray		  hipMalloc3DArray
#define GCR_HIP_NAME_hipMallocMipmappedArray	  hipMallocMipmappedArray
#define GCR_HIP_NAME_hipMemset3D		  hipMemset3D
#define GCR_HIP_NAME_hipMemset3DAsync		  hipMemset3DAsync
#define GCR_HIP_NAME_hipMemset3DAsync_spt	  hipMemset3DAsync_spt
#define GCR_HIP_NAME_hipMemset3D_spt		  hipMemset3D_spt
#define GCR_HIP_NAME_hipTexRefSetMipmapLevelBias  hipTexRefSetMipmapLevelBias
#define GCR_HIP_NAME_hipTexRefSetMipmapLevelClamp hipTexRefSetMipmapLevelClamp

/* hip_init.c */
#define GCR_HIP_NAME_hipGetDriverEntryPoint	hipGetDriverEntryPoint
#define GCR_HIP_NAME_hipGetDriverEntryPoint_spt hipGetDriverEntryPoint_spt
#define GCR_HIP_NAME_hipGetProcAddress		hipGetProcAddress
#define GCR_HIP_NAME_hipInit			hipInit

/* ipc.c */
#define GCR_HIP_NAME_cuIpcCloseMemHandle   hipIpcCloseMemHandle
#define GCR_HIP_NAME_cuIpcGetMemHandle	   hipIpcGetMemHandle
#define GCR_HIP_NAME_cuIpcOpenMemHandle_v2 hipIpcOpenMemHandle

/* managed.c */
#define GCR_HIP_NAME_cuMemAdvise	    hipMemAdvise
#define GCR_HIP_NAME_cuMemAdvise_v2	    hipMemAdvise_v2
#define GCR_HIP_NAME_cuMemAllocManaged	    hipMallocManaged
#define GCR_HIP_NAME_cuStreamAttachMemAsync hipStreamAttachMemAsync

/* sharing.c */
#define GCR_HIP_NAME_cuDestroyExternalMemory		hipDestroyExternalMemory
#define GCR_HIP_NAME_cuDestroyExternalSemaphore		hipDestroyExternalSemaphore
#define GCR_HIP_NAME_cuGraphicsGLRegisterBuffer		hipGraphicsGLRegisterBuffer
#define GCR_HIP_NAME_cuGraphicsGLRegisterImage		hipGraphicsGLRegisterImage
#define GCR_HIP_NAME_cuGraphicsUnregisterResource	hipGraphicsUnregisterResource
#define GCR_HIP_NAME_cuImportExternalMemory		hipImportExternalMemory
#define GCR_HIP_NAME_cuImportExternalSemaphore		hipImportExternalSemaphore
#define GCR_HIP_NAME_cuIpcGetEventHandle		hipIpcGetEventHandle
#define GCR_HIP_NAME_cuIpcOpenEventHandle		hipIpcOpenEventHandle
#define GCR_HIP_NAME_cuMemGetHandleForAddressRange	hipMemGetHandleForAddressRange
#define GCR_HIP_NAME_cuMemMapArrayAsync			hipMemMapArrayAsync
#define GCR_HIP_NAME_cuEventDestroy_v2			hipEventDestroy
#define GCR_HIP_NAME_cuMemPoolDestroy			hipMemPoolDestroy
#define GCR_HIP_NAME_cuMemPoolExportPointer		hipMemPoolExportPointer
#define GCR_HIP_NAME_cuMemPoolExportToShareableHandle	hipMemPoolExportToShareableHandle
#define GCR_HIP_NAME_cuMemPoolImportFromShareableHandle hipMemPoolImportFromShareableHandle
#define GCR_HIP_NAME_cuMemPoolImportPointer		hipMemPoolImportPointer

#endif

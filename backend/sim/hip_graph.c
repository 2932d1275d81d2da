/* SPDX-License-Identifier: MIT */
/* Stream capture and graphs. */
#include "backend/sim/hip.h"

hipError_t hipStreamBeginCapture(hipStream_t handle, hipStreamCaptureMode mode)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamBeginCapture_v2((CUstream)handle, (CUstreamCaptureMode)mode));
}

hipError_t hipStreamEndCapture(hipStream_t handle, hipGraph_t *graph)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamEndCapture((CUstream)handle, (CUgraph *)graph));
}

hipError_t hipStreamIsCapturing(hipStream_t handle, hipStreamCaptureStatus *status)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuStreamIsCapturing((CUstream)handle, (CUstreamCaptureStatus *)status));
}

hipError_t hipStreamGetCaptureInfo_v2(hipStream_t handle, hipStreamCaptureStatus *status,
				      unsigned long long *id, hipGraph_t *graph,
				      const hipGraphNode_t **dependencies, size_t *count)
{
	HIP_ENTER_STREAM(stream, handle);
	cuuint64_t number = 0;
	CUresult result = cuStreamGetCaptureInfo_v2(
		(CUstream)handle, (CUstreamCaptureStatus *)status, &number, (CUgraph *)graph,
		(const CUgraphNode **)dependencies, count);

	if (!result && id && *status != hipStreamCaptureStatusNone)
		*id = number;
	HIP_RETURN(result);
}

hipError_t hipStreamGetCaptureInfo(hipStream_t handle, hipStreamCaptureStatus *status,
				   unsigned long long *id)
{
	return hipStreamGetCaptureInfo_v2(handle, status, id, NULL, NULL, NULL);
}

hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode)
{
	HIP_ENTER();
	HIP_RETURN(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

hipError_t hipGraphCreate(hipGraph_t *graph, unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphCreate((CUgraph *)graph, flags));
}

hipError_t hipGraphClone(hipGraph_t *clone, hipGraph_t original)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphClone((CUgraph *)clone, (CUgraph)original));
}

hipError_t hipGraphDestroy(hipGraph_t graph)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphDestroy((CUgraph)graph));
}

hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *count)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphGetNodes((CUgraph)graph, (CUgraphNode *)nodes, count));
}

/* The numbers are CUDA's, but HIP has none for operations on values. */
hipError_t hipGraphNodeGetType(hipGraphNode_t node, hipGraphNodeType *type)
{
	HIP_ENTER();
	CUgraphNodeType number;
	CUresult result = type ? cuGraphNodeGetType((CUgraphNode)node, &number)
			       : CUDA_ERROR_INVALID_VALUE;

	if (!result)
		*type = number == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ? hipGraphNodeTypeEmpty
								  : (hipGraphNodeType)number;
	HIP_RETURN(result);
}

hipError_t hipGraphInstantiate(hipGraphExec_t *exec, hipGraph_t graph, hipGraphNode_t *error_node,
			       char *log, size_t log_bytes)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphInstantiate_v2((CUgraphExec *)exec, (CUgraph)graph,
					 (CUgraphNode *)error_node, log, log_bytes));
}

hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *exec, hipGraph_t graph,
					unsigned long long flags)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphInstantiateWithFlags((CUgraphExec *)exec, (CUgraph)graph, flags));
}

hipError_t hipGraphUpload(hipGraphExec_t exec, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuGraphUpload((CUgraphExec)exec, (CUstream)handle));
}

hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t handle)
{
	HIP_ENTER_STREAM(stream, handle);
	HIP_RETURN(cuGraphLaunch((CUgraphExec)exec, (CUstream)handle));
}

hipError_t hipGraphExecDestroy(hipGraphExec_t exec)
{
	HIP_ENTER();
	HIP_RETURN(cuGraphExecDestroy((CUgraphExec)exec));
}

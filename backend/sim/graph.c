/* SPDX-License-Identifier: MIT */
/*
 * The entry points of stream capture and of graphs. A launch runs the operations of a graph
 * sequentially.
 */
#include "backend/sim/sim.h"

#define GRAPH_EXEC_MAGIC 0x47455845u

struct CUgraphExec_st {
	unsigned magic;
	uint64_t flags;
	struct graph_program *program;
};

static atomic_ulong capture_ids;

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	SIM_ENTER_STREAM(stream, handle);
	struct capture *capture;
	CUresult result;

	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_store(&capture->references, 1);
	capture->graph = graph_new();
	if (!capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->id = atomic_fetch_add(&capture_ids, 1) + 1;
	capture->origin = stream;
	capture->mode = mode;
	capture->thread = pthread_self();
	result = stream_capture_begin(stream, capture);
	capture_unref(capture);
	return result;
}

CUresult cuStreamBeginCapture(CUstream handle)
{
	return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *phGraph)
{
	SIM_ENTER_STREAM(stream, handle);
	struct capture *capture = NULL;
	CUresult result;

	if (!phGraph)
		return CUDA_ERROR_INVALID_VALUE;
	result = stream_capture_end(stream, &capture);
	*phGraph = NULL;
	if (!result) {
		*phGraph = capture->graph;
		capture->graph = NULL;
	}
	if (capture)
		capture_unref(capture);
	return result;
}

static CUstreamCaptureStatus capture_status(const struct capture *capture)
{
	if (!capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
				    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	SIM_ENTER_STREAM(stream, handle);
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = capture_status(stream->capture);
	return CUDA_SUCCESS;
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
			     CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	struct capture *capture = stream->capture;

	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = capture_status(capture);
	if (!capture)
		return CUDA_SUCCESS;
	if (id)
		*id = capture->id;
	if (graph)
		*graph = capture->graph;
	if (count)
		*count = capture->graph->count ? 1 : 0;
	if (dependencies)
		*dependencies = capture->graph->count
					? &capture->graph->nodes[capture->graph->count - 1]
					: NULL;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	SIM_ENTER_STREAM(stream, handle);
	return capture_info(stream, status, id, NULL, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	SIM_ENTER_STREAM(stream, handle);
	return capture_info(stream, status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies,
				   const CUgraphEdgeData **edges, size_t *count)
{
	SIM_ENTER_STREAM(stream, handle);
	if (edges)
		*edges = NULL;
	return capture_info(stream, status, id, graph, dependencies, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	SIM_ENTER();
	CUstreamCaptureMode before = capture_thread_mode;

	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	capture_thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned flags)
{
	SIM_ENTER();
	if (!phGraph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*phGraph = graph_new();
	return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphClone(CUgraph *phGraph, CUgraph original)
{
	SIM_ENTER();
	CUresult result = CUDA_SUCCESS;
	CUgraph graph;

	if (!phGraph || !original || original->magic != GRAPH_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	graph = graph_new();
	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < original->count && !result; i++)
		result = graph_append(graph, &original->nodes[i]->work);
	if (result) {
		graph_free(graph);
		return result;
	}
	*phGraph = graph;
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	SIM_ENTER();
	if (!graph || graph->magic != GRAPH_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	graph->magic = 0;
	graph_free(graph);
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	SIM_ENTER();
	if (!graph || graph->magic != GRAPH_MAGIC || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; nodes && i < *count; i++)
		nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
	*count = graph->count;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	SIM_ENTER();
	if (!node || !type)
		return CUDA_ERROR_INVALID_VALUE;
	switch (node->work.kind) {
	case WORK_COPY:
		*type = CU_GRAPH_NODE_TYPE_MEMCPY;
		break;
	case WORK_SET:
		*type = CU_GRAPH_NODE_TYPE_MEMSET;
		break;
	case WORK_KERNEL:
		*type = CU_GRAPH_NODE_TYPE_KERNEL;
		break;
	case WORK_HOST_FUNCTION:
	case WORK_CALLBACK:
		*type = CU_GRAPH_NODE_TYPE_HOST;
		break;
	case WORK_GRAPH:
		*type = CU_GRAPH_NODE_TYPE_GRAPH;
		break;
	case WORK_WAIT_VALUE:
	case WORK_WRITE_VALUE:
		*type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
		break;
	default:
		*type = CU_GRAPH_NODE_TYPE_EMPTY;
	}
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *phGraphExec, CUgraph graph, uint64_t flags)
{
	CUgraphExec exec;
	struct graph_program *program;

	if (!phGraphExec || !graph || graph->magic != GRAPH_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	exec = calloc(1, sizeof(*exec));
	program = calloc(1, sizeof(*program) + graph->count * sizeof(program->items[0]));
	if (!exec || !program) {
		free(exec);
		free(program);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	atomic_store(&program->references, 1);
	program->count = graph->count;
	for (size_t i = 0; i < graph->count; i++)
		program->items[i] = graph->nodes[i]->work;
	exec->magic = GRAPH_EXEC_MAGIC;
	exec->flags = flags;
	exec->program = program;
	*phGraphExec = exec;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph graph, CUgraphNode *error_node,
			    char *log, size_t size)
{
	SIM_ENTER();
	if (log && size)
		*log = '\0';
	return instantiate(phGraphExec, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph graph, CUgraphNode *error_node,
			       char *log, size_t size)
{
	SIM_ENTER();
	if (log && size)
		*log = '\0';
	return instantiate(phGraphExec, graph, 0);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph graph,
				     unsigned long long flags)
{
	SIM_ENTER();
	return instantiate(phGraphExec, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	SIM_ENTER();
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	result = instantiate(phGraphExec, graph, params->flags);
	params->hErrNode_out = NULL;
	params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return result;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
	SIM_ENTER();
	if (!exec || exec->magic != GRAPH_EXEC_MAGIC || !flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = exec->flags;
	return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	return exec && exec->magic == GRAPH_EXEC_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	SIM_ENTER_STREAM(stream, handle);
	struct work item = {.kind = WORK_GRAPH};
	CUresult result;

	if (!exec || exec->magic != GRAPH_EXEC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	/* The operation drops this reference. A captured launch keeps the reference for ever. */
	atomic_fetch_add(&exec->program->references, 1);
	item.graph.program = exec->program;
	result = stream_submit(stream, &item, NULL, NULL);
	if (result)
		graph_program_unref(exec->program);
	return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	SIM_ENTER();
	if (!exec || exec->magic != GRAPH_EXEC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	exec->magic = 0;
	graph_program_unref(exec->program);
	free(exec);
	return CUDA_SUCCESS;
}

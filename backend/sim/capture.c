/* SPDX-License-Identifier: MIT */
/*
 * Captures, and the graphs that they fill. A graph is the list of captured operations in the order
 * of capture, which is a valid order of execution.
 */
#include "backend/sim/sim.h"

__thread CUstreamCaptureMode capture_thread_mode;

void graph_program_unref(struct graph_program *program)
{
	if (program && atomic_fetch_sub(&program->references, 1) == 1)
		free(program);
}

struct capture *capture_ref(struct capture *capture)
{
	if (capture)
		atomic_fetch_add(&capture->references, 1);
	return capture;
}

void graph_free(CUgraph graph)
{
	if (!graph)
		return;
	for (size_t i = 0; i < graph->count; i++)
		free(graph->nodes[i]);
	free(graph->nodes);
	free(graph);
}

void capture_unref(struct capture *capture)
{
	if (atomic_fetch_sub(&capture->references, 1) != 1)
		return;
	graph_free(capture->graph);
	free(capture);
}

CUresult graph_append(CUgraph graph, const struct work *work)
{
	struct CUgraphNode_st *node;

	if (graph->count == graph->capacity) {
		size_t capacity = graph->capacity ? 2 * graph->capacity : 16;
		struct CUgraphNode_st **nodes =
			realloc(graph->nodes, capacity * sizeof(graph->nodes[0]));

		if (!nodes)
			return CUDA_ERROR_OUT_OF_MEMORY;
		graph->nodes = nodes;
		graph->capacity = capacity;
	}
	node = calloc(1, sizeof(*node));
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->work = *work;
	graph->nodes[graph->count++] = node;
	return CUDA_SUCCESS;
}

CUresult capture_append(struct capture *capture, const struct work *work)
{
	return graph_append(capture->graph, work);
}

CUgraph graph_new(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (graph)
		graph->magic = GRAPH_MAGIC;
	return graph;
}

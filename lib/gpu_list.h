/* SPDX-License-Identifier: MIT */
/* The list of GPU processes in struct gcr_gpus_reply, which has a fixed number of entries. */
#ifndef GCR_GPU_LIST_H
#define GCR_GPU_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/protocol.h"

/* Are all processes of the GPU in the list? */
static inline bool gcr_gpu_list_has_all(const struct gcr_gpu_info *gpu)
{
	return (gpu->flags & (GCR_GPU_PROCESSES | GCR_GPU_CUT)) == GCR_GPU_PROCESSES;
}

/*
 * Adds @process to the list. In a full list an entry of the process @asked_pid (0: none) replaces
 * one of another process, so that all of its entries are there. The GPU of the entry that is left
 * out gets the flag GCR_GPU_CUT.
 */
void gcr_gpu_list_add(struct gcr_gpus_reply *reply, const struct gcr_gpu_process *process,
		      int32_t asked_pid);

#endif

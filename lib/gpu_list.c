/* SPDX-License-Identifier: MIT */
#include "lib/gpu_list.h"

void gcr_gpu_list_add(struct gcr_gpus_reply *reply, const struct gcr_gpu_process *process,
		      int32_t asked_pid)
{
	uint32_t gpu = process->gpu;
	uint32_t at = 0;

	if (reply->processes_count < GCR_GPU_PROCESSES_MAX) {
		reply->processes[reply->processes_count++] = *process;
		return;
	}
	if (asked_pid && process->pid == asked_pid)
		at = GCR_GPU_PROCESSES_MAX;
	while (at && reply->processes[at - 1].pid == asked_pid)
		at--;
	if (at) {
		gpu = reply->processes[at - 1].gpu;
		reply->processes[at - 1] = *process;
	}
	reply->gpus[gpu].flags |= GCR_GPU_CUT;
}

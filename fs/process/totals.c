/* SPDX-License-Identifier: MIT */
/*
 * Sums over all processes. Each process is read under its lock, one after the other, so the sums do
 * not describe a single moment.
 */
#include "fs/process/totals.h"

#include <string.h>

#include "fs/process/gpus.h"
#include "fs/process/library.h"
#include "fs/process/process.h"
#include "fs/store/store.h"

/* Adds the files of a frozen process, and the VRAM contents that its driver keeps for a thaw. */
static void add_held(struct gcr_totals *totals, const struct gcr_gpus_reply *reply,
		     const struct gcr_snapshot *snapshot, const struct gcr_share *shares,
		     unsigned int shares_count)
{
	for (size_t i = 0; snapshot && i < gcr_snapshot_count(snapshot); i++) {
		const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, i);

		if (extent->gpu_index < GCR_GPUS_MAX)
			totals->gpus[extent->gpu_index].held_bytes += extent->bytes;
	}
	for (unsigned int i = 0; i < shares_count; i++)
		for (uint32_t gpu = 0; gpu < reply->gpus_count; gpu++)
			if (!memcmp(reply->gpus[gpu].uuid, shares[i].uuid, GCR_UUID_BYTES))
				totals->gpus[gpu].held_bytes += shares[i].bytes;
}

/* Adds to what is in use on a GPU, which is never more than the GPU has, whatever libraries say. */
static void add_to_gpu(struct gcr_totals *totals, const struct gcr_gpus_reply *reply, uint32_t gpu,
		       uint64_t bytes)
{
	uint64_t most_bytes = gcr_gpu_most_bytes(&reply->gpus[gpu]);
	uint64_t *sum = &totals->gpus[gpu].processes_bytes;

	*sum = bytes < most_bytes - *sum ? *sum + bytes : most_bytes;
}

/*
 * Adds the VRAM in use per GPU, as counted by the driver, and the memory imported at a thaw, which
 * the driver counts for no process. The library reports imported memory without saying on which GPU
 * it is, so the memory is added only if the process has one GPU.
 */
static void add_used(struct gcr_totals *totals, const struct gcr_gpus_reply *reply,
		     struct gcr_process *process, bool is_running)
{
	struct gcr_page_facts facts;
	unsigned int gpus = 0;
	uint32_t gpu = 0;

	for (uint32_t i = 0; i < reply->processes_count; i++) {
		if (reply->processes[i].pid != process->pid)
			continue;
		gpus++;
		gpu = reply->processes[i].gpu;
		add_to_gpu(totals, reply, gpu, reply->processes[i].bytes);
	}
	if (gpus == 1 && is_running && !gcr_library_last_facts(process, &facts))
		add_to_gpu(totals, reply, gpu, facts.imported_bytes);
}

static void add_process(struct gcr_totals *totals, const struct gcr_gpus_reply *reply,
			struct gcr_process *process)
{
	struct gcr_share shares[GCR_GPUS_MAX];
	struct gcr_snapshot *snapshot = NULL;
	unsigned int shares_count = 0;
	bool is_running;

	pthread_mutex_lock(&process->lock);
	is_running = process->state == GCR_STATE_RUNNING;
	totals->processes[process->vendor->index][process->state]++;
	totals->held_bytes += process->held_bytes;
	if (process->held_bytes) {
		snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
		shares_count = process->shares_count;
		memcpy(shares, process->shares, sizeof(shares));
	}
	pthread_mutex_unlock(&process->lock);
	add_held(totals, reply, snapshot, shares, shares_count);
	gcr_snapshot_unref(snapshot);
	add_used(totals, reply, process, is_running);
}

int gcr_totals_make(struct gcr_daemon *daemon, const struct gcr_gpus_reply *reply,
		    struct gcr_totals *ret_totals)
{
	struct gcr_process **list = NULL;
	size_t count = 0;
	int result = gcr_processes_list(daemon->processes, &list, &count);

	if (result < 0)
		return result;
	*ret_totals = (struct gcr_totals){0};
	for (size_t i = 0; i < count; i++)
		add_process(ret_totals, reply, list[i]);
	gcr_processes_list_free(list, count);
	return 0;
}

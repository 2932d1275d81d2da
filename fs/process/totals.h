/* SPDX-License-Identifier: MIT */
/* Sums over all processes, for the files of the root and of the GPUs. */
#ifndef GCR_FS_PROCESS_TOTALS_H
#define GCR_FS_PROCESS_TOTALS_H

#include <stdint.h>

#include "backend/backend.h"
#include "fs/base/state.h"
#include "lib/protocol.h"

struct gcr_daemon;

struct gcr_gpu_totals {
	uint64_t processes_bytes; /* VRAM in use by the mount's GPU processes */
	uint64_t held_bytes;	  /* VRAM contents held for frozen processes of this GPU */
};

struct gcr_totals {
	/* By the vendor's index, then by state. */
	uint64_t processes[GCR_BACKENDS_COUNT][GCR_STATES_COUNT];
	uint64_t held_bytes;
	struct gcr_gpu_totals gpus[GCR_GPUS_MAX]; /* by the GPU's index in the mount */
};

/* Sums up all processes. @reply: the present figures of the GPUs. -ENOMEM. No lock may be held. */
int gcr_totals_make(struct gcr_daemon *daemon, const struct gcr_gpus_reply *reply,
		    struct gcr_totals *ret_totals);

#endif

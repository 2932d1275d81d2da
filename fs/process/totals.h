/* SPDX-License-Identifier: MIT */
/* Sums over all processes, as the root's files and those of the GPUs show them. */
#ifndef GCR_FS_PROCESS_TOTALS_H
#define GCR_FS_PROCESS_TOTALS_H

#include <stdint.h>

#include "backend/backend.h"
#include "fs/base/state.h"
#include "lib/protocol.h"

struct gcr_daemon;

struct gcr_gpu_totals {
	uint64_t processes_bytes; /* VRAM that GPU processes of the mount have in use */
	uint64_t held_bytes;	  /* what is held of frozen ones that were on it */
};

struct gcr_totals {
	uint64_t processes[GCR_BACKENDS_COUNT][GCR_STATES_COUNT]; /* by the vendor's index */
	uint64_t held_bytes;
	struct gcr_gpu_totals gpus[GCR_GPUS_MAX]; /* by the index in the mount */
};

/* @reply: what is known of the GPUs. -ENOMEM. No lock may be held. */
int gcr_totals_make(struct gcr_daemon *daemon, const struct gcr_gpus_reply *reply,
		    struct gcr_totals *ret_totals);

#endif

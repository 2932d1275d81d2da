/* SPDX-License-Identifier: MIT */
/*
 * Cuts the data to be copied into transfers: a transfer is the unit that the GPU completes with one
 * event and that a thread handles at a time. Not thread-safe: the copier calls these functions
 * under its lock.
 */
#ifndef GCR_BACKEND_WORKER_CUT_H
#define GCR_BACKEND_WORKER_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/worker/space.h"

#define GCR_TRANSFER_PARTS_MAX 128

/* A range of the space; part of a transfer. */
struct gcr_transfer_part {
	uint64_t offset; /* in the space */
	size_t bytes;
	char *direct; /* address in a registered file; NULL: the part goes through the ring */
};

struct gcr_transfer {
	bool is_zeros;	/* only zeros, which become holes of the files: no copy */
	bool is_direct; /* every part is direct */
	size_t bytes;
	unsigned int parts_count;
	struct gcr_transfer_part parts[GCR_TRANSFER_PARTS_MAX];
};

struct gcr_cutter_config {
	size_t bytes;	     /* maximum size of a transfer, except a direct one */
	size_t direct_bytes; /* maximum size of a direct transfer */
	unsigned int lanes;  /* parts of a run that take turns */
	bool all_direct;     /* every file is registered */
};

struct gcr_cutter {
	const struct gcr_space *space;
	struct gcr_cutter_config config;
	struct gcr_cutter_run *runs;
	size_t runs_count;
	size_t run;	   /* index of the run that the next transfer is cut from */
	uint64_t run_step; /* progress in that run: turns of the lanes, or bytes */
};

/* Empties the list of runs and sets the configuration. An unused cutter must be all zeros. */
void gcr_cutter_start(struct gcr_cutter *cutter, const struct gcr_space *space,
		      const struct gcr_cutter_config *config);
void gcr_cutter_finish(struct gcr_cutter *cutter);

/* Adds a run to copy or to turn into holes. Zeros are whole pieces of the space. -ENOMEM. */
int gcr_cutter_add(struct gcr_cutter *cutter, bool is_zeros, uint64_t offset, uint64_t bytes);

/* Is there anything left to cut? */
bool gcr_cutter_has(const struct gcr_cutter *cutter);

/* Cuts the next transfer; gcr_cutter_has() must be true. */
void gcr_cutter_next(struct gcr_cutter *cutter, struct gcr_transfer *ret_transfer);

#endif

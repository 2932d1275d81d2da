/* SPDX-License-Identifier: MIT */
/*
 * What there is to copy, cut into transfers: one transfer is what the GPU is given with one event
 * and a thread takes at a time. Not thread-safe: the copier calls it under its lock.
 */
#ifndef GCR_BACKEND_WORKER_CUT_H
#define GCR_BACKEND_WORKER_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/worker/space.h"

#define GCR_TRANSFER_PARTS_MAX 128

struct gcr_transfer_part {
	uint64_t offset; /* in the space */
	size_t bytes;
	char *direct; /* where it is in a registered file; NULL: it goes through the ring */
};

struct gcr_transfer {
	bool is_zeros;	/* nothing but zeros, for the files to have as holes: no copy */
	bool is_direct; /* every part is */
	size_t bytes;
	unsigned int parts_count;
	struct gcr_transfer_part parts[GCR_TRANSFER_PARTS_MAX];
};

struct gcr_cutter_config {
	size_t bytes;	     /* a transfer is as large at most, but a direct one */
	size_t direct_bytes; /* that is as large */
	unsigned int lanes;  /* parts of a run that take turns */
	bool all_direct;     /* every file is registered */
};

struct gcr_cutter {
	const struct gcr_space *space;
	struct gcr_cutter_config config;
	struct gcr_cutter_run *runs;
	size_t runs_count;
	size_t run;	   /* where the next transfer comes from */
	uint64_t run_step; /* of it: lanes take turns, or bytes */
};

/* Begin anew. An empty cutter is all zeros. */
void gcr_cutter_start(struct gcr_cutter *cutter, const struct gcr_space *space,
		      const struct gcr_cutter_config *config);
void gcr_cutter_finish(struct gcr_cutter *cutter);

/* There is this to copy, or to be made holes. Zeros are whole pieces of the space. -ENOMEM. */
int gcr_cutter_add(struct gcr_cutter *cutter, bool is_zeros, uint64_t offset, uint64_t bytes);

/* Is there anything left? */
bool gcr_cutter_has(const struct gcr_cutter *cutter);

/* Cut the next transfer, of which there is one. */
void gcr_cutter_next(struct gcr_cutter *cutter, struct gcr_transfer *ret_transfer);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The table behind managed.h: managed memory as the program has allocated it, and the pieces in
 * which it moves. Small allocations share pages, so a piece is what lies on pages of its own.
 */
#ifndef GCR_PRELOAD_MANAGED_TABLE_H
#define GCR_PRELOAD_MANAGED_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/descriptor.h"
#include "backend/preload/policy.h"

struct gcr_managed {
	CUdeviceptr start;
	size_t bytes; /* as asked for */
	uint64_t id;  /* in the order of allocation, never used again */
	CUcontext context;
	int device;	/* ordinal */
	unsigned flags; /* of cuMemAllocManaged */
	/* As cuStreamAttachMemAsync said last; 0: not since it was made. */
	unsigned attached;
	CUstream stream;
	bool of_thread; /* the stream is one that only its thread can name */
	struct gcr_policy *policies;
};

/* Some pages, with all allocations that lie on them: what is one extent and one file. */
struct gcr_managed_piece {
	CUdeviceptr start;
	size_t bytes;
	size_t first, count; /* its allocations */
	struct gcr_descriptor file;
	/* It has been written to since it came with its contents: another file gets that first. */
	bool is_newer;
};

/*
 * For the agent, with the gate closed: all allocations, and all pieces, by address. They are the
 * table's and stay as they are until the gate opens. -ENOMEM.
 */
int gcr_managed_table(struct gcr_managed *const **ret_allocations, size_t *ret_count,
		      struct gcr_managed_piece **ret_pieces, size_t *ret_piece_count);

/* In the child of a fork: nothing is on its way. */
void gcr_managed_move_forget(void);

#endif

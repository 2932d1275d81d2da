/* SPDX-License-Identifier: MIT */
/*
 * The table behind managed.h: the program's managed allocations, and the pieces in which managed
 * memory moves. Small allocations share pages, so a piece is a group of allocations that shares no
 * page with others.
 */
#ifndef GCR_PRELOAD_MANAGED_TABLE_H
#define GCR_PRELOAD_MANAGED_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/base/descriptor.h"
#include "backend/preload/managed/policy.h"

struct gcr_managed {
	CUdeviceptr start;
	size_t bytes; /* as requested by the program */
	uint64_t id;  /* in the order of allocation, never reused */
	CUcontext context;
	int device;	/* ordinal */
	unsigned flags; /* of cuMemAllocManaged */
	/* The flag of the last cuStreamAttachMemAsync; 0: none since the allocation was made. */
	unsigned attached;
	CUstream stream;
	bool of_thread; /* the stream is one that only its own thread can name */
	struct gcr_policy *policies;
};

/* A range of pages with all allocations that lie on them: one extent and one file. */
struct gcr_managed_piece {
	CUdeviceptr start;
	size_t bytes;
	size_t first, count; /* its allocations */
	struct gcr_descriptor file;
	/*
	 * Hashes of the pages that the program's threads got while the memory was being brought in,
	 * by page; 0: they did not get that page. Once the pages are away, their bytes are in
	 * `file` only; any file that replaces `file` until the memory is back must have them too.
	 * NULL: no such pages. Owned by the piece.
	 */
	uint64_t *newer;
};

/*
 * For the agent, with the gate closed: all allocations and all pieces, by address. The table owns
 * both; they do not change until the gate opens. -ENOMEM.
 */
int gcr_managed_table(struct gcr_managed *const **ret_allocations, size_t *ret_count,
		      struct gcr_managed_piece **ret_pieces, size_t *ret_piece_count);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What a program has said about the pages of managed memory (cuMemAdvise), so that it can be said
 * again of memory that is made anew. No driver, no lock.
 */
#ifndef GCR_PRELOAD_POLICY_H
#define GCR_PRELOAD_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "lib/cleanup.h"

/* What holds for the bytes [start, end). Lists are ordered by address; what is not in one, is as
 * new memory. */
struct gcr_policy {
	struct gcr_policy *next;
	CUdeviceptr start, end;
	bool read_mostly;
	bool accessed_by_cpu;
	CUmemLocation preferred; /* type INVALID: none */
	uint64_t accessed_by;	 /* a bit for each device */
};

/* Advice was given for [start, end). -ENOMEM: not noted. */
int gcr_policy_advise(struct gcr_policy **policies, CUdeviceptr start, CUdeviceptr end,
		      CUmem_advise advice, CUmemLocation location);

/* Tell the driver, for new memory. A hint: what it does not take, it does not take. */
void gcr_policy_tell(const struct gcr_policy *policy);

void gcr_policy_free(struct gcr_policy *policies);

/* What the calls with a device number mean by it. */
CUmemLocation gcr_policy_location(CUdevice device);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The program's advice about pages of managed memory (cuMemAdvise), recorded so that the library
 * can repeat it for newly allocated memory. The caller locks; only gcr_policy_tell() calls the
 * driver.
 */
#ifndef GCR_PRELOAD_POLICY_H
#define GCR_PRELOAD_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "lib/cleanup.h"

/*
 * The advice for the bytes [start, end). Lists are ordered by address; bytes in no list entry have
 * the defaults of new memory.
 */
struct gcr_policy {
	struct gcr_policy *next;
	CUdeviceptr start, end;
	bool read_mostly;
	bool accessed_by_cpu;
	CUmemLocation preferred; /* type INVALID: none */
	uint64_t accessed_by;	 /* a bit for each device */
};

/* Records advice for [start, end). -ENOMEM: not recorded. */
int gcr_policy_advise(struct gcr_policy **policies, CUdeviceptr start, CUdeviceptr end,
		      CUmem_advise advice, CUmemLocation location);

/*
 * Gives the recorded advice to the driver, for new memory. Advice is a hint: errors of the driver
 * are ignored.
 */
void gcr_policy_tell(const struct gcr_policy *policy);

void gcr_policy_free(struct gcr_policy *policies);

/* The location that a device number stands for in calls that take one. */
CUmemLocation gcr_policy_location(CUdevice device);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Who may put memory on a GPU: one verb at a time has its admission. A verb whose process does not
 * answer gives it up to the others, and the VRAM that it will still take is noted as its need: the
 * others take only what is free beyond that, since a driver's restore that runs out of memory loses
 * the process. All functions may be called on any thread; the lock is a leaf.
 */
#ifndef GCR_FS_ENGINE_ADMISSION_H
#define GCR_FS_ENGINE_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/protocol.h"

struct gcr_admission;

/* VRAM that a verb has yet to take. The caller's; all zero is one that is not noted. */
struct gcr_need {
	struct gcr_need *next;
	const void *owner; /* its operation, whose own needs do not stand in its way */
	pid_t pid;
	int64_t since_usec; /* monotonic */
	bool is_noted;
	uint64_t bytes[GCR_GPUS_MAX]; /* by index; 0: none on that GPU */
};

/* Who holds what on one GPU. */
struct gcr_admission_holder {
	pid_t pid;
	int64_t since_usec;  /* monotonic */
	bool is_need;	     /* it has given the admission up */
	uint64_t need_bytes; /* if so */
};

/* NULL: no memory. */
struct gcr_admission *gcr_admission_create(void);
void gcr_admission_destroy(struct gcr_admission *admission);

/*
 * Take the right to put memory on the GPUs of @mask (bit = index) for @pid, alone: all of them, or
 * false if somebody has one. Given back with gcr_admission_leave().
 */
bool gcr_admission_take(struct gcr_admission *admission, uint32_t mask, pid_t pid);
void gcr_admission_leave(struct gcr_admission *admission, uint32_t mask);

/*
 * Give up @mask, which the caller has, and note @need (its bytes and owner are set) in the same
 * moment, or add to it if it is noted. gcr_admission_end_need() ends it; one that is not noted is
 * fine.
 */
void gcr_admission_give_up(struct gcr_admission *admission, uint32_t mask, struct gcr_need *need);
void gcr_admission_end_need(struct gcr_admission *admission, struct gcr_need *need);

/* What others than @owner need of the GPU @index. Never overflows: UINT64_MAX at most. */
uint64_t gcr_admission_needed(struct gcr_admission *admission, unsigned int index,
			      const void *owner);

/* Up to @most holders of the GPU @index, and how many were written. */
unsigned int gcr_admission_holders(struct gcr_admission *admission, unsigned int index,
				   struct gcr_admission_holder *ret_holders, unsigned int most);

#endif

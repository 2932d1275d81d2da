/* SPDX-License-Identifier: MIT */
/*
 * Admission: the right to put memory on a GPU, held by one verb at a time. A verb whose process
 * does not answer gives the admission up to the others, and the VRAM that the verb will still take
 * is noted as its need. The others take only the memory that is free beyond all needs, since a
 * driver's restore that runs out of memory loses the process. All functions may be called on any
 * thread; the lock is a leaf.
 */
#ifndef GCR_FS_ENGINE_ADMISSION_H
#define GCR_FS_ENGINE_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/fair_queue.h"
#include "lib/protocol.h"

struct gcr_admission;

/*
 * VRAM that a verb has yet to take. The verb's task owns the struct, also while it is noted in the
 * list. All zeros: a need that is not noted.
 */
struct gcr_need {
	struct gcr_need *next;
	const void *owner; /* the verb's operation, which its own needs do not block */
	pid_t pid;
	int64_t since_usec; /* monotonic */
	bool is_noted;
	uint64_t bytes[GCR_GPUS_MAX]; /* by index; 0: none on that GPU */
};

/* One holder of a GPU: of its admission, or of a need. */
struct gcr_admission_holder {
	pid_t pid;
	int64_t since_usec;  /* monotonic */
	bool is_need;	     /* the holder has given the admission up */
	uint64_t need_bytes; /* if is_need */
};

/*
 * Returns a new table in which nothing is held; gcr_admission_destroy() frees it. NULL: out of
 * memory.
 */
struct gcr_admission *gcr_admission_create(void);
void gcr_admission_destroy(struct gcr_admission *admission);

/*
 * Takes the right to put memory on the GPUs of @mask (bit = index) for @pid alone, ahead of those
 * that wait. Takes all of them, or returns false if another process has one. gcr_admission_leave()
 * gives them back.
 */
bool gcr_admission_take(struct gcr_admission *admission, uint32_t mask, pid_t pid);

/*
 * The same in turn: gcr_admission_join() adds @waiter, whose client, mask and is_urgent are set, to
 * those that wait (fs/base/fair_queue.h). gcr_admission_take_turn() is then called again and again;
 * it takes all GPUs of the mask and ends the wait, or returns false if one is not free, or if
 * others come first. gcr_admission_quit() ends the wait without that; a wait that has ended is
 * ignored.
 */
void gcr_admission_join(struct gcr_admission *admission, struct gcr_fair_waiter *waiter);
bool gcr_admission_take_turn(struct gcr_admission *admission, struct gcr_fair_waiter *waiter,
			     pid_t pid);
void gcr_admission_quit(struct gcr_admission *admission, struct gcr_fair_waiter *waiter);

void gcr_admission_leave(struct gcr_admission *admission, uint32_t mask);

/*
 * Gives up @mask, which the caller holds, and atomically adds @need (its bytes and owner are set)
 * to the list, unless it is noted already. gcr_admission_end_need() removes @need; a need that is
 * not noted is ignored.
 */
void gcr_admission_give_up(struct gcr_admission *admission, uint32_t mask, struct gcr_need *need);
void gcr_admission_end_need(struct gcr_admission *admission, struct gcr_need *need);

/* Bytes that owners other than @owner need on the GPU @index. Saturates at UINT64_MAX. */
uint64_t gcr_admission_needed(struct gcr_admission *admission, unsigned int index,
			      const void *owner);

/*
 * Writes the holders of the GPU @index, at most @most, to @ret_holders; returns how many were
 * written.
 */
unsigned int gcr_admission_holders(struct gcr_admission *admission, unsigned int index,
				   struct gcr_admission_holder *ret_holders, unsigned int most);

#endif

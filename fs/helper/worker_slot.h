/* SPDX-License-Identifier: MIT */
/*
 * The list of the pool's workers by GPU, and whose turn it is to use each. Shared by helpers.c and
 * helpers_take.c only. All functions need the pool's lock.
 */
#ifndef GCR_FS_HELPER_WORKER_SLOT_H
#define GCR_FS_HELPER_WORKER_SLOT_H

#include "fs/helper/helper_process.h"

/* One GPU's worker, and the turn to use it. The pool frees a slot without users and idle worker. */
struct worker_slot {
	struct worker_slot *next;
	uint8_t uuid[GCR_UUID_BYTES];
	bool is_second;
	/* A semaphore with count 1 that can be polled, because waiters can be interrupted. */
	int turn_fd;
	unsigned int users;	 /* the one that has the turn, and those that wait for it */
	struct gcr_helper *idle; /* the worker, while it is not used */
	bool is_borrowed;	 /* see gcr_helpers_borrow_worker() */
};

/* The slot of this GPU's first or second worker; NULL if there is none. */
struct worker_slot *gcr_worker_slot_find(struct gcr_helpers *helpers, const uint8_t *uuid,
					 bool is_second);

/* A new slot, without a worker or users. NULL: no memory, or no descriptor. */
struct worker_slot *gcr_worker_slot_add(struct gcr_helpers *helpers, const uint8_t *uuid,
					bool is_second);

/* Frees the slot if it has no users and no idle worker. */
void gcr_worker_slot_drop_if_unused(struct gcr_helpers *helpers, struct worker_slot *slot);

/* Frees all slots, whatever they have. Only at the pool's end. */
void gcr_worker_slots_free(struct gcr_helpers *helpers);

#endif

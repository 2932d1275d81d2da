/* SPDX-License-Identifier: MIT */
/*
 * The list of the pool's workers by GPU, and whose turn it is to use each. Shared by helpers.c and
 * helpers_take.c only. All functions need the pool's lock.
 */
#ifndef GCR_FS_HELPER_WORKER_SLOT_H
#define GCR_FS_HELPER_WORKER_SLOT_H

#include "fs/base/fair_queue.h"
#include "fs/helper/helper_process.h"

/* One GPU's worker, and the turn to use it. The pool frees a slot without users and idle worker. */
struct worker_slot {
	struct worker_slot *next;
	uint8_t uuid[GCR_UUID_BYTES];
	bool is_second;
	bool is_taken; /* somebody has the turn; nobody waits while this is false */
	struct gcr_fair_queue queue;
	struct gcr_fair_history history; /* of the queue */
	unsigned int users;		 /* the one that has the turn, and those that wait for it */
	struct gcr_helper *idle;	 /* the worker, while it is not used */
	bool is_borrowed;		 /* see gcr_helpers_borrow_worker() */
};

/* One that waits for the turn at a slot. */
struct worker_waiter {
	struct gcr_fair_waiter fair; /* the first member */
	bool has_turn;
	int turn_fd; /* an eventfd that becomes readable with the turn; negative: there is none */
};

/* The slot of this GPU's first or second worker; NULL if there is none. */
struct worker_slot *gcr_worker_slot_find(struct gcr_helpers *helpers, const uint8_t *uuid,
					 bool is_second);

/* Adds a slot without a worker or users to the list, which owns it. NULL: no memory. */
struct worker_slot *gcr_worker_slot_add(struct gcr_helpers *helpers, const uint8_t *uuid,
					bool is_second);

/* Takes the turn if nobody has it; else returns false. */
bool gcr_worker_slot_take(struct worker_slot *slot);
/* Counts the turn that has been taken as one of @client. */
void gcr_worker_slot_count(struct worker_slot *slot, uint64_t client);
/*
 * Joins those that wait for the turn, with @waiter->turn_fd set. gcr_worker_slot_quit() has to
 * follow; it returns true if the waiter has got the turn.
 */
void gcr_worker_slot_join(struct worker_slot *slot, struct worker_waiter *waiter, uint64_t client,
			  bool is_urgent);
bool gcr_worker_slot_quit(struct worker_slot *slot, struct worker_waiter *waiter);
/* Ends the turn: the next waiter has it, and its turn is counted, or nobody. */
void gcr_worker_slot_pass(struct worker_slot *slot);

/* Frees the slot if it has no users and no idle worker. */
void gcr_worker_slot_drop_if_unused(struct gcr_helpers *helpers, struct worker_slot *slot);

/* Frees all slots, whatever they have. Only at the pool's end. */
void gcr_worker_slots_free(struct gcr_helpers *helpers);

#endif

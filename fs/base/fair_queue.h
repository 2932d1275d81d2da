/* SPDX-License-Identifier: MIT */
/*
 * A fair queue tells which verb uses a resource next that one verb uses at a time, for example a
 * GPU's worker. Turns go round among clients, however many waiters each of them has: the next turn
 * is for the client whose last turn is the longest ago, and within a client for the waiter that
 * came first. So verbs of one user that hold a resource for long delay another user by one turn. A
 * queue may be for several resources (a mask), of which a waiter wants one or more at once.
 *
 * The queue does not know whether a resource is free; the caller does. The queue is not
 * thread-safe: the caller's lock guards the queue and its waiters. No call blocks or fails.
 */
#ifndef GCR_FS_BASE_FAIR_QUEUE_H
#define GCR_FS_BASE_FAIR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Clients whose last turn is remembered, for each resource. */
#define GCR_FAIR_CLIENTS_MAX 64

/* The last turns at one resource. All zeros: there was none. */
struct gcr_fair_history {
	/* The latest turn of a client that was dropped; counts as the last turn of unknown ones. */
	uint64_t forgotten;
	struct {
		uint64_t client;
		uint64_t turn; /* its number; 0: the entry is empty */
	} entries[GCR_FAIR_CLIENTS_MAX];
};

/* A verb that waits. The caller sets the first three, before gcr_fair_queue_join(). */
struct gcr_fair_waiter {
	uint64_t client; /* see gcr_fair_client() */
	uint32_t mask;	 /* the resources that it wants, all at once */
	bool is_urgent;	 /* goes ahead of the client's others: it holds what others wait for */

	struct gcr_fair_waiter *next;
	uint64_t last; /* number of the client's last turn at one of these resources */
};

struct gcr_fair_queue {
	struct gcr_fair_history *histories; /* the caller's, one for each bit of the masks */
	struct gcr_fair_waiter *waiters;    /* in the order in which they came */
	uint64_t turns;			    /* how many there have been */
};

/*
 * The client for a verb that user @counted has written, on a process of user @owner (both as of
 * gcr_quota_owner()). For a user with limits the two are one. Root's verbs on the processes of
 * different users are different clients, since the process decides how long a turn takes.
 */
static inline uint64_t gcr_fair_client(uid_t counted, uid_t owner)
{
	return (uint64_t)counted << 32 | owner;
}

void gcr_fair_queue_join(struct gcr_fair_queue *queue, struct gcr_fair_waiter *waiter);
/* Removes a waiter; one that is not in the queue is ignored. */
void gcr_fair_queue_quit(struct gcr_fair_queue *queue, struct gcr_fair_waiter *waiter);

/* The waiter whose turn is next, at whichever resources; NULL: the queue is empty. */
struct gcr_fair_waiter *gcr_fair_queue_first(const struct gcr_fair_queue *queue);
/* Does no waiter that wants one of the same resources come before this one? */
bool gcr_fair_queue_is_first(const struct gcr_fair_queue *queue,
			     const struct gcr_fair_waiter *waiter);

/* The client has a turn at the resources of @mask now. */
void gcr_fair_queue_note(struct gcr_fair_queue *queue, uint32_t mask, uint64_t client);

#endif

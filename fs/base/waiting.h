/* SPDX-License-Identifier: MIT */
/*
 * The list of the waiters for the end of a verb: its writers, and the `cancel`s of it. The list is
 * as long as the writers that wait now, however many have been interrupted. The caller's lock
 * guards the list.
 */
#ifndef GCR_FS_BASE_WAITING_H
#define GCR_FS_BASE_WAITING_H

#include <stdbool.h>
#include <stddef.h>

struct gcr_cancellation;
struct gcr_waiter;

/* An empty list is all zeros. */
struct gcr_waiting {
	struct gcr_waiting_writer {
		struct gcr_waiter *waiter; /* a reference */
		bool is_wanting;	   /* the verb goes on as long as such a writer waits */
	} * writers;
	size_t writers_count, writers_room;
	struct gcr_cancellation **cancellations;
	size_t cancellations_count, cancellations_room;
};

/* Frees the list, which has no writers and no cancellations any more. */
void gcr_waiting_finish(struct gcr_waiting *waiting);

/*
 * Adds a writer, of whose waiter the list takes a reference. @is_wanting: the verb is to go on for
 * this writer even if the others are interrupted. -ENOMEM.
 */
int gcr_waiting_add(struct gcr_waiting *waiting, struct gcr_waiter *waiter, bool is_wanting);

/*
 * Adds a cancellation, which becomes the list's if this returns 0. Before the list grows,
 * cancellations whose writers have been interrupted are ended. -ENOMEM.
 */
int gcr_waiting_add_cancellation(struct gcr_waiting *waiting,
				 struct gcr_cancellation *cancellation);

/*
 * Records that the writer of @waiter was interrupted and does not want the verb any more, though it
 * still waits. Returns true if another writer wants the verb.
 */
bool gcr_waiting_abandon(struct gcr_waiting *waiting, const struct gcr_waiter *waiter);

/* Takes this waiter (NULL: any) out of the list. The caller gets the reference; NULL: none. */
struct gcr_waiter *gcr_waiting_take(struct gcr_waiting *waiting, const struct gcr_waiter *waiter);

/* Takes a cancellation out of the list; NULL: none. The caller has to end it. */
struct gcr_cancellation *gcr_waiting_take_cancellation(struct gcr_waiting *waiting);

#endif

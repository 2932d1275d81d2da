/* SPDX-License-Identifier: MIT */
/*
 * A `cancel` under way: its writer is answered when the verbs that the `cancel` stops have ended.
 */
#ifndef GCR_FS_BASE_CANCELLATION_H
#define GCR_FS_BASE_CANCELLATION_H

#include <stdbool.h>

struct gcr_waiter;
struct gcr_cancellation; /* freed when the last of these verbs has ended */

/*
 * Creates a cancellation for @waiter, of which it takes a reference. The cancellation first waits
 * for the caller, until one call of gcr_cancellation_end(), so that it cannot end before all verbs
 * have been stopped. -ENOMEM.
 */
int gcr_cancellation_create(struct gcr_waiter *waiter, struct gcr_cancellation **ret_cancellation);
/* Frees a cancellation that found nothing to cancel, without an answer. NULL is allowed. */
void gcr_cancellation_destroy(struct gcr_cancellation *cancellation);
/* Adds one verb to wait for. */
void gcr_cancellation_hold(struct gcr_cancellation *cancellation);
/*
 * One of the verbs has ended. @error_number: 0, EBUSY (the verb completed all the same), EIO (the
 * verb could not be rolled back), or another errno (the cancellation could not wait for the verb).
 * The last call answers the waiter. No lock may be held.
 */
void gcr_cancellation_end(struct gcr_cancellation *cancellation, int error_number);
/*
 * Has the writer been interrupted? Its request is answered then, so that gcr_cancellation_end()
 * answers no request and may be called with a lock held.
 */
bool gcr_cancellation_is_given_up(const struct gcr_cancellation *cancellation);

#endif

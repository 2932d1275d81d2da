/* SPDX-License-Identifier: MIT */
/* One `cancel`, and all that it has to wait for before its writer is answered. */
#ifndef GCR_FS_BASE_CANCELLATION_H
#define GCR_FS_BASE_CANCELLATION_H

struct gcr_waiter;
struct gcr_cancellation; /* it goes with the last that it waits for */

/*
 * For @waiter, to which a reference is taken. Until the first gcr_cancellation_end() it waits for
 * the caller, so that it cannot end before all have been stopped. -ENOMEM.
 */
int gcr_cancellation_create(struct gcr_waiter *waiter, struct gcr_cancellation **ret_cancellation);
/* There was nothing to cancel: nobody is answered. NULL is allowed. */
void gcr_cancellation_destroy(struct gcr_cancellation *cancellation);
/* It has to wait for one more. */
void gcr_cancellation_hold(struct gcr_cancellation *cancellation);
/*
 * One of them has ended: with a positive errno, EBUSY: it went through all the same, EIO: it could
 * not be undone, or 0. With the last one the waiter is answered. No lock may be held.
 */
void gcr_cancellation_end(struct gcr_cancellation *cancellation, int error_number);

#endif

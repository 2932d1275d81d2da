/* SPDX-License-Identifier: MIT */
/*
 * Writers that wait for a verb: deferred FUSE replies, each sent exactly once, and the handling of
 * signals to a waiting writer.
 */
#ifndef GCR_FS_BASE_WAITER_H
#define GCR_FS_BASE_WAITER_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct gcr_waiter;  /* reference-counted */
struct gcr_waiters; /* the thread that watches interrupted waiters */

/* Starts the thread, and ends it (NULL is allowed). -ENOMEM, -EAGAIN. */
int gcr_waiters_create(struct gcr_waiters **ret_waiters);
void gcr_waiters_destroy(struct gcr_waiters *waiters);

/*
 * Creates a waiter for the write @request, which the waiter takes over and gcr_waiter_answer()
 * answers. @length is the write's return value on success. @owner (gcr_quota_owner()): the more
 * interrupted writers of this user wait, the later the thread notices a further signal to one of
 * them. *ret_waiter is a reference. -ENOMEM: the request stays the caller's.
 */
int gcr_waiter_create(struct gcr_waiters *waiters, fuse_req_t request, uid_t owner, size_t length,
		      struct gcr_waiter **ret_waiter);
struct gcr_waiter *gcr_waiter_ref(struct gcr_waiter *waiter);
void gcr_waiter_unref(struct gcr_waiter *waiter);

/*
 * Creates a waiter within the daemon, without a request: gcr_waiter_answer() calls @done with the
 * answer, 0 or a positive errno. *ret_waiter is a reference. -ENOMEM.
 */
int gcr_waiter_create_local(void (*done)(void *data, int error_number), void *data,
			    struct gcr_waiter **ret_waiter);

/* The object of a wait, reference-counted by its functions. */
struct gcr_waited {
	void *object; /* NULL: nothing that could be stopped */
	void (*abandon)(void *object, struct gcr_waiter *waiter);
	void (*ref)(void *object);
	void (*unref)(void *object);
};

/*
 * Enables interruption: from now on, an interrupted writer abandons @waited (a reference is taken),
 * or, if its object is NULL, is just answered with EINTR. Call once, after @waited knows the
 * waiter.
 */
void gcr_waiter_arm(struct gcr_waiter *waiter, const struct gcr_waited *waited);

/*
 * Answers with 0 (success) or a positive errno. Only the first answer is sent. No lock may be held.
 */
void gcr_waiter_answer(struct gcr_waiter *waiter, int error_number);

/* Has the waiter been answered? A waiter that was interrupted may be answered at any time. */
bool gcr_waiter_is_answered(struct gcr_waiter *waiter);

#endif

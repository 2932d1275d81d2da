/* SPDX-License-Identifier: MIT */
/*
 * Writers that wait for a verb: deferred FUSE replies, each answered exactly once, and what a
 * signal to such a writer means.
 */
#ifndef GCR_FS_BASE_WAITER_H
#define GCR_FS_BASE_WAITER_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stddef.h>
#include <sys/types.h>

struct gcr_waiter;  /* reference-counted */
struct gcr_waiters; /* the thread that watches interrupted ones */

int gcr_waiters_create(struct gcr_waiters **ret_waiters);
void gcr_waiters_destroy(struct gcr_waiters *waiters);

/* @length is what the write returns when all went well. The request is the waiter's now. */
int gcr_waiter_create(struct gcr_waiters *waiters, fuse_req_t request, size_t length,
		      struct gcr_waiter **ret_waiter);
struct gcr_waiter *gcr_waiter_ref(struct gcr_waiter *waiter);
void gcr_waiter_unref(struct gcr_waiter *waiter);

/*
 * The same for one of our own that waits: @done is called with the answer, a positive errno or 0.
 */
int gcr_waiter_create_local(void (*done)(void *data, int error_number), void *data,
			    struct gcr_waiter **ret_waiter);

/* What somebody waits for; @object counts its references. */
struct gcr_waited {
	void *object; /* NULL: nothing that could be stopped */
	void (*abandon)(void *object, struct gcr_waiter *waiter);
	void (*ref)(void *object);
	void (*unref)(void *object);
};

/*
 * From here on an interruption abandons @waited (a reference is taken), or, if that is nothing,
 * just answers EINTR. Call it once, after @waited knows the waiter.
 */
void gcr_waiter_arm(struct gcr_waiter *waiter, const struct gcr_waited *waited);

/* Answer with success (0) or a positive errno. Only the first answer counts. No lock may be held.
 */
void gcr_waiter_answer(struct gcr_waiter *waiter, int error_number);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Errands: what threads do that ask filesystems of users, and wait for CRIU, which does so, too.
 * Such a filesystem need not answer, and its thread is left behind then. Every errand takes one of
 * the places of its owner as it begins, and has it as long as a thread of it lives: so the number
 * of these is bounded for each user with all his subordinate ids, and for all users together.
 */
#ifndef GCR_FS_BASE_ERRAND_H
#define GCR_FS_BASE_ERRAND_H

#include <stdint.h>
#include <sys/types.h>

#include "fs/base/quota.h"
#include "lib/error.h"

enum gcr_errand_kind {
	GCR_ERRAND_LOOK,   /* at what processes have open */
	GCR_ERRAND_DIGEST, /* of these files */
	GCR_ERRAND_CRIU,   /* of a restore, for root */
	GCR_ERRAND_KINDS_COUNT,
};

#define GCR_ERRAND_USER_MAX 2  /* of a kind, for one user */
#define GCR_ERRAND_ALL_MAX  64 /* for all users together */
#define GCR_ERRAND_ROOT_MAX 16 /* for root and the daemon's user, besides those */

struct gcr_errand;

/* For the one who waits: non-zero, the wait is to end. */
struct gcr_errand_wait {
	int (*is_stopped)(void *data); /* called often, without locks; NULL: it never is */
	void *data;
	int64_t deadline_usec; /* monotonic; 0: none */
};

/*
 * Begin one for processes of @uid; waits until a place is free. *ret_errand is to be given to
 * gcr_errand_end(). Errors: -EBUSY with words, all places are of threads that were left behind;
 * -ECANCELED without words, -ETIMEDOUT and -ENOMEM with words.
 */
int gcr_errand_begin(struct gcr_quota *quota, enum gcr_errand_kind kind, uid_t uid,
		     const struct gcr_errand_wait *wait, struct gcr_errand **ret_errand,
		     struct gcr_error *error);

/* Nobody waits for its threads any more; they keep the place. Not after its end. */
void gcr_errand_leave(struct gcr_errand *errand);

/* Its last thread is about to end, or none has begun. NULL is allowed. */
void gcr_errand_end(struct gcr_errand *errand);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Errands: work of threads that access users' filesystems, or wait for CRIU, which does so, too.
 * Such a filesystem may never answer, and the waiting thread is then left behind. An errand takes a
 * slot of its owner when it begins and holds the slot as long as one of its threads lives. This
 * bounds the number of such threads per user (with all subordinate ids) and in total.
 */
#ifndef GCR_FS_BASE_ERRAND_H
#define GCR_FS_BASE_ERRAND_H

#include <stdint.h>
#include <sys/types.h>

#include "fs/base/quota.h"
#include "lib/error.h"

enum gcr_errand_kind {
	GCR_ERRAND_LOOK,   /* listing the files that processes have open */
	GCR_ERRAND_DIGEST, /* digests of these files */
	GCR_ERRAND_CRIU,   /* a CRIU restore, for root */
	GCR_ERRAND_KINDS_COUNT,
};

#define GCR_ERRAND_USER_MAX 2  /* per kind and user */
#define GCR_ERRAND_ALL_MAX  64 /* per kind, for all ordinary users together */
#define GCR_ERRAND_ROOT_MAX 16 /* per kind, for root and the daemon's user, in addition */

struct gcr_errand;

/* When to give up waiting for a slot. */
struct gcr_errand_wait {
	/* Non-zero: stop waiting. Called often, without locks; NULL: never stop. */
	int (*is_stopped)(void *data);
	void *data;
	int64_t deadline_usec; /* monotonic; 0: none */
};

/*
 * Begins an errand for processes of @uid; waits for a free slot. *ret_errand has to be passed to
 * gcr_errand_end(). -EBUSY: threads that were left behind hold all slots; -ECANCELED: stopped, with
 * an empty message; -ETIMEDOUT, -ENOMEM. Sets @error.
 */
int gcr_errand_begin(struct gcr_quota *quota, enum gcr_errand_kind kind, uid_t uid,
		     const struct gcr_errand_wait *wait, struct gcr_errand **ret_errand,
		     struct gcr_error *error);

/*
 * Marks the errand as left behind: its threads keep the slot, but no caller waits for them any
 * more. Not after gcr_errand_end().
 */
void gcr_errand_leave(struct gcr_errand *errand);

/* Frees the slot: the last thread is about to end, or none was started. NULL is allowed. */
void gcr_errand_end(struct gcr_errand *errand);

#endif

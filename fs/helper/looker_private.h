/* SPDX-License-Identifier: MIT */
/* What the files of fs/helper/looker.h share: one look, from the wait for a helper to its end. */
#ifndef GCR_FS_HELPER_LOOKER_PRIVATE_H
#define GCR_FS_HELPER_LOOKER_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/looker_process.h"
#include "fs/helper/looker_silent.h"
#include "lib/clock.h"
#include "lib/proc_source.h"

#define GCR_LOOK_DEADLINE_USEC (1 * GCR_USEC_PER_SEC)

enum gcr_look_state {
	LOOK_WAITS, /* for a helper */
	LOOK_ASKS,
	LOOK_IS_SLOW,
};

/* One look. */
struct gcr_one_look {
	const struct gcr_looker_request *request;
	size_t request_bytes;
	int fd; /* goes with the request; -1: none */
	bool has_data;
	enum gcr_silent_kind kind;
	int64_t deadline_usec;
	int64_t free_wait_usec; /* for a helper; 0: the usual time */
	uid_t owner;		/* of the process */
	struct gcr_looker *looker;
	struct gcr_looker_reply reply;
	/* under the lock */
	enum gcr_look_state state;
	struct gcr_one_look *next;
};

/*
 * The look has a helper, look->looker, until it is finished or given up. Its owner is the caller's
 * to fill in. -EBUSY: the process is not looked at now. -ETIMEDOUT: no helper has become free.
 */
int gcr_one_look_take_helper(struct gcr_one_look *look);

/*
 * All of a look at look->request->pid. If it is 0 the caller finishes it. -errno: what the helper
 * said, or -ETIMEDOUT, -EBUSY, -EIO as of lib/proc_source.h.
 */
int gcr_one_look_perform(struct gcr_one_look *look);

/* What came with the reply: look->reply.bytes of it. */
const uint8_t *gcr_one_look_data(const struct gcr_one_look *look);

/* The helper is free for others. */
void gcr_one_look_finish(struct gcr_one_look *look);

/* The helper is of no more use, and is killed. */
void gcr_one_look_give_up(struct gcr_one_look *look);

extern const struct gcr_proc_source gcr_looker_source;

#endif

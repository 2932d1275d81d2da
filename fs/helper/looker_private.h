/* SPDX-License-Identifier: MIT */
/*
 * Shared by the source files of fs/helper/looker.h: one look, from the wait for a helper to its
 * end.
 */
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
	LOOK_WAITS,   /* waits for a helper */
	LOOK_ASKS,    /* has a helper and waits for its reply */
	LOOK_IS_SLOW, /* likewise, but the process has blocked the helper for a while */
};

/* One look. */
struct gcr_one_look {
	const struct gcr_looker_request *request;
	size_t request_bytes;
	int fd; /* sent with the request; -1: none */
	bool has_data;
	enum gcr_silent_kind kind;
	int64_t deadline_usec;
	int64_t free_wait_usec; /* how long to wait for a helper; 0: the default */
	bool hurries;		/* set by gcr_one_look_take_helper(): see gcr_looker_hurry() */
	uid_t owner;		/* owner of the process */
	struct gcr_looker *looker;
	struct gcr_looker_reply reply;
	/* protected by the lock */
	enum gcr_look_state state;
	struct gcr_one_look *next;
};

/*
 * Gives the look a helper, look->looker, until it is finished or given up. The caller has set
 * `owner`. -EBUSY: the process is not looked at now. -ETIMEDOUT: no helper became free. Errors of
 * gcr_looker_process_start().
 */
int gcr_one_look_take_helper(struct gcr_one_look *look);

/*
 * Does a whole look at look->request->pid. On 0 the caller has to call gcr_one_look_finish().
 * -errno: the helper's answer, or -ETIMEDOUT, -EBUSY, -EIO as in lib/proc_source.h.
 */
int gcr_one_look_perform(struct gcr_one_look *look);

/* The data of the reply: look->reply.bytes of it. */
const uint8_t *gcr_one_look_data(const struct gcr_one_look *look);

/* Returns the helper to the pool. */
void gcr_one_look_finish(struct gcr_one_look *look);

/* Gives up a helper that is unusable: kills it. */
void gcr_one_look_give_up(struct gcr_one_look *look);

/* The source of lib/proc_source.h (looker_source.c). */
extern const struct gcr_proc_source gcr_looker_source;

#endif

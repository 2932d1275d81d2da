/* SPDX-License-Identifier: MIT */
/*
 * The pollers of the event logs, and the thread that notifies them. A user may poll one log with
 * thousands of descriptors. So whoever appends a line does not notify: a thread does, for all logs.
 * It takes turns among the owners of the pollers, and leaves GCR_POLLED_REST_USEC between two
 * rounds of a log. A single line of a log that has rested is notified at once.
 *
 * Thread-safe. Each call but gcr_pollers_start() and gcr_pollers_stop() is short, takes only leaf
 * locks, and is permitted under any lock.
 */
#ifndef GCR_FS_BASE_POLLERS_H
#define GCR_FS_BASE_POLLERS_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/clock.h"

#define GCR_POLLED_REST_USEC (10 * GCR_USEC_PER_MSEC)

/* A member of a circular list, or the list's head. */
struct gcr_poll_link {
	struct gcr_poll_link *previous, *next;
};

/* What is polled: a log. The fields are private. */
struct gcr_polled {
	struct gcr_poll_link armed; /* pollers that wait for the next round */
	struct gcr_poll_link link;  /* in the list of those that are ready, or that rest */
	bool is_ready, is_resting;
	bool is_wanted; /* a line came while it rests */
	int64_t rests_until_usec;
};

/* One open file of a log. The fields are private. */
struct gcr_poller {
	struct gcr_polled *polled;
	struct gcr_poll_owner *owner;
	struct fuse_pollhandle *handle; /* NULL: the poller waits for nothing */
	struct gcr_poll_link link;	/* armed, or due for its owner; with a handle only */
};

/*
 * Starts the thread. Without this call pollers are notified by the caller of gcr_polled_notify(),
 * as in tests. One start per process. -EAGAIN, -ENOMEM.
 */
int gcr_pollers_start(void);
/*
 * Ends the thread; afterwards nobody is notified. Must precede the end of the FUSE session, to
 * which notifications are written. May be called again, and without a start.
 */
void gcr_pollers_stop(void);

void gcr_polled_init(struct gcr_polled *polled);
/* For one that has no pollers any more. */
void gcr_polled_finish(struct gcr_polled *polled);

/*
 * Begins a round: each poller that is armed now is notified once. One that is armed again waits for
 * the next round.
 */
void gcr_polled_notify(struct gcr_polled *polled);

/*
 * Makes a poller that waits for nothing. @owner: as of gcr_quota_owner(). @polled must live as long
 * as the poller. -ENOMEM.
 */
int gcr_poller_init(struct gcr_poller *poller, struct gcr_polled *polled, uid_t owner);
void gcr_poller_finish(struct gcr_poller *poller);

/* Takes ownership of @handle, which is notified once, in place of an earlier one. */
void gcr_poller_arm(struct gcr_poller *poller, struct fuse_pollhandle *handle);

#endif

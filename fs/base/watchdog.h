/* SPDX-License-Identifier: MIT */
/*
 * A watchdog for the threads that answer the kernel. Their work is short: verbs, which may wait as
 * long as their timeout= permits, are answered by other threads. A request that stays in such a
 * thread for too long is logged, and the service manager is not notified that the daemon is well
 * until the request has ended.
 */
#ifndef GCR_FS_BASE_WATCHDOG_H
#define GCR_FS_BASE_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/clock.h"

/*
 * The longest legal time: reads and writes of spilled files wait for a disk, those of packed files
 * for the packing of a piece, opens for readers (all of them seconds at most).
 */
#define GCR_WATCHDOG_LEGAL_USEC (60 * GCR_USEC_PER_SEC)

/* A request under way, on the stack of its thread. */
struct gcr_watched {
	struct gcr_watched *next, *previous;
	const char *kind; /* a string constant */
	const char *name; /* likewise: the node's name, as far as it is constant */
	uint64_t node;
	pid_t pid; /* of the requester, in our pid namespace; 0: unknown */
	int64_t since_usec;
	bool is_told;
};

/*
 * Mark the begin and the end of a request, on any thread, whether or not a watchdog exists. Never
 * block.
 */
void gcr_watchdog_begin(struct gcr_watched *watched, const char *kind, uint64_t node,
			const char *name, pid_t pid);
void gcr_watchdog_end(struct gcr_watched *watched);

struct gcr_watchdog;

struct gcr_watchdog_config {
	int64_t legal_usec; /* GCR_WATCHDOG_LEGAL_USEC, except in tests */
	/* Between two checks, each of which calls well() if no request is stuck. */
	int64_t period_usec;
	void (*well)(void); /* NULL: problems are only logged */
};

/* Starts a thread, which checks at once. -ENOMEM, -EAGAIN. */
int gcr_watchdog_create(const struct gcr_watchdog_config *config,
			struct gcr_watchdog **ret_watchdog);
/* NULL is allowed. */
void gcr_watchdog_destroy(struct gcr_watchdog *watchdog);

#endif

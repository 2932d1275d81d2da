/* SPDX-License-Identifier: MIT */
/*
 * A watchdog of the threads that answer the kernel. Nothing that they do takes long: verbs, which
 * may wait as long as their timeout= says, are answered by other threads. A request that stays in
 * such a thread longer than it may is logged, and the service manager hears no more that the
 * daemon is well until it has ended.
 */
#ifndef GCR_FS_BASE_WATCHDOG_H
#define GCR_FS_BASE_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/clock.h"

/*
 * The longest legal stay: reads and writes of files that are spilled wait for a disk, those of
 * packed ones for the packing of a piece, opens for readers (all of them seconds at most).
 */
#define GCR_WATCHDOG_LEGAL_USEC (60 * GCR_USEC_PER_SEC)

/* A request under way: on the stack of its thread. */
struct gcr_watched {
	struct gcr_watched *next, *previous;
	const char *kind; /* a constant */
	const char *name; /* likewise: the node's, as far as that is a constant */
	uint64_t node;
	pid_t pid; /* whose request it is, as our pid namespace has it; 0: unknown */
	int64_t since_usec;
	bool is_told;
};

/* Any thread, from gcr_watchdog_create() on or not. Never waits. */
void gcr_watchdog_begin(struct gcr_watched *watched, const char *kind, uint64_t node,
			const char *name, pid_t pid);
void gcr_watchdog_end(struct gcr_watched *watched);

struct gcr_watchdog;

struct gcr_watchdog_config {
	int64_t legal_usec;  /* GCR_WATCHDOG_LEGAL_USEC, but in tests */
	int64_t period_usec; /* between two looks, each of which calls @well if all is well */
	void (*well)(void);  /* NULL: problems are logged only */
};

/* Starts a thread, which looks at once. -ENOMEM, -EAGAIN. */
int gcr_watchdog_create(const struct gcr_watchdog_config *config,
			struct gcr_watchdog **ret_watchdog);
/* NULL is allowed. */
void gcr_watchdog_destroy(struct gcr_watchdog *watchdog);

#endif

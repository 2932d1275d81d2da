/* SPDX-License-Identifier: MIT */
/*
 * An operation, for its tasks (fs/verb/task.c), those who wait for it (operation_waiters.c) and
 * whoever starts and ends it (fs/job/operation.c). Nobody else includes this.
 */
#ifndef GCR_FS_VERB_OPERATION_DATA_H
#define GCR_FS_VERB_OPERATION_DATA_H

#include <pthread.h>
#include <stdatomic.h>

#include "fs/base/quota.h"
#include "fs/verb/task.h"

struct gcr_cancellation;

struct gcr_operation_entry {
	struct gcr_waiter *waiter;	       /* of the verb, or NULL */
	struct gcr_cancellation *cancellation; /* of a `cancel`, or NULL */
	bool abandoned;
};

struct gcr_operation {
	atomic_int references;
	struct gcr_daemon *daemon;
	struct gcr_command command;
	struct gcr_quota_charge charge; /* its tasks, of who has written it */
	struct gcr_quota_charge dump_charge;
	struct gcr_exchange *exchange; /* NULL: it is none */
	struct gcr_operation *next;    /* guarded by operations.lock */

	pthread_mutex_t lock;
	pthread_cond_t decided; /* committed, or stop is set */
	int stop;		/* positive errno: why it is to roll back */
	bool committed;
	unsigned int votes;
	unsigned int ended;
	unsigned int at_barrier; /* tasks that wait in gcr_task_barrier() */
	unsigned int barriers_passed;
	bool barrier_failed;	/* the last one */
	struct gcr_error error; /* the first task's that failed */
	bool detached;		/* wanted whoever waits: opened O_NONBLOCK */
	bool answered;		/* the waiters have had their answer */
	bool is_over;		/* and who cancelled it */
	bool inconsistent;	/* some process is neither where it was nor where it was to go */
	int64_t deadline_usec;	/* monotonic */
	struct gcr_operation_entry *entries;
	size_t entries_count;

	unsigned int count;
	struct gcr_task tasks[];
};

/* ---- task.c ---- */

/* It is to roll back. The first reason stays; after the commit there is none. */
void gcr_operation_stop(struct gcr_operation *operation, int reason);
/* Lock: operation. */
void gcr_operation_stop_locked(struct gcr_operation *operation, int reason);
/* When it has to be over by default, with so many bytes to move; monotonic. */
int64_t gcr_operation_deadline(const struct gcr_operation *operation, uint64_t bytes);
/* Let all tasks go on if each one that has not ended is at the barrier. Lock: operation. */
void gcr_operation_end_barrier_locked(struct gcr_operation *operation);

/* ---- operation_waiters.c ---- */

/*
 * Somebody waits for the verb, or for the end of a cancellation; the other is NULL. -ENOMEM. Lock:
 * operation.
 */
int gcr_operation_add_entry_locked(struct gcr_operation *operation, struct gcr_waiter *waiter,
				   struct gcr_cancellation *cancellation);
/* Answer those who wait for the verb itself, and forget them. */
void gcr_operation_answer(struct gcr_operation *operation, int error_number);
void gcr_operation_answer_cancellations(struct gcr_operation *operation, int error_number);
/* One waiter was interrupted or has died: it no longer wants the verb; the last one stops it. */
void gcr_operation_abandon(struct gcr_operation *operation, struct gcr_waiter *waiter);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The data of an operation, for its tasks (fs/verb/task.c), its waiters (operation_waiters.c), and
 * its start and end (fs/job/operation.c). No other file includes this one.
 */
#ifndef GCR_FS_VERB_OPERATION_DATA_H
#define GCR_FS_VERB_OPERATION_DATA_H

#include <pthread.h>
#include <stdatomic.h>

#include "fs/base/quota.h"
#include "fs/base/waiting.h"
#include "fs/verb/task.h"

struct gcr_operation {
	atomic_int references;
	struct gcr_daemon *daemon;
	struct gcr_command command;
	struct gcr_quota_charge charge; /* for its tasks, charged to the writer */
	struct gcr_quota_charge dump_charge;
	struct gcr_exchange *exchange; /* NULL: not an exchange */
	struct gcr_operation *next;    /* guarded by operations.lock */

	pthread_mutex_t lock;
	pthread_cond_t decided; /* committed, or stop is set */
	int stop;		/* positive errno: the reason to roll back */
	bool committed;
	unsigned int votes;
	unsigned int ended;
	unsigned int at_barrier; /* tasks that wait in gcr_task_barrier() */
	unsigned int barriers_passed;
	bool barrier_failed;	/* the last barrier */
	struct gcr_error error; /* of the first task that failed */
	bool detached;		/* wanted even without waiters: the file was opened O_NONBLOCK */
	bool answered;		/* the waiters have been answered */
	bool is_over;		/* the cancellations have been answered, too */
	bool inconsistent;	/* some process is neither in its old state nor in the wanted one */
	int64_t deadline_usec;	/* monotonic */
	struct gcr_waiting waiting;

	unsigned int count;
	struct gcr_task tasks[];
};

/* ---- task.c ---- */

/* Make the operation roll back. The first @reason stays; after the commit this does nothing. */
void gcr_operation_stop(struct gcr_operation *operation, int reason);
/* The same with operation->lock held. */
void gcr_operation_stop_locked(struct gcr_operation *operation, int reason);
/*
 * The operation's deadline (monotonic) with @bytes to move: that of the writer, else the default.
 */
int64_t gcr_operation_deadline(const struct gcr_operation *operation, uint64_t bytes);
/* Let all tasks continue if each task that has not ended is at the barrier. Lock: operation. */
void gcr_operation_end_barrier_locked(struct gcr_operation *operation);

/* ---- operation_waiters.c ---- */

/* Answer the waiters of the verb itself, and drop them. */
void gcr_operation_answer(struct gcr_operation *operation, int error_number);
/* Answer all cancellations; none is added after this (is_over). */
void gcr_operation_answer_cancellations(struct gcr_operation *operation, int error_number);
/*
 * A waiter was interrupted or has died, and no longer wants the verb. If no other waiter wants the
 * verb, the operation stops.
 */
void gcr_operation_abandon(struct gcr_operation *operation, struct gcr_waiter *waiter);

#endif

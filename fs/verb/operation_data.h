/* SPDX-License-Identifier: MIT */
/*
 * What the files of operations share: operation.c (which verb is under way for which process),
 * operation_task.c (one process of it) and operation_waiters.c (who waits for it).
 */
#ifndef GCR_FS_VERB_OPERATION_DATA_H
#define GCR_FS_VERB_OPERATION_DATA_H

#include <pthread.h>

#include "fs/job/operation.h"
#include "fs/base/quota.h"
#include "lib/cleanup.h"

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
	unsigned int met;	/* of those that wait in gcr_task_meet() */
	unsigned int meetings;	/* that are over */
	bool meeting_failed;	/* the last one */
	struct gcr_error error; /* the first task's that failed */
	bool detached;		/* wanted whoever waits: opened O_NONBLOCK */
	bool answered;		/* the waiters have had their answer */
	bool is_over;		/* and who cancelled it */
	bool astray;		/* some process is neither where it was nor where it was to go */
	int64_t deadline_usec;	/* monotonic */
	struct gcr_operation_entry *entries;
	size_t entries_count;

	unsigned int count;
	struct gcr_task tasks[];
};

GCR_DEFINE_CLEANUP(struct gcr_operation *, gcr_operation_unref);

/* ---- operation.c ---- */

/* It is to roll back. The first reason stays; after the commit there is none. */
void gcr_operation_stop(struct gcr_operation *operation, int reason);
/* Lock: operation. */
void gcr_operation_stop_locked(struct gcr_operation *operation, int reason);
/* All tasks have ended: who waits is answered. */
void gcr_operation_complete(struct gcr_operation *operation);

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

/* ---- operation_task.c ---- */

/* When it has to be over by default, with so many bytes to move; monotonic. */
int64_t gcr_operation_deadline(const struct gcr_operation *operation, uint64_t bytes);
/* The thread of a task. */
void *gcr_task_run(void *task);
/* It has ended with @result and @error, and left its process in @state. */
void gcr_task_finish(struct gcr_task *task, int result, enum gcr_state state,
		     struct gcr_error *error);

#endif

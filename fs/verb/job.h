/* SPDX-License-Identifier: MIT */
/*
 * A job: a verb under way, from its start to its end. Operations (freeze, thaw, dump), packings and
 * restores are kinds of jobs. A job knows its writers, why it is to stop, and its deadline. What it
 * does is up to its kind.
 */
#ifndef GCR_FS_VERB_JOB_H
#define GCR_FS_VERB_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/quota.h"
#include "fs/base/waiting.h"
#include "fs/verb/ctl.h"
#include "lib/cleanup.h"

struct gcr_cancellation;
struct gcr_daemon;
struct gcr_job;
struct gcr_process;
struct gcr_waiter;

/*
 * The jobs of one kind. Who holds `lock` decides which job is under way for which process; it is
 * taken before the lock of a process and that of a job.
 */
struct gcr_jobs {
	pthread_mutex_t lock; /* guards the list */
	pthread_cond_t left;  /* a job has left the list */
	struct gcr_job *list;
	/* The job of this kind that is under way for the process, or NULL. Lock: process. */
	struct gcr_job *(*of_process)(const struct gcr_process *process);
	/* Frees the job, whose last reference has been dropped, and what its kind has added. */
	void (*destroy)(struct gcr_job *job);
};

#define GCR_JOBS_INITIALIZER(of_process, destroy)                                              \
	{                                                                                      \
		PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, of_process, destroy \
	}

/* The first member of each kind's structure. */
struct gcr_job {
	/* Constant after the start. */
	struct gcr_jobs *jobs;
	struct gcr_daemon *daemon;
	struct gcr_command command;
	size_t count;			/* of the processes that it is for */
	struct gcr_quota_charge charge; /* to its first writer; released before he is answered */
	struct gcr_job *next;		/* guarded by jobs->lock */
	atomic_int references;

	pthread_mutex_t lock;	/* guards the following fields, and those of the kind; taken last */
	pthread_cond_t changed; /* the job is to stop, or something of its kind's */
	int stop;		/* positive errno: the reason to stop; 0: none */
	atomic_bool is_stopping; /* `stop` is set; may be read without the lock */
	bool is_committed;	 /* beyond the point of no return: no stop has an effect */
	bool is_detached;      /* wanted even if no writer waits: the file was opened O_NONBLOCK */
	bool is_answered;      /* the writers have been answered, and none can join */
	bool is_over;	       /* the cancellations have been answered, and none can be added */
	int64_t deadline_usec; /* monotonic; 0: none */
	struct gcr_waiting waiting;
};

/* Initialises a job that is all zeros, with one reference, which is the caller's. */
void gcr_job_init(struct gcr_job *job, struct gcr_jobs *jobs, struct gcr_daemon *daemon,
		  const struct gcr_command *command);
struct gcr_job *gcr_job_ref(struct gcr_job *job);
/* NULL is allowed. */
void gcr_job_unref(struct gcr_job *job);
GCR_DEFINE_CLEANUP(struct gcr_job *, gcr_job_unref);

/* ---- writers ---- */

/*
 * Makes @waiter (a reference is taken) the first writer of a job that nobody else knows yet; NULL:
 * the job is detached. -ENOMEM.
 */
int gcr_job_begin(struct gcr_job *job, struct gcr_waiter *waiter);
/*
 * Adds a further writer, or (NULL) makes the job detached. @is_wanting: the job goes on for him if
 * the others are interrupted. -EBUSY: the job is to stop, or is answered; -ENOMEM.
 */
int gcr_job_join(struct gcr_job *job, struct gcr_waiter *waiter, bool is_wanting);
/*
 * From now on a signal to the writer counts: the last one that wants the job stops it; others are
 * answered at once, and the job goes on. NULL is allowed. No lock may be held.
 */
void gcr_job_arm(struct gcr_job *job, struct gcr_waiter *waiter);
/* Answers all writers with 0 or a positive errno; none can join after this. No lock may be held. */
void gcr_job_answer(struct gcr_job *job, int error_number);
/* Ends all cancellations of the job; none can be added after this. No lock may be held. */
void gcr_job_answer_cancellations(struct gcr_job *job, int error_number);

/* ---- stopping ---- */

/* Makes the job stop, unless it is committed. The first reason, a positive errno, stays. */
void gcr_job_stop(struct gcr_job *job, int reason);
void gcr_job_stop_locked(struct gcr_job *job, int reason);
/* Why the job is to stop (ETIMEDOUT from its deadline on), a positive errno; 0: the job goes on. */
int gcr_job_stopped(struct gcr_job *job);
/*
 * `cancel`: stops the job; @cancellation (NULL: none) waits for its end. -EBUSY: the job is over,
 * and nothing was done. -ENOMEM: the job stops, but the cancellation cannot wait for it: the caller
 * calls gcr_cancellation_end(@cancellation, ENOMEM), with no lock held.
 */
int gcr_job_cancel(struct gcr_job *job, struct gcr_cancellation *cancellation);

/* ---- the jobs of one kind ---- */

/* Puts the job into the list, which takes a reference. Lock: jobs. */
void gcr_jobs_add_locked(struct gcr_job *job);
/* Takes the job off the list, and drops the list's reference. */
void gcr_jobs_remove(struct gcr_job *job);
/*
 * The job that carries out @verb for all these processes, and perhaps others; NULL: none. Without a
 * reference. Lock: jobs.
 */
struct gcr_job *gcr_jobs_find_locked(struct gcr_jobs *jobs, enum gcr_verb verb,
				     struct gcr_process *const *processes, size_t count);
/*
 * `cancel`: stops all jobs that are under way for any of these processes, and returns their number.
 * @cancellation (NULL: none) waits for their ends. *ret_denied is set if @rights do not allow to
 * cancel one of them; that one goes on.
 */
size_t gcr_jobs_cancel(struct gcr_jobs *jobs, struct gcr_process *const *processes, size_t count,
		       const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
		       bool *ret_denied);
/* Waits until no job is left, or the monotonic clock is at @until_usec. */
void gcr_jobs_wait(struct gcr_jobs *jobs, int64_t until_usec);
/*
 * The daemon stops: no job is started any more (daemon->stopping), all are stopped, and the call
 * returns when none is left.
 */
void gcr_jobs_stop(struct gcr_jobs *jobs, struct gcr_daemon *daemon);

#endif

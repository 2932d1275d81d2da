/* SPDX-License-Identifier: MIT */
/* The life of a job. Writers are answered with no lock held, since an answer is a system call. */
#include "fs/verb/job.h"

#include <errno.h>
#include <stdlib.h>

#include "fs/base/cancellation.h"
#include "fs/base/waiter.h"
#include "fs/daemon.h"
#include "fs/process/process.h"
#include "lib/clock.h"
#include "lib/lock.h"

void gcr_job_init(struct gcr_job *job, struct gcr_jobs *jobs, struct gcr_daemon *daemon,
		  const struct gcr_command *command)
{
	atomic_init(&job->references, 1);
	atomic_init(&job->is_stopping, false);
	pthread_mutex_init(&job->lock, NULL);
	pthread_cond_init(&job->changed, NULL);
	job->jobs = jobs;
	job->daemon = daemon;
	job->command = *command;
}

struct gcr_job *gcr_job_ref(struct gcr_job *job)
{
	atomic_fetch_add(&job->references, 1);
	return job;
}

void gcr_job_unref(struct gcr_job *job)
{
	if (!job || atomic_fetch_sub(&job->references, 1) != 1)
		return;
	gcr_quota_release(&job->charge);
	gcr_waiting_finish(&job->waiting);
	pthread_cond_destroy(&job->changed);
	pthread_mutex_destroy(&job->lock);
	job->jobs->destroy(job);
}

/* ---- writers ---- */

int gcr_job_begin(struct gcr_job *job, struct gcr_waiter *waiter)
{
	job->is_detached = !waiter;
	return waiter ? gcr_waiting_add(&job->waiting, waiter, true) : 0;
}

int gcr_job_join(struct gcr_job *job, struct gcr_waiter *waiter, bool is_wanting)
{
	GCR_LOCK_SCOPE(&job->lock);
	if (job->stop || job->is_answered)
		return -EBUSY;
	if (waiter)
		return gcr_waiting_add(&job->waiting, waiter, is_wanting);
	job->is_detached |= is_wanting;
	return 0;
}

/* abandon() of struct gcr_waited: the writer of @waiter was interrupted, or has died. */
static void abandon(void *object, struct gcr_waiter *waiter)
{
	struct gcr_waiter *answered = NULL;
	struct gcr_job *job = object;

	pthread_mutex_lock(&job->lock);
	if (!gcr_waiting_abandon(&job->waiting, waiter) && !job->is_detached)
		gcr_job_stop_locked(job, EINTR);
	else if (!job->is_committed)
		/* Somebody still wants the job: only this writer is answered. */
		answered = gcr_waiting_take(&job->waiting, waiter);
	pthread_mutex_unlock(&job->lock);
	if (answered)
		gcr_waiter_answer(answered, EINTR);
	gcr_waiter_unref(answered);
}

static void ref(void *object)
{
	gcr_job_ref(object);
}

static void unref(void *object)
{
	gcr_job_unref(object);
}

void gcr_job_arm(struct gcr_job *job, struct gcr_waiter *waiter)
{
	if (waiter)
		gcr_waiter_arm(waiter, &(struct gcr_waited){job, abandon, ref, unref});
}

void gcr_job_answer(struct gcr_job *job, int error_number)
{
	struct gcr_waiter *waiter;

	do {
		pthread_mutex_lock(&job->lock);
		job->is_answered = true;
		waiter = gcr_waiting_take(&job->waiting, NULL);
		pthread_mutex_unlock(&job->lock);
		if (waiter)
			gcr_waiter_answer(waiter, error_number);
		gcr_waiter_unref(waiter);
	} while (waiter);
}

void gcr_job_answer_cancellations(struct gcr_job *job, int error_number)
{
	struct gcr_cancellation *cancellation;

	do {
		pthread_mutex_lock(&job->lock);
		job->is_over = true;
		cancellation = gcr_waiting_take_cancellation(&job->waiting);
		pthread_mutex_unlock(&job->lock);
		if (cancellation)
			gcr_cancellation_end(cancellation, error_number);
	} while (cancellation);
}

/* ---- stopping ---- */

void gcr_job_stop_locked(struct gcr_job *job, int reason)
{
	if (job->is_committed || job->stop)
		return;
	job->stop = reason;
	atomic_store(&job->is_stopping, true);
	pthread_cond_broadcast(&job->changed);
}

void gcr_job_stop(struct gcr_job *job, int reason)
{
	GCR_LOCK_SCOPE(&job->lock);
	gcr_job_stop_locked(job, reason);
}

int gcr_job_stopped(struct gcr_job *job)
{
	GCR_LOCK_SCOPE(&job->lock);
	if (job->deadline_usec && gcr_clock_usec() >= job->deadline_usec)
		gcr_job_stop_locked(job, ETIMEDOUT);
	return job->stop;
}

int gcr_job_cancel(struct gcr_job *job, struct gcr_cancellation *cancellation)
{
	int result = 0;

	GCR_LOCK_SCOPE(&job->lock);
	/* The job would never end the cancellation. */
	if (job->is_over)
		return -EBUSY;
	if (cancellation) {
		gcr_cancellation_hold(cancellation);
		result = gcr_waiting_add_cancellation(&job->waiting, cancellation);
	}
	gcr_job_stop_locked(job, ECANCELED);
	return result;
}

/* ---- the jobs of one kind ---- */

void gcr_jobs_add_locked(struct gcr_job *job)
{
	job->next = job->jobs->list;
	job->jobs->list = gcr_job_ref(job);
}

void gcr_jobs_remove(struct gcr_job *job)
{
	struct gcr_jobs *jobs = job->jobs;
	struct gcr_job **link;

	pthread_mutex_lock(&jobs->lock);
	for (link = &jobs->list; *link != job; link = &(*link)->next)
		;
	*link = job->next;
	pthread_cond_broadcast(&jobs->left);
	pthread_mutex_unlock(&jobs->lock);
	gcr_job_unref(job);
}

/* The process's job of this kind, without a reference, or NULL. Lock: jobs. */
static struct gcr_job *find_of(const struct gcr_jobs *jobs, struct gcr_process *process)
{
	GCR_LOCK_SCOPE(&process->lock);
	return jobs->of_process(process);
}

struct gcr_job *gcr_jobs_find_locked(struct gcr_jobs *jobs, enum gcr_verb verb,
				     struct gcr_process *const *processes, size_t count)
{
	struct gcr_job *found = NULL;

	for (size_t i = 0; i < count; i++) {
		struct gcr_job *job = find_of(jobs, processes[i]);

		if (!job || (found && job != found))
			return NULL;
		found = job;
	}
	return found && found->command.verb == verb ? found : NULL;
}

static bool is_for_any_locked(const struct gcr_job *job, struct gcr_process *const *processes,
			      size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (find_of(job->jobs, processes[i]) == job)
			return true;
	return false;
}

size_t gcr_jobs_cancel(struct gcr_jobs *jobs, struct gcr_process *const *processes, size_t count,
		       const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
		       bool *ret_denied)
{
	size_t found = 0;
	size_t untold = 0;

	pthread_mutex_lock(&jobs->lock);
	for (struct gcr_job *job = jobs->list; job; job = job->next) {
		int result;

		if (!is_for_any_locked(job, processes, count))
			continue;
		if (!gcr_rights_may_cancel(rights, &job->command.rights, job->count)) {
			*ret_denied = true;
			continue;
		}
		result = gcr_job_cancel(job, cancellation);
		found += result != -EBUSY;
		untold += result == -ENOMEM;
	}
	pthread_mutex_unlock(&jobs->lock);
	for (; untold; untold--)
		gcr_cancellation_end(cancellation, ENOMEM);
	return found;
}

void gcr_jobs_wait(struct gcr_jobs *jobs, int64_t until_usec)
{
	GCR_LOCK_SCOPE(&jobs->lock);
	while (jobs->list && !gcr_cond_wait_until(&jobs->left, &jobs->lock, until_usec))
		;
}

void gcr_jobs_stop(struct gcr_jobs *jobs, struct gcr_daemon *daemon)
{
	GCR_LOCK_SCOPE(&jobs->lock);
	atomic_store(&daemon->stopping, true);
	for (struct gcr_job *job = jobs->list; job; job = job->next)
		gcr_job_stop(job, ESHUTDOWN);
	while (jobs->list)
		pthread_cond_wait(&jobs->left, &jobs->lock);
}

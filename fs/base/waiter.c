/* SPDX-License-Identifier: MIT */
/*
 * Deferred replies to writers, and a thread that checks the writers whose requests FUSE reports as
 * interrupted. FUSE does not report the signal, and reports only once, so the thread polls the
 * writer's pending signals until the request is answered. A look takes about 20 microseconds: the
 * more writers of one owner wait, the less often the thread looks at each. waiter->lock orders
 * answering against arming; waiters->lock is a leaf, also taken by libfuse's interrupt callback.
 */
#include "fs/base/waiter.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "fs/base/user_counts.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/procfs.h"

#define LOOK_USEC      (50 * GCR_USEC_PER_MSEC)
/* About as many looks at waiters of one owner are made in LOOK_USEC. */
#define LOOKS_OF_OWNER 25

struct gcr_waiter {
	atomic_int references;
	struct gcr_waiters *waiters;
	fuse_req_t request; /* NULL: a local waiter, answered by done() */
	size_t length;
	void (*done)(void *data, int error_number);
	void *data;
	uid_t owner;
	pid_t caller; /* thread id; 0 if it is in a pid namespace that we cannot see */
	struct gcr_waited waited;

	pthread_mutex_t lock;
	bool answered;

	bool watched;		 /* guarded by waiters->lock */
	struct gcr_waiter *next; /* of the list that it is in, guarded as the list is */
	int64_t look_usec;	 /* monotonic: when the thread looks at it again */
};

struct gcr_waiters {
	pthread_t thread;

	pthread_mutex_t lock; /* guards the following fields */
	pthread_cond_t changed;
	bool stopping;
	struct gcr_waiter *interrupted; /* not looked at yet; holds a reference to each */

	/* Used by the thread only. */
	struct gcr_waiter *watched;    /* likewise */
	struct gcr_user_counts owners; /* how many waiters of each owner are watched */
};

static uint64_t signal_bit(int signal_number)
{
	return UINT64_C(1) << (signal_number - 1);
}

/*
 * Has the writer, thread @caller, ended, or is a signal pending for it that asks a program to stop?
 * Other signals leave the writer waiting. True also if the thread is not known.
 */
static bool gives_up(pid_t caller)
{
	const uint64_t wanted = signal_bit(SIGHUP) | signal_bit(SIGINT) | signal_bit(SIGQUIT) |
				signal_bit(SIGTERM) | signal_bit(SIGALRM) | signal_bit(SIGKILL);
	struct gcr_proc_status status;

	if (!caller || gcr_proc_status(caller, &status) < 0)
		return true;
	return (status.signals_pending & ~status.signals_blocked & wanted) != 0;
}

bool gcr_waiter_is_answered(struct gcr_waiter *waiter)
{
	bool answered;

	pthread_mutex_lock(&waiter->lock);
	answered = waiter->answered;
	pthread_mutex_unlock(&waiter->lock);
	return answered;
}

/* If the writer has given up, abandons the verb that the writer waits for, and returns true. */
static bool abandons(struct gcr_waiter *waiter)
{
	if (!gives_up(waiter->caller))
		return false;
	if (waiter->waited.object)
		waiter->waited.abandon(waiter->waited.object, waiter);
	else
		gcr_waiter_answer(waiter, EINTR);
	return true;
}

static void begin_watching(struct gcr_waiters *waiters, struct gcr_waiter *waiter)
{
	size_t *watched = gcr_user_counts_get(&waiters->owners, waiter->owner);

	if (watched)
		++*watched;
	waiter->next = waiters->watched;
	waiters->watched = waiter;
}

/* Takes the waiter that *link points to out of the list of those that are watched. */
static void end_watching(struct gcr_waiters *waiters, struct gcr_waiter **link)
{
	struct gcr_waiter *waiter = *link;

	gcr_user_counts_release(&waiters->owners, waiter->owner, 1);
	*link = waiter->next;
	gcr_waiter_unref(waiter);
}

static void look_later(struct gcr_waiters *waiters, struct gcr_waiter *waiter)
{
	const size_t *watched = gcr_user_counts_get(&waiters->owners, waiter->owner);
	size_t rounds = 1 + (watched ? *watched / LOOKS_OF_OWNER : 0);

	waiter->look_usec = gcr_clock_usec() + (int64_t)rounds * LOOK_USEC;
}

/*
 * Looks at waiters that have just been interrupted; those whose writers have not given up are
 * watched from now on.
 */
static void look_at_interrupted(struct gcr_waiters *waiters, struct gcr_waiter *list)
{
	while (list) {
		struct gcr_waiter *waiter = list;

		list = waiter->next;
		if (gcr_waiter_is_answered(waiter) || abandons(waiter)) {
			gcr_waiter_unref(waiter);
		} else {
			begin_watching(waiters, waiter);
			look_later(waiters, waiter);
		}
	}
}

/*
 * Looks at the watched waiters whose time has come. A waiter that has been answered, or whose
 * writer has given up, is not watched any more.
 */
static void look_at_watched(struct gcr_waiters *waiters)
{
	struct gcr_waiter **link = &waiters->watched;
	int64_t now_usec = gcr_clock_usec();

	while (*link) {
		struct gcr_waiter *waiter = *link;
		bool is_due = now_usec >= waiter->look_usec;

		if (gcr_waiter_is_answered(waiter) || (is_due && abandons(waiter))) {
			end_watching(waiters, link);
			continue;
		}
		if (is_due)
			look_later(waiters, waiter);
		link = &waiter->next;
	}
}

static void *watch(void *data)
{
	struct gcr_waiters *waiters = data;
	int64_t look_usec = 0;

	pthread_mutex_lock(&waiters->lock);
	while (!waiters->stopping) {
		struct gcr_waiter *list = TAKE_PTR(waiters->interrupted);

		if (!list && !waiters->watched) {
			pthread_cond_wait(&waiters->changed, &waiters->lock);
			continue;
		}
		pthread_mutex_unlock(&waiters->lock);
		look_at_interrupted(waiters, list);
		if (gcr_clock_usec() >= look_usec) {
			look_at_watched(waiters);
			look_usec = gcr_clock_usec() + LOOK_USEC;
		}
		pthread_mutex_lock(&waiters->lock);
		if (waiters->watched && !waiters->interrupted && !waiters->stopping)
			gcr_cond_wait_until(&waiters->changed, &waiters->lock, look_usec);
	}
	pthread_mutex_unlock(&waiters->lock);
	return NULL;
}

int gcr_waiters_create(struct gcr_waiters **ret_waiters)
{
	struct gcr_waiters *waiters = calloc(1, sizeof(*waiters));
	int result;

	if (!waiters)
		return -ENOMEM;
	pthread_mutex_init(&waiters->lock, NULL);
	pthread_cond_init(&waiters->changed, NULL);
	result = pthread_create(&waiters->thread, NULL, watch, waiters);
	if (result) {
		free(waiters);
		return -result;
	}
	*ret_waiters = waiters;
	return 0;
}

static void unref_all(struct gcr_waiter *list)
{
	while (list) {
		struct gcr_waiter *waiter = list;

		list = waiter->next;
		gcr_waiter_unref(waiter);
	}
}

void gcr_waiters_destroy(struct gcr_waiters *waiters)
{
	if (!waiters)
		return;
	pthread_mutex_lock(&waiters->lock);
	waiters->stopping = true;
	pthread_cond_signal(&waiters->changed);
	pthread_mutex_unlock(&waiters->lock);
	pthread_join(waiters->thread, NULL);
	unref_all(waiters->interrupted);
	unref_all(waiters->watched);
	free(waiters->owners.list);
	pthread_cond_destroy(&waiters->changed);
	pthread_mutex_destroy(&waiters->lock);
	free(waiters);
}

int gcr_waiter_create(struct gcr_waiters *waiters, fuse_req_t request, uid_t owner, size_t length,
		      struct gcr_waiter **ret_waiter)
{
	struct gcr_waiter *waiter = calloc(1, sizeof(*waiter));

	if (!waiter)
		return -ENOMEM;
	atomic_init(&waiter->references, 1);
	waiter->waiters = waiters;
	waiter->request = request;
	waiter->length = length;
	waiter->owner = owner;
	waiter->caller = fuse_req_ctx(request)->pid;
	pthread_mutex_init(&waiter->lock, NULL);
	*ret_waiter = waiter;
	return 0;
}

int gcr_waiter_create_local(void (*done)(void *data, int error_number), void *data,
			    struct gcr_waiter **ret_waiter)
{
	struct gcr_waiter *waiter = calloc(1, sizeof(*waiter));

	if (!waiter)
		return -ENOMEM;
	atomic_init(&waiter->references, 1);
	waiter->done = done;
	waiter->data = data;
	pthread_mutex_init(&waiter->lock, NULL);
	*ret_waiter = waiter;
	return 0;
}

struct gcr_waiter *gcr_waiter_ref(struct gcr_waiter *waiter)
{
	atomic_fetch_add(&waiter->references, 1);
	return waiter;
}

void gcr_waiter_unref(struct gcr_waiter *waiter)
{
	if (!waiter || atomic_fetch_sub(&waiter->references, 1) != 1)
		return;
	if (waiter->waited.object)
		waiter->waited.unref(waiter->waited.object);
	pthread_mutex_destroy(&waiter->lock);
	free(waiter);
}

/*
 * Puts the waiter @data into the list of interrupted ones, for the thread. libfuse calls this with
 * the request's lock held, so no more is done here.
 */
static void interrupted(fuse_req_t request, void *data)
{
	struct gcr_waiter *waiter = data;
	struct gcr_waiters *waiters = waiter->waiters;

	pthread_mutex_lock(&waiters->lock);
	if (!waiter->watched) {
		waiter->watched = true;
		waiter->next = waiters->interrupted;
		waiters->interrupted = gcr_waiter_ref(waiter);
		pthread_cond_signal(&waiters->changed);
	}
	pthread_mutex_unlock(&waiters->lock);
}

void gcr_waiter_arm(struct gcr_waiter *waiter, const struct gcr_waited *waited)
{
	pthread_mutex_lock(&waiter->lock);
	if (!waiter->answered && waiter->request) {
		waiter->waited = *waited;
		if (waited->object)
			waited->ref(waited->object);
		fuse_req_interrupt_func(waiter->request, interrupted, waiter);
	}
	pthread_mutex_unlock(&waiter->lock);
}

void gcr_waiter_answer(struct gcr_waiter *waiter, int error_number)
{
	bool first;

	pthread_mutex_lock(&waiter->lock);
	first = !waiter->answered;
	waiter->answered = true;
	/* Waits for a running callback: none can access the request after it is freed. */
	if (first && waiter->request)
		fuse_req_interrupt_func(waiter->request, NULL, NULL);
	pthread_mutex_unlock(&waiter->lock);
	if (!first)
		return;
	if (!waiter->request)
		waiter->done(waiter->data, error_number);
	else if (error_number)
		fuse_reply_err(waiter->request, error_number);
	else
		fuse_reply_write(waiter->request, waiter->length);
}

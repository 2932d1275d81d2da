/* SPDX-License-Identifier: MIT */
/*
 * The pool of helper processes: its list, and a thread that starts the spare control helper, reaps
 * helpers that have ended, retires idle ones and kills those that do not end when told to. One lock
 * protects the lists; it is never held while waiting for a helper.
 */
#include "fs/helper/helper_process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/helper/worker_slot.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* A spare that died is not replaced at once: the cause of its death probably persists. */
#define SPARE_RETRY_USEC (10 * GCR_USEC_PER_SEC)

#define IDLE_MAX_USEC (365 * 86400 * GCR_USEC_PER_SEC) /* "never", with sums still in range */

GCR_DEFINE_CLEANUP(struct gcr_helpers *, gcr_helpers_destroy);

void gcr_helpers_wake(struct gcr_helpers *helpers)
{
	eventfd_write(helpers->wake_fd, 1);
}

/* ---- under the lock ---- */

int gcr_helpers_start_locked(struct gcr_helpers *helpers, enum gcr_helper_kind kind,
			     const uint8_t *uuid, enum helper_role role,
			     struct gcr_helper **ret_helper, struct gcr_error *error)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct gcr_helper *helper;
	int r;

	/* Under the lock, so that gcr_helpers_owns() knows the helper before it opens a device. */
	r = gcr_helper_start(&helpers->config, kind, uuid, &helper, error);
	if (r < 0)
		return r;
	helper->helpers = helpers;
	helper->role = role;
	helper->started_usec = gcr_clock_usec();
	if (uuid)
		memcpy(helper->uuid, uuid, GCR_UUID_BYTES);
	helper->next = helpers->all;
	helpers->all = helper;
	/* If this fails, the helper's end is noticed at the thread's next round. */
	epoll_ctl(helpers->epoll_fd, EPOLL_CTL_ADD, helper->pidfd, &event);
	*ret_helper = helper;
	return 0;
}

bool gcr_helpers_reap_locked(struct gcr_helper *helper)
{
	if (helper->reaped)
		return true;
	if (!gcr_helper_reap(helper))
		return false;
	if (helper->kind == GCR_HELPER_WORKER)
		helper->helpers->workers_ended++;
	/* The pidfd of an ended process stays readable. */
	epoll_ctl(helper->helpers->epoll_fd, EPOLL_CTL_DEL, helper->pidfd, NULL);
	return true;
}

bool gcr_helpers_reap_one(struct gcr_helper *helper, int *ret_wait_status)
{
	GCR_LOCK_SCOPE(&helper->helpers->lock);

	if (!gcr_helpers_reap_locked(helper))
		return false;
	*ret_wait_status = helper->wait_status;
	return true;
}

void gcr_helpers_leave_locked(struct gcr_helper *helper, int64_t kill_usec)
{
	gcr_helper_hang_up(helper);
	helper->role = HELPER_LEAVING;
	helper->deadline_usec = kill_usec;
}

static bool spare_is_due(const struct gcr_helpers *helpers, int64_t now_usec)
{
	if (helpers->spare_wanted)
		return true;
	return helpers->was_taken && now_usec - helpers->taken_usec < helpers->config.idle_usec;
}

/*
 * Does for one helper what is due: reaps it, retires it if it is idle for too long, or kills it if
 * it does not end. Lowers *@next_usec to the time of its next check. Lock: the pool's.
 */
static void tend(struct gcr_helpers *helpers, struct gcr_helper *helper, int64_t now_usec,
		 int64_t *next_usec)
{
	bool ended = gcr_helpers_reap_locked(helper);

	switch (helper->role) {
	case HELPER_TAKEN:
		return;
	case HELPER_SPARE:
		if (!ended && spare_is_due(helpers, now_usec))
			return;
		if (ended)
			helpers->spare_retry_usec = now_usec + SPARE_RETRY_USEC;
		helpers->spare = NULL;
		gcr_helpers_leave_locked(helper, now_usec + GCR_HELPER_LEAVE_USEC);
		break;
	case HELPER_IDLE:
		if (!ended && now_usec < helper->deadline_usec)
			break;
		helper->slot->idle = NULL;
		gcr_worker_slot_drop_if_unused(helpers, TAKE_PTR(helper->slot));
		gcr_helpers_leave_locked(helper, now_usec + GCR_HELPER_LEAVE_USEC);
		break;
	case HELPER_LEAVING:
		break;
	}
	if (helper->role == HELPER_LEAVING && now_usec >= helper->deadline_usec &&
	    !helper->killed) {
		gcr_helper_kill(helper);
		helper->killed = true;
	}
	/*
	 * The end of a killed helper is reported by its pidfd, however long the driver delays it.
	 */
	if (!helper->killed && helper->deadline_usec < *next_usec)
		*next_usec = helper->deadline_usec;
}

/*
 * Tends all helpers, frees those that have ended, and starts a spare if one is due. Returns the
 * time (monotonic) at which to call this again at the latest. Lock: the pool's.
 */
static int64_t tend_all(struct gcr_helpers *helpers)
{
	int64_t now_usec = gcr_clock_usec();
	int64_t next_usec = INT64_MAX;
	struct gcr_helper **link = &helpers->all;

	while (*link) {
		struct gcr_helper *helper = *link;

		tend(helpers, helper, now_usec, &next_usec);
		if (helper->role == HELPER_LEAVING && helper->reaped) {
			*link = helper->next;
			gcr_helper_free(helper);
		} else {
			link = &helper->next;
		}
	}

	if (!spare_is_due(helpers, now_usec))
		return next_usec;
	if (!helpers->spare && now_usec >= helpers->spare_retry_usec &&
	    gcr_helpers_start_locked(helpers, GCR_HELPER_CONTROL, NULL, HELPER_SPARE,
				     &helpers->spare, NULL) < 0)
		helpers->spare_retry_usec = now_usec + SPARE_RETRY_USEC;
	if (!helpers->spare && helpers->spare_retry_usec < next_usec)
		next_usec = helpers->spare_retry_usec;
	if (!helpers->spare_wanted && helpers->taken_usec + helpers->config.idle_usec < next_usec)
		next_usec = helpers->taken_usec + helpers->config.idle_usec;
	return next_usec;
}

/* ---- the thread ---- */

static void wait_for_change(struct gcr_helpers *helpers, int64_t until_usec)
{
	struct epoll_event event;
	eventfd_t count;
	int timeout_ms = -1;

	if (until_usec != INT64_MAX) {
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (left_usec < 0)
			left_usec = 0;
		if (left_usec > 3600 * GCR_USEC_PER_SEC)
			left_usec = 3600 * GCR_USEC_PER_SEC;
		timeout_ms = (int)(left_usec / GCR_USEC_PER_MSEC) + 1;
	}
	epoll_wait(helpers->epoll_fd, &event, 1, timeout_ms);
	eventfd_read(helpers->wake_fd, &count);
}

static void *run(void *data)
{
	struct gcr_helpers *helpers = data;

	for (;;) {
		int64_t next_usec;

		{
			GCR_LOCK_SCOPE(&helpers->lock);

			if (helpers->stopping)
				return NULL;
			next_usec = tend_all(helpers);
		}
		wait_for_change(helpers, next_usec);
	}
}

static int start_thread(struct gcr_helpers *helpers)
{
	sigset_t all, old;
	int r;

	/* The daemon's signals are handled by another thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&helpers->thread, NULL, run, helpers);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	helpers->has_thread = r == 0;
	return -r;
}

/* ---- the pool's life ---- */

/* Copies the configuration with its strings. */
static int copy_config(struct gcr_helpers *helpers, const struct gcr_helpers_config *config)
{
	helpers->config.helper_directory = strdup(config->helper_directory);
	if (config->simulator_directory)
		helpers->config.simulator_directory = strdup(config->simulator_directory);
	helpers->config.idle_usec = config->idle_usec < IDLE_MAX_USEC ? config->idle_usec
								      : IDLE_MAX_USEC;
	helpers->config.backend = config->backend;
	helpers->config.keep_stderr = config->keep_stderr;
	if (!helpers->config.helper_directory ||
	    (config->simulator_directory && !helpers->config.simulator_directory))
		return -ENOMEM;
	return 0;
}

int gcr_helpers_create(const struct gcr_helpers_config *config, struct gcr_helpers **ret_helpers)
{
	_cleanup_(gcr_helpers_destroy_cleanup) struct gcr_helpers *helpers = NULL;
	struct epoll_event event = {.events = EPOLLIN};
	int r;

	helpers = calloc(1, sizeof(*helpers));
	if (!helpers)
		return -ENOMEM;
	helpers->epoll_fd = -1;
	helpers->wake_fd = -1;
	pthread_mutex_init(&helpers->lock, NULL);

	r = copy_config(helpers, config);
	if (r < 0)
		return r;
	helpers->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (helpers->wake_fd < 0)
		return -errno;
	helpers->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (helpers->epoll_fd < 0)
		return -errno;
	if (epoll_ctl(helpers->epoll_fd, EPOLL_CTL_ADD, helpers->wake_fd, &event) < 0)
		return -errno;
	r = start_thread(helpers);
	if (r < 0)
		return r;
	*ret_helpers = TAKE_PTR(helpers);
	return 0;
}

/* Kills and frees all helpers. The thread has ended: no other thread uses the pool. */
static void end_all(struct gcr_helpers *helpers)
{
	int64_t deadline_usec = gcr_clock_usec() + GCR_HELPER_LEAVE_USEC;

	for (struct gcr_helper *helper = helpers->all; helper; helper = helper->next) {
		gcr_helper_hang_up(helper);
		gcr_helper_kill(helper);
	}
	while (helpers->all) {
		struct gcr_helper *helper = helpers->all;
		struct pollfd end = {.fd = helper->pidfd, .events = POLLIN};
		int64_t left_usec = deadline_usec - gcr_clock_usec();

		/* A helper that hangs in the driver's kernel code is left to init. */
		poll(&end, 1, left_usec > 0 ? (int)(left_usec / GCR_USEC_PER_MSEC) + 1 : 0);
		gcr_helper_reap(helper);
		helpers->all = helper->next;
		gcr_helper_free(helper);
	}
	gcr_worker_slots_free(helpers);
}

void gcr_helpers_destroy(struct gcr_helpers *helpers)
{
	if (!helpers)
		return;
	if (helpers->has_thread) {
		{
			GCR_LOCK_SCOPE(&helpers->lock);

			helpers->stopping = true;
		}
		gcr_helpers_wake(helpers);
		pthread_join(helpers->thread, NULL);
	}
	end_all(helpers);
	if (helpers->epoll_fd >= 0)
		close(helpers->epoll_fd);
	if (helpers->wake_fd >= 0)
		close(helpers->wake_fd);
	free((void *)(uintptr_t)helpers->config.helper_directory);
	free((void *)(uintptr_t)helpers->config.simulator_directory);
	pthread_mutex_destroy(&helpers->lock);
	free(helpers);
}

void gcr_helpers_keep_spare(struct gcr_helpers *helpers, bool wanted)
{
	{
		GCR_LOCK_SCOPE(&helpers->lock);

		if (helpers->spare_wanted == wanted)
			return;
		helpers->spare_wanted = wanted;
	}
	gcr_helpers_wake(helpers);
}

bool gcr_helpers_hello(struct gcr_helpers *helpers, struct gcr_hello *ret_hello)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	if (!helpers->has_hello)
		return false;
	*ret_hello = helpers->hello;
	return true;
}

bool gcr_helpers_owns(struct gcr_helpers *helpers, pid_t pid)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	for (struct gcr_helper *helper = helpers->all; helper; helper = helper->next)
		if (helper->pid == pid && !helper->reaped)
			return true;
	return false;
}

unsigned int gcr_helpers_workers_ended(struct gcr_helpers *helpers)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	return helpers->workers_ended;
}

unsigned int gcr_helpers_workers(struct gcr_helpers *helpers)
{
	unsigned int count = 0;

	GCR_LOCK_SCOPE(&helpers->lock);

	for (struct gcr_helper *helper = helpers->all; helper; helper = helper->next)
		count += helper->kind == GCR_HELPER_WORKER && !gcr_helpers_reap_locked(helper);
	return count;
}

unsigned int gcr_helpers_users(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			       struct gcr_helper_user *ret_users, unsigned int most)
{
	unsigned int count = 0;

	GCR_LOCK_SCOPE(&helpers->lock);

	for (struct gcr_helper *helper = helpers->all; helper && count < most;
	     helper = helper->next)
		if (helper->role == HELPER_TAKEN && helper->kind == GCR_HELPER_WORKER &&
		    !memcmp(helper->uuid, uuid, GCR_UUID_BYTES))
			ret_users[count++] = (struct gcr_helper_user){
				.pid = helper->user,
				.since_usec = helper->taken_usec,
				.is_aside = helper->is_aside,
			};
	return count;
}

int gcr_helpers_program(const struct gcr_helpers *helpers, const char *name, char **ret_path,
			struct gcr_error *error)
{
	return gcr_helper_find(helpers->config.helper_directory, name, ret_path, error);
}

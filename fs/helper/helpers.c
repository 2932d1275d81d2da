/* SPDX-License-Identifier: MIT */
/*
 * The pool of helper processes: the spare control helper, one worker for each GPU, and a thread
 * that reaps helpers that have ended, retires idle ones and kills those that do not end when told
 * to. One lock protects the lists; it is never held while waiting for a helper.
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

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Time for a helper to end by itself before it is killed. */
#define LEAVE_USEC GCR_USEC_PER_SEC

/* A spare that died is not replaced at once: the cause of its death probably persists. */
#define SPARE_RETRY_USEC (10 * GCR_USEC_PER_SEC)

#define IDLE_MAX_USEC (365 * 86400 * GCR_USEC_PER_SEC) /* "never", with sums still in range */

/* One GPU's worker, and the turn to use it. Freed when it has no users and no idle worker. */
struct worker_slot {
	struct worker_slot *next;
	uint8_t uuid[GCR_UUID_BYTES];
	bool is_second;
	/* A semaphore with count 1 that can be polled, because waiters can be interrupted. */
	int turn_fd;
	unsigned int users;	 /* the one that has the turn, and those that wait for it */
	struct gcr_helper *idle; /* the worker, while it is not used */
	bool is_borrowed;	 /* see gcr_helpers_borrow_worker() */
};

GCR_DEFINE_CLEANUP(struct gcr_helpers *, gcr_helpers_destroy);

static void wake(struct gcr_helpers *helpers)
{
	eventfd_write(helpers->wake_fd, 1);
}

/* ---- under the lock ---- */

static int start(struct gcr_helpers *helpers, enum gcr_helper_kind kind, const uint8_t *uuid,
		 enum helper_role role, struct gcr_helper **ret_helper, struct gcr_error *error)
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

static bool reap(struct gcr_helper *helper)
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

	if (!reap(helper))
		return false;
	*ret_wait_status = helper->wait_status;
	return true;
}

static void leave(struct gcr_helper *helper, int64_t kill_usec)
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

static struct worker_slot *find_slot(struct gcr_helpers *helpers, const uint8_t *uuid,
				     bool is_second)
{
	for (struct worker_slot *slot = helpers->slots; slot; slot = slot->next)
		if (memcmp(slot->uuid, uuid, GCR_UUID_BYTES) == 0 && slot->is_second == is_second)
			return slot;
	return NULL;
}

static struct worker_slot *add_slot(struct gcr_helpers *helpers, const uint8_t *uuid,
				    bool is_second)
{
	_cleanup_free_ struct worker_slot *slot = calloc(1, sizeof(*slot));

	if (!slot)
		return NULL;
	slot->turn_fd = eventfd(1, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
	if (slot->turn_fd < 0)
		return NULL;
	memcpy(slot->uuid, uuid, GCR_UUID_BYTES);
	slot->is_second = is_second;
	slot->next = helpers->slots;
	helpers->slots = slot;
	return TAKE_PTR(slot);
}

static void drop_slot_if_unused(struct gcr_helpers *helpers, struct worker_slot *slot)
{
	if (slot->users > 0 || slot->idle)
		return;
	for (struct worker_slot **link = &helpers->slots; *link; link = &(*link)->next)
		if (*link == slot) {
			*link = slot->next;
			break;
		}
	close(slot->turn_fd);
	free(slot);
}

/* Handles one helper. Lowers *@next_usec to the time of the next check. */
static void tend(struct gcr_helpers *helpers, struct gcr_helper *helper, int64_t now_usec,
		 int64_t *next_usec)
{
	bool ended = reap(helper);

	switch (helper->role) {
	case HELPER_TAKEN:
		return;
	case HELPER_SPARE:
		if (!ended && spare_is_due(helpers, now_usec))
			return;
		if (ended)
			helpers->spare_retry_usec = now_usec + SPARE_RETRY_USEC;
		helpers->spare = NULL;
		leave(helper, now_usec + LEAVE_USEC);
		break;
	case HELPER_IDLE:
		if (!ended && now_usec < helper->deadline_usec)
			break;
		helper->slot->idle = NULL;
		drop_slot_if_unused(helpers, TAKE_PTR(helper->slot));
		leave(helper, now_usec + LEAVE_USEC);
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

/* Handles everything that is due. Returns the latest time for the next check. */
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
	    start(helpers, GCR_HELPER_CONTROL, NULL, HELPER_SPARE, &helpers->spare, NULL) < 0)
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

/* The thread has ended: no other thread uses the pool. */
static void end_all(struct gcr_helpers *helpers)
{
	int64_t deadline_usec = gcr_clock_usec() + LEAVE_USEC;

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
	while (helpers->slots) {
		struct worker_slot *slot = helpers->slots;

		helpers->slots = slot->next;
		close(slot->turn_fd);
		free(slot);
	}
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
		wake(helpers);
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
	wake(helpers);
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

/* ---- taking and giving back ---- */

static int64_t left_usec(int64_t deadline_usec)
{
	int64_t left;

	if (deadline_usec < 0)
		return -1;
	left = deadline_usec - gcr_clock_usec();
	return left > 0 ? left : 0;
}

/* Waits for a taken helper's hello and keeps it as the pool's. */
static int greet(struct gcr_helpers *helpers, struct gcr_helper *helper, int64_t deadline_usec,
		 int wake_fd, struct gcr_error *error)
{
	int r = gcr_helper_greet(helper, left_usec(deadline_usec), wake_fd, error);

	if (r < 0)
		return r;

	GCR_LOCK_SCOPE(&helpers->lock);
	/* A helper that does not load the driver's library does not know the API version. */
	if (!helper->hello.api_version)
		helper->hello.api_version = helpers->hello.api_version;
	helpers->hello = helper->hello;
	helpers->has_hello = true;
	helpers->spare_retry_usec = 0;
	return 0;
}

static void note_taking(struct gcr_helpers *helpers)
{
	helpers->was_taken = true;
	helpers->taken_usec = gcr_clock_usec();
}

/* Takes the spare; NULL: there is none. */
static struct gcr_helper *take_spare(struct gcr_helpers *helpers)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	struct gcr_helper *helper = TAKE_PTR(helpers->spare);

	note_taking(helpers);
	if (helper)
		helper->role = HELPER_TAKEN;
	return helper;
}

static int take_new(struct gcr_helpers *helpers, enum gcr_helper_kind kind, const uint8_t *uuid,
		    struct gcr_helper **ret_helper, struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	return start(helpers, kind, uuid, HELPER_TAKEN, ret_helper, error);
}

int gcr_helpers_take_control(struct gcr_helpers *helpers, int64_t timeout_usec, int wake_fd,
			     struct gcr_helper **ret_helper, struct gcr_error *error)
{
	int64_t deadline_usec = timeout_usec < 0 ? -1 : gcr_clock_usec() + timeout_usec;
	struct gcr_helper *helper;
	int r;

	helper = take_spare(helpers);
	wake(helpers); /* starts a new spare */
	if (helper) {
		struct gcr_error spare_error;

		r = greet(helpers, helper, deadline_usec, wake_fd, &spare_error);
		/* The hello may be left from a helper that has died since. */
		if (r == 0 && gcr_helper_usable(helper)) {
			*ret_helper = helper;
			return 0;
		}
		gcr_helper_put(helper);
		if (r == -ETIMEDOUT || r == -EINTR)
			return gcr_error_set(error, -r, "%s", spare_error.words);
		/* The cause of the spare's failure may be gone: try a new helper. */
	}

	r = take_new(helpers, GCR_HELPER_CONTROL, NULL, &helper, error);
	if (r < 0)
		return r;
	r = greet(helpers, helper, deadline_usec, wake_fd, error);
	if (r < 0) {
		gcr_helper_put(helper);
		return r;
	}
	*ret_helper = helper;
	return 0;
}

int gcr_helpers_take_halt(struct gcr_helpers *helpers, struct gcr_helper **ret_helper,
			  struct gcr_error *error)
{
	return take_new(helpers, GCR_HELPER_HALT, NULL, ret_helper, error);
}

/* Waits for the turn at @slot, among whose users we are. */
static int wait_turn(struct worker_slot *slot, int64_t deadline_usec, int wake_fd,
		     struct gcr_error *error)
{
	for (;;) {
		struct pollfd polls[2] = {
			{.fd = slot->turn_fd, .events = POLLIN},
			{.fd = wake_fd, .events = POLLIN},
		};
		int64_t left = left_usec(deadline_usec);
		struct timespec timeout = {.tv_sec = (time_t)(left / GCR_USEC_PER_SEC),
					   .tv_nsec = (long)(left % GCR_USEC_PER_SEC) * 1000};
		eventfd_t count;
		int r;

		if (eventfd_read(slot->turn_fd, &count) == 0)
			return 0;
		r = ppoll(polls, 2, left < 0 ? NULL : &timeout, NULL);
		if (r < 0 && errno != EINTR)
			return gcr_error_set(error, errno, "waiting for a worker: %s",
					     strerror(errno));
		if (r == 0)
			return gcr_error_set(error, ETIMEDOUT,
					     "another operation is using this GPU's worker");
		if (r > 0 && !polls[0].revents)
			return gcr_error_set(error, EINTR, "stopped while waiting for a worker");
	}
}

static void note_use(struct gcr_helper *helper)
{
	helper->role = HELPER_TAKEN;
	helper->user = 0;
	helper->taken_usec = gcr_clock_usec();
}

/* Takes the worker of @slot, whose turn we have: the idle one, or a new one. */
static int take_worker_of(struct gcr_helpers *helpers, struct worker_slot *slot,
			  struct gcr_helper **ret_helper, struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	struct gcr_helper *helper = TAKE_PTR(slot->idle);
	int r;

	note_taking(helpers);
	if (helper && helper->said_hello && !gcr_helper_usable(helper)) {
		helper->slot = NULL;
		leave(TAKE_PTR(helper), gcr_clock_usec());
		wake(helpers);
	}
	if (!helper) {
		r = start(helpers, GCR_HELPER_WORKER, slot->uuid, HELPER_TAKEN, &helper, error);
		if (r < 0)
			return r;
	}
	note_use(helper);
	helper->slot = slot;
	*ret_helper = helper;
	return 0;
}

static void leave_slot(struct gcr_helpers *helpers, struct worker_slot *slot, bool had_turn)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	if (had_turn) {
		slot->is_borrowed = false;
		eventfd_write(slot->turn_fd, 1);
	}
	slot->users--;
	drop_slot_if_unused(helpers, slot);
}

static struct worker_slot *join_slot(struct gcr_helpers *helpers, const uint8_t *uuid,
				     bool is_second)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	struct worker_slot *slot = find_slot(helpers, uuid, is_second);

	if (!slot)
		slot = add_slot(helpers, uuid, is_second);
	if (slot)
		slot->users++;
	return slot;
}

int gcr_helpers_take_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second, int64_t timeout_usec, int wake_fd,
			    struct gcr_helper **ret_helper, struct gcr_error *error)
{
	int64_t deadline_usec = timeout_usec < 0 ? -1 : gcr_clock_usec() + timeout_usec;
	struct gcr_helper *helper;
	struct worker_slot *slot;
	int r;

	slot = join_slot(helpers, uuid, is_second);
	if (!slot)
		return gcr_error_set(error, ENOMEM, "out of memory for a worker");
	r = wait_turn(slot, deadline_usec, wake_fd, error);
	if (r < 0) {
		leave_slot(helpers, slot, false);
		return r;
	}
	r = take_worker_of(helpers, slot, &helper, error);
	if (r < 0) {
		leave_slot(helpers, slot, true);
		return r;
	}
	wake(helpers);
	r = greet(helpers, helper, deadline_usec, wake_fd, error);
	if (r < 0) {
		bool is_late = gcr_clock_usec() - helper->started_usec > GCR_HELPERS_COME_UP_USEC;

		gcr_helper_put(helper);
		/* -EIO: the next worker would not do better, so waiting again is useless. */
		return r == -ETIMEDOUT && is_late ? -EIO : r;
	}
	*ret_helper = helper;
	return 0;
}

void gcr_helpers_start_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES])
{
	struct worker_slot *slot = join_slot(helpers, uuid, false);
	struct gcr_helper *helper = NULL;
	struct gcr_error error;
	eventfd_t count;

	if (!slot)
		return;
	/* The user that has the turn has a worker, or is about to start one. */
	if (eventfd_read(slot->turn_fd, &count) < 0) {
		leave_slot(helpers, slot, false);
		return;
	}
	pthread_mutex_lock(&helpers->lock);
	if (!slot->idle &&
	    !start(helpers, GCR_HELPER_WORKER, slot->uuid, HELPER_IDLE, &helper, &error)) {
		helper->slot = slot;
		helper->deadline_usec = gcr_clock_usec() + helpers->config.idle_usec;
		slot->idle = helper;
	}
	pthread_mutex_unlock(&helpers->lock);
	leave_slot(helpers, slot, true);
	wake(helpers);
}

pid_t gcr_helpers_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	const struct worker_slot *slot = find_slot(helpers, uuid, is_second);

	return slot && slot->idle && slot->idle->said_hello ? slot->idle->pid : 0;
}

bool gcr_helpers_has_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	const struct worker_slot *slot = find_slot(helpers, uuid, is_second);

	/* A worker without a hello has received no requests yet. */
	return slot && (slot->users || (slot->idle && slot->idle->said_hello));
}

/* The idle worker of @slot, whose turn we have; NULL if there is none that is ready. */
static struct gcr_helper *take_idle_locked(struct worker_slot *slot)
{
	struct gcr_helper *helper = NULL;

	if (slot->idle && slot->idle->said_hello && gcr_helper_usable(slot->idle)) {
		helper = TAKE_PTR(slot->idle);
		note_use(helper);
	}
	return helper;
}

int gcr_helpers_borrow_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second, struct gcr_helper **ret_helper)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	struct worker_slot *slot = find_slot(helpers, uuid, is_second);
	struct gcr_helper *helper;
	eventfd_t count;

	if (!slot || !slot->idle || eventfd_read(slot->turn_fd, &count) < 0)
		return -EAGAIN;
	helper = take_idle_locked(slot);
	if (!helper) {
		eventfd_write(slot->turn_fd, 1);
		return -EAGAIN;
	}
	slot->users++;
	slot->is_borrowed = true;
	*ret_helper = helper;
	return 0;
}

int gcr_helpers_take_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
				 bool is_second, int64_t wait_usec, struct gcr_helper **ret_helper)
{
	int64_t deadline_usec = gcr_clock_usec();
	struct gcr_helper *helper = NULL;
	struct gcr_error unused = {0};
	struct worker_slot *slot;

	{
		GCR_LOCK_SCOPE(&helpers->lock);

		slot = find_slot(helpers, uuid, is_second);
		if (!slot)
			return -EAGAIN;
		slot->users++;
		if (slot->is_borrowed)
			deadline_usec += wait_usec;
	}
	if (wait_turn(slot, deadline_usec, -1, &unused) < 0) {
		leave_slot(helpers, slot, false);
		return -EAGAIN;
	}
	{
		GCR_LOCK_SCOPE(&helpers->lock);

		helper = take_idle_locked(slot);
	}
	if (!helper) {
		leave_slot(helpers, slot, true);
		return -EAGAIN;
	}
	*ret_helper = helper;
	return 0;
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
		count += helper->kind == GCR_HELPER_WORKER && !reap(helper);
	return count;
}

/* Can the next verb that needs this GPU's worker use this one as it is? */
static bool keep_worker(const struct gcr_helper *helper)
{
	bool keeps_vram = helper->has_imported && helper->helpers->config.backend->may_keep_vram;

	/* A worker that is still creating its context: the next verb waits for the rest of that. */
	if (helper->slot && !helper->said_hello && !helper->dead)
		return gcr_clock_usec() - helper->started_usec <= GCR_HELPERS_COME_UP_USEC;
	/* VRAM that was not released must not be kept from the programs. */
	return helper->slot && helper->said_hello && !helper->has_reservation &&
	       !helper->in_session && !keeps_vram && gcr_helper_usable(helper);
}

void gcr_helper_set_user(struct gcr_helper *helper, pid_t pid)
{
	GCR_LOCK_SCOPE(&helper->helpers->lock);

	helper->user = pid;
}

void gcr_helper_set_aside(struct gcr_helper *helper)
{
	struct gcr_helpers *helpers = helper->helpers;
	struct worker_slot *slot = helper->slot;

	if (!slot)
		return;
	{
		GCR_LOCK_SCOPE(&helpers->lock);

		helper->slot = NULL;
		helper->is_aside = true;
	}
	leave_slot(helpers, slot, true);
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

void gcr_helper_put(struct gcr_helper *helper)
{
	struct gcr_helpers *helpers;
	struct worker_slot *slot;
	int64_t now_usec = gcr_clock_usec();

	if (!helper)
		return;
	helpers = helper->helpers;
	slot = helper->slot;
	{
		GCR_LOCK_SCOPE(&helpers->lock);

		if (helper->kind != GCR_HELPER_WORKER) {
			leave(helper, now_usec + LEAVE_USEC);
		} else if (keep_worker(helper)) {
			helper->role = HELPER_IDLE;
			helper->deadline_usec =
				helper->said_hello
					? now_usec + helpers->config.idle_usec
					: helper->started_usec + GCR_HELPERS_COME_UP_USEC;
			slot->idle = helper;
		} else {
			bool is_busy = helper->pending || !helper->said_hello;

			helper->slot = NULL;
			leave(helper, is_busy ? now_usec : now_usec + LEAVE_USEC);
		}
	}
	if (slot)
		leave_slot(helpers, slot, true);
	wake(helpers);
}

char *gcr_helpers_program(const struct gcr_helpers *helpers, const char *name)
{
	return gcr_helper_find(helpers->config.helper_directory, name);
}

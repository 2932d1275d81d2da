/* SPDX-License-Identifier: MIT */
/*
 * Taking helpers from the pool and giving them back: a control helper, preferably the spare one; or
 * a GPU's worker, for which tasks wait in turn. Idle workers are borrowed, or taken to be ended.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/helper/helper_process.h"
#include "fs/helper/worker_slot.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* How long a wait for a worker lasts before its caller is asked whether it is to stop. */
#define SLICE_USEC (250 * GCR_USEC_PER_MSEC)
/* How often a waiter for which there is no descriptor looks whether it has the turn. */
#define LOOK_USEC  (20 * GCR_USEC_PER_MSEC)

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

	return gcr_helpers_start_locked(helpers, kind, uuid, HELPER_TAKEN, ret_helper, error);
}

int gcr_helpers_take_control(struct gcr_helpers *helpers, int64_t timeout_usec, int wake_fd,
			     struct gcr_helper **ret_helper, struct gcr_error *error)
{
	int64_t deadline_usec = timeout_usec < 0 ? -1 : gcr_clock_usec() + timeout_usec;
	struct gcr_helper *helper;
	int r;

	helper = take_spare(helpers);
	gcr_helpers_wake(helpers); /* starts a new spare */
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

/* The rest of the time until the deadline, but at most a slice. */
static int64_t slice_usec(int64_t deadline_usec)
{
	int64_t left = left_usec(deadline_usec);

	return left < 0 || left > SLICE_USEC ? SLICE_USEC : left;
}

static int say_in_use(struct gcr_error *error)
{
	return gcr_error_set(error, ETIMEDOUT, "another operation is using this GPU's worker");
}

static int say_stopped(int result, struct gcr_error *error)
{
	return gcr_error_set(error, -result, "stopped while waiting for a worker");
}

static bool has_turn(struct gcr_helpers *helpers, const struct worker_waiter *waiter)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	return waiter->has_turn;
}

/* Waits until @waiter has the turn. The turn may also come when the wait has failed. */
static int await_turn(struct gcr_helpers *helpers, const struct worker_waiter *waiter,
		      const struct gcr_worker_wait *wait, int64_t deadline_usec,
		      struct gcr_error *error)
{
	for (;;) {
		struct pollfd polls[2] = {
			{.fd = waiter->turn_fd, .events = POLLIN},
			{.fd = wait->wake_fd, .events = POLLIN},
		};
		int64_t slice = slice_usec(deadline_usec);
		struct timespec timeout = {.tv_nsec = (long)slice * 1000};
		int r;

		if (waiter->turn_fd < 0 && slice > LOOK_USEC)
			timeout.tv_nsec = LOOK_USEC * 1000;
		r = ppoll(polls, 2, &timeout, NULL);
		if (r < 0 && errno != EINTR)
			return gcr_error_set(error, errno, "waiting for a worker: %s",
					     strerror(errno));
		if (r > 0)
			return polls[0].revents ? 0 : say_stopped(-EINTR, error);
		if (waiter->turn_fd < 0 && has_turn(helpers, waiter))
			return 0;
		if (left_usec(deadline_usec) == 0)
			return say_in_use(error);
		if (wait->is_to_stop && wait->is_to_stop(wait->data))
			return say_stopped(-ECANCELED, error);
	}
}

/* Waits for the turn at @slot, among whose users we are. */
static int wait_turn(struct gcr_helpers *helpers, struct worker_slot *slot,
		     struct gcr_worker_wait *wait, int64_t deadline_usec, struct gcr_error *error)
{
	struct worker_waiter waiter = {.turn_fd = -1};
	int64_t since_usec = gcr_clock_usec();
	int result;

	{
		GCR_LOCK_SCOPE(&helpers->lock);

		if (gcr_worker_slot_take(slot)) {
			gcr_worker_slot_count(slot, wait->client);
			return 0;
		}
		if (left_usec(deadline_usec) == 0)
			return say_in_use(error);
		waiter.turn_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		gcr_worker_slot_join(slot, &waiter, wait->client, wait->is_urgent);
	}
	result = await_turn(helpers, &waiter, wait, deadline_usec, error);
	pthread_mutex_lock(&helpers->lock);
	if (gcr_worker_slot_quit(slot, &waiter))
		result = 0;
	pthread_mutex_unlock(&helpers->lock);
	if (waiter.turn_fd >= 0)
		close(waiter.turn_fd);
	wait->queued_usec = gcr_clock_usec() - since_usec;
	return result;
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
		gcr_helpers_leave_locked(TAKE_PTR(helper), gcr_clock_usec());
		gcr_helpers_wake(helpers);
	}
	if (!helper) {
		r = gcr_helpers_start_locked(helpers, GCR_HELPER_WORKER, slot->uuid, HELPER_TAKEN,
					     &helper, error);
		if (r < 0)
			return r;
	}
	note_use(helper);
	helper->slot = slot;
	*ret_helper = helper;
	return 0;
}

/* Ends our use of the slot, and passes the turn on if we had it. */
static void leave_slot(struct gcr_helpers *helpers, struct worker_slot *slot, bool had_turn)
{
	GCR_LOCK_SCOPE(&helpers->lock);

	if (had_turn) {
		slot->is_borrowed = false;
		gcr_worker_slot_pass(slot);
	}
	slot->users--;
	gcr_worker_slot_drop_if_unused(helpers, slot);
}

static struct worker_slot *join_slot(struct gcr_helpers *helpers, const uint8_t *uuid,
				     bool is_second)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	struct worker_slot *slot = gcr_worker_slot_find(helpers, uuid, is_second);

	if (!slot)
		slot = gcr_worker_slot_add(helpers, uuid, is_second);
	if (slot)
		slot->users++;
	return slot;
}

/*
 * Waits for the hello of the worker that we have taken. -EIO: it takes too long to start, and the
 * next worker would not do better, so waiting again is useless.
 */
static int await_hello(struct gcr_helpers *helpers, struct gcr_helper *helper,
		       const struct gcr_worker_wait *wait, int64_t deadline_usec,
		       struct gcr_error *error)
{
	for (;;) {
		int64_t until_usec = gcr_clock_usec() + slice_usec(deadline_usec);
		int result = greet(helpers, helper, until_usec, wait->wake_fd, error);

		if (result != -ETIMEDOUT)
			return result;
		if (gcr_clock_usec() - helper->started_usec > GCR_HELPERS_COME_UP_USEC)
			return -EIO;
		if (left_usec(deadline_usec) == 0)
			return result;
		if (wait->is_to_stop && wait->is_to_stop(wait->data))
			return say_stopped(-ECANCELED, error);
		*error = (struct gcr_error){0};
	}
}

int gcr_helpers_take_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second, struct gcr_worker_wait *wait,
			    struct gcr_helper **ret_helper, struct gcr_error *error)
{
	int64_t deadline_usec = wait->timeout_usec < 0 ? -1 : gcr_clock_usec() + wait->timeout_usec;
	struct gcr_helper *helper;
	struct worker_slot *slot;
	int r;

	wait->queued_usec = 0;
	slot = join_slot(helpers, uuid, is_second);
	if (!slot)
		return gcr_error_set(error, ENOMEM, "out of memory for a worker");
	r = wait_turn(helpers, slot, wait, deadline_usec, error);
	if (r < 0) {
		leave_slot(helpers, slot, false);
		return r;
	}
	*error = (struct gcr_error){0};
	r = take_worker_of(helpers, slot, &helper, error);
	if (r < 0) {
		leave_slot(helpers, slot, true);
		return r;
	}
	gcr_helpers_wake(helpers);
	r = await_hello(helpers, helper, wait, deadline_usec, error);
	if (r < 0) {
		gcr_helper_put(helper);
		return r;
	}
	*ret_helper = helper;
	return 0;
}

void gcr_helpers_start_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES])
{
	struct worker_slot *slot = join_slot(helpers, uuid, false);
	struct gcr_helper *helper = NULL;
	struct gcr_error error;
	bool has_turn;

	if (!slot)
		return;
	pthread_mutex_lock(&helpers->lock);
	/* The user that has the turn has a worker, or is about to start one. */
	has_turn = gcr_worker_slot_take(slot);
	if (has_turn && !slot->idle &&
	    !gcr_helpers_start_locked(helpers, GCR_HELPER_WORKER, slot->uuid, HELPER_IDLE, &helper,
				      &error)) {
		helper->slot = slot;
		helper->deadline_usec = gcr_clock_usec() + helpers->config.idle_usec;
		slot->idle = helper;
	}
	pthread_mutex_unlock(&helpers->lock);
	leave_slot(helpers, slot, has_turn);
	gcr_helpers_wake(helpers);
}

pid_t gcr_helpers_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	const struct worker_slot *slot = gcr_worker_slot_find(helpers, uuid, is_second);

	return slot && slot->idle && slot->idle->said_hello ? slot->idle->pid : 0;
}

bool gcr_helpers_has_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	const struct worker_slot *slot = gcr_worker_slot_find(helpers, uuid, is_second);

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
	struct worker_slot *slot = gcr_worker_slot_find(helpers, uuid, is_second);
	struct gcr_helper *helper;

	if (!slot || !slot->idle || !gcr_worker_slot_take(slot))
		return -EAGAIN;
	helper = take_idle_locked(slot);
	if (!helper) {
		gcr_worker_slot_pass(slot);
		return -EAGAIN;
	}
	slot->users++;
	slot->is_borrowed = true;
	*ret_helper = helper;
	return 0;
}

int gcr_helpers_take_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
				 bool is_second, uint64_t client, int64_t wait_usec,
				 struct gcr_helper **ret_helper)
{
	struct gcr_worker_wait wait = {.client = client, .wake_fd = -1};
	int64_t deadline_usec = gcr_clock_usec();
	struct gcr_helper *helper = NULL;
	struct gcr_error unused = {0};
	struct worker_slot *slot;

	{
		GCR_LOCK_SCOPE(&helpers->lock);

		slot = gcr_worker_slot_find(helpers, uuid, is_second);
		if (!slot)
			return -EAGAIN;
		slot->users++;
		if (slot->is_borrowed)
			deadline_usec += wait_usec;
	}
	if (wait_turn(helpers, slot, &wait, deadline_usec, &unused) < 0) {
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

void gcr_helper_put(struct gcr_helper *helper)
{
	gcr_helper_put_calling(helper, 0);
}

void gcr_helper_put_calling(struct gcr_helper *helper, int64_t usec)
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
			gcr_helpers_leave_locked(helper, now_usec + GCR_HELPER_LEAVE_USEC + usec);
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
			gcr_helpers_leave_locked(
				helper, is_busy ? now_usec : now_usec + GCR_HELPER_LEAVE_USEC);
		}
	}
	if (slot)
		leave_slot(helpers, slot, true);
	gcr_helpers_wake(helpers);
}

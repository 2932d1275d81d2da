/* SPDX-License-Identifier: MIT */
/*
 * The lists of pollers, and the thread. `pollers.lock` is a leaf that guards everything; it is
 * released for each notification. All steps under it take constant time but the beginning of a
 * round, which moves the log's pollers into the lists of their owners.
 */
#include "fs/base/pollers.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/lock.h"

/* The pollers of one user. */
struct gcr_poll_owner {
	struct gcr_poll_owner *next;
	uid_t uid;
	size_t pollers;
	struct gcr_poll_link due;  /* pollers to be notified, the first one first */
	struct gcr_poll_link link; /* in pollers.owners_due */
	bool is_due;
};

enum thread_state {
	NOT_STARTED,
	RUNNING,
	STOPPED,
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	enum thread_state state;
	struct gcr_poll_owner *owners;
	struct gcr_poll_link owners_due; /* those whose turn it is, the next one first */
	struct gcr_poll_link ready;	 /* logs whose round may begin */
	struct gcr_poll_link resting;	 /* logs, in the order in which their rest ends */
} pollers = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.owners_due = {&pollers.owners_due, &pollers.owners_due},
	.ready = {&pollers.ready, &pollers.ready},
	.resting = {&pollers.resting, &pollers.resting},
};

#define OBJECT_OF(link, type, member) ((type *)((char *)(link)-offsetof(type, member)))

static void list_init(struct gcr_poll_link *head)
{
	head->previous = head->next = head;
}

static bool is_empty(const struct gcr_poll_link *head)
{
	return head->next == head;
}

static void append(struct gcr_poll_link *head, struct gcr_poll_link *link)
{
	link->previous = head->previous;
	link->next = head;
	head->previous->next = link;
	head->previous = link;
}

static void take_out(struct gcr_poll_link *link)
{
	link->previous->next = link->next;
	link->next->previous = link->previous;
}

/* Makes the poller due: it is notified when it is its owner's turn. Lock: pollers. */
static void make_due(struct gcr_poller *poller)
{
	struct gcr_poll_owner *owner = poller->owner;

	take_out(&poller->link);
	append(&owner->due, &poller->link);
	if (!owner->is_due)
		append(&pollers.owners_due, &owner->link);
	owner->is_due = true;
}

/* Begins a round of the log. Lock: pollers. */
static void begin_round(struct gcr_polled *polled)
{
	while (!is_empty(&polled->armed))
		make_due(OBJECT_OF(polled->armed.next, struct gcr_poller, link));
}

/*
 * Takes the handle of the next poller that is due, a poller of each owner in turn; NULL: none is.
 * The caller notifies it, without the lock. Lock: pollers.
 */
static struct fuse_pollhandle *take_due(void)
{
	while (!is_empty(&pollers.owners_due)) {
		struct gcr_poll_owner *owner =
			OBJECT_OF(pollers.owners_due.next, struct gcr_poll_owner, link);
		struct fuse_pollhandle *handle = NULL;

		take_out(&owner->link);
		if (!is_empty(&owner->due)) {
			struct gcr_poller *poller =
				OBJECT_OF(owner->due.next, struct gcr_poller, link);

			take_out(&poller->link);
			handle = TAKE_PTR(poller->handle);
		}
		owner->is_due = !is_empty(&owner->due);
		if (owner->is_due)
			append(&pollers.owners_due, &owner->link);
		if (handle)
			return handle;
	}
	return NULL;
}

/* Notifies one poller that is due; false: none is. Lock: pollers, released meanwhile. */
static bool notify_one(void)
{
	struct fuse_pollhandle *handle = take_due();

	if (!handle)
		return false;
	pthread_mutex_unlock(&pollers.lock);
	fuse_lowlevel_notify_poll(handle);
	fuse_pollhandle_destroy(handle);
	pthread_mutex_lock(&pollers.lock);
	return true;
}

static void make_ready(struct gcr_polled *polled)
{
	append(&pollers.ready, &polled->link);
	polled->is_ready = true;
}

/* Ends the rest of the logs that have rested long enough. Lock: pollers. */
static void end_rests(int64_t now_usec)
{
	while (!is_empty(&pollers.resting)) {
		struct gcr_polled *polled =
			OBJECT_OF(pollers.resting.next, struct gcr_polled, link);

		if (polled->rests_until_usec > now_usec)
			return;
		take_out(&polled->link);
		polled->is_resting = false;
		if (polled->is_wanted)
			make_ready(polled);
		polled->is_wanted = false;
	}
}

/* Begins the rounds of all logs that are ready; each log rests then. Lock: pollers. */
static void begin_rounds(int64_t now_usec)
{
	while (!is_empty(&pollers.ready)) {
		struct gcr_polled *polled = OBJECT_OF(pollers.ready.next, struct gcr_polled, link);

		take_out(&polled->link);
		polled->is_ready = false;
		begin_round(polled);
		append(&pollers.resting, &polled->link);
		polled->is_resting = true;
		polled->rests_until_usec = now_usec + GCR_POLLED_REST_USEC;
	}
}

static void wait_for_change(void)
{
	if (is_empty(&pollers.resting))
		pthread_cond_wait(&pollers.changed, &pollers.lock);
	else
		gcr_cond_wait_until(
			&pollers.changed, &pollers.lock,
			OBJECT_OF(pollers.resting.next, struct gcr_polled, link)->rests_until_usec);
}

static void *run(void *data)
{
	pthread_setname_np(pthread_self(), "gpucrfs-events");
	pthread_mutex_lock(&pollers.lock);
	while (pollers.state == RUNNING) {
		int64_t now_usec = gcr_clock_usec();

		end_rests(now_usec);
		begin_rounds(now_usec);
		if (!notify_one())
			wait_for_change();
	}
	pthread_mutex_unlock(&pollers.lock);
	return data;
}

int gcr_pollers_start(void)
{
	int result;

	GCR_LOCK_SCOPE(&pollers.lock);
	result = pthread_create(&pollers.thread, NULL, run, NULL);
	if (!result)
		pollers.state = RUNNING;
	return -result;
}

void gcr_pollers_stop(void)
{
	bool was_running;

	pthread_mutex_lock(&pollers.lock);
	was_running = pollers.state == RUNNING;
	pollers.state = STOPPED;
	pthread_cond_signal(&pollers.changed);
	pthread_mutex_unlock(&pollers.lock);
	if (was_running)
		pthread_join(pollers.thread, NULL);
}

void gcr_polled_init(struct gcr_polled *polled)
{
	*polled = (struct gcr_polled){0};
	list_init(&polled->armed);
}

void gcr_polled_finish(struct gcr_polled *polled)
{
	GCR_LOCK_SCOPE(&pollers.lock);
	if (polled->is_ready || polled->is_resting)
		take_out(&polled->link);
}

void gcr_polled_notify(struct gcr_polled *polled)
{
	GCR_LOCK_SCOPE(&pollers.lock);
	/* A poller that is armed later sees the line that is told of. */
	if (is_empty(&polled->armed) || pollers.state == STOPPED)
		return;
	if (pollers.state == NOT_STARTED) {
		begin_round(polled);
		while (notify_one())
			;
	} else if (polled->is_resting) {
		polled->is_wanted = true;
	} else if (!polled->is_ready) {
		make_ready(polled);
		pthread_cond_signal(&pollers.changed);
	}
}

/* The user's entry, a new one if need be. NULL: no memory. Lock: pollers. */
static struct gcr_poll_owner *get_owner(uid_t uid)
{
	struct gcr_poll_owner *owner = pollers.owners;

	while (owner && owner->uid != uid)
		owner = owner->next;
	if (owner)
		return owner;
	owner = calloc(1, sizeof(*owner));
	if (!owner)
		return NULL;
	owner->uid = uid;
	list_init(&owner->due);
	owner->next = pollers.owners;
	pollers.owners = owner;
	return owner;
}

/* Frees the entry of an owner who has no pollers any more. Lock: pollers. */
static void forget_owner(struct gcr_poll_owner *owner)
{
	struct gcr_poll_owner **link = &pollers.owners;

	while (*link != owner)
		link = &(*link)->next;
	*link = owner->next;
	if (owner->is_due)
		take_out(&owner->link);
	free(owner);
}

int gcr_poller_init(struct gcr_poller *poller, struct gcr_polled *polled, uid_t owner)
{
	GCR_LOCK_SCOPE(&pollers.lock);
	*poller = (struct gcr_poller){.polled = polled, .owner = get_owner(owner)};
	if (!poller->owner)
		return -ENOMEM;
	poller->owner->pollers++;
	return 0;
}

void gcr_poller_finish(struct gcr_poller *poller)
{
	GCR_LOCK_SCOPE(&pollers.lock);
	if (poller->handle) {
		take_out(&poller->link);
		fuse_pollhandle_destroy(TAKE_PTR(poller->handle));
	}
	if (!--poller->owner->pollers)
		forget_owner(poller->owner);
}

void gcr_poller_arm(struct gcr_poller *poller, struct fuse_pollhandle *handle)
{
	struct fuse_pollhandle *old;

	pthread_mutex_lock(&pollers.lock);
	old = poller->handle;
	poller->handle = handle;
	/* One that is due stays so, and the new handle is notified. */
	if (!old)
		append(&poller->polled->armed, &poller->link);
	pthread_mutex_unlock(&pollers.lock);
	if (old)
		fuse_pollhandle_destroy(old);
}

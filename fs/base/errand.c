/* SPDX-License-Identifier: MIT */
/* The list of errands; the limits are checked by counting it. */
#include "fs/base/errand.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Interval between checks whether to stop waiting. */
#define LOOK_USEC (50 * GCR_USEC_PER_MSEC)

struct gcr_errand {
	struct gcr_errand *next;
	enum gcr_errand_kind kind;
	uid_t owner;
	bool is_limited; /* an ordinary user's */
	bool is_left;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	struct gcr_errand *list;
} errands = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* For messages: the text before and after the owner's name. */
static const char *const words[GCR_ERRAND_KINDS_COUNT][2] = {
	[GCR_ERRAND_LOOK] = {"looks at what processes of ", " have open"},
	[GCR_ERRAND_DIGEST] = {"readings of files that processes of ", " have open"},
	[GCR_ERRAND_CRIU] = {"restores of ", ""},
};

struct count {
	size_t all;
	size_t left; /* how many of these are left behind */
};

/* Counts the errands that share slots with @errand: those of its owner, or of all users. */
static struct count count_locked(const struct gcr_errand *errand, bool of_all)
{
	struct count count = {0};

	for (const struct gcr_errand *other = errands.list; other; other = other->next) {
		if (other->kind != errand->kind || other->is_limited != errand->is_limited ||
		    (!of_all && errand->is_limited && other->owner != errand->owner))
			continue;
		count.all++;
		count.left += other->is_left;
	}
	return count;
}

static int refuse(const struct gcr_errand *errand, bool of_all, struct gcr_error *error)
{
	char whose[32] = "all users together";

	if (!of_all)
		snprintf(whose, sizeof(whose), "user %u", (unsigned int)errand->owner);
	return gcr_error_set(error, EBUSY,
			     "earlier %s%s%s still wait for filesystems that do not answer: end "
			     "what serves these, or try again later",
			     words[errand->kind][0], whose, words[errand->kind][1]);
}

/*
 * Adds the errand to the list if there is a slot for it. -EAGAIN: the errand has to wait; -EBUSY,
 * with a message: threads that were left behind hold all slots.
 */
static int try_locked(struct gcr_errand *errand, struct gcr_error *error)
{
	size_t own_most = errand->is_limited ? GCR_ERRAND_USER_MAX : GCR_ERRAND_ROOT_MAX;
	struct count own = count_locked(errand, false);
	struct count all = count_locked(errand, true);

	if (own.left >= own_most)
		return refuse(errand, false, error);
	if (errand->is_limited && all.left >= GCR_ERRAND_ALL_MAX)
		return refuse(errand, true, error);
	if (own.all >= own_most || (errand->is_limited && all.all >= GCR_ERRAND_ALL_MAX))
		return -EAGAIN;
	errand->next = errands.list;
	errands.list = errand;
	return 0;
}

static bool is_stopped(const struct gcr_errand_wait *wait)
{
	return wait->is_stopped && wait->is_stopped(wait->data);
}

int gcr_errand_begin(struct gcr_quota *quota, enum gcr_errand_kind kind, uid_t uid,
		     const struct gcr_errand_wait *wait, struct gcr_errand **ret_errand,
		     struct gcr_error *error)
{
	_cleanup_free_ struct gcr_errand *errand = calloc(1, sizeof(*errand));
	int result;

	if (!errand)
		return gcr_error_set(error, ENOMEM, "out of memory");
	errand->kind = kind;
	errand->owner = gcr_quota_owner(quota, uid);
	errand->is_limited = gcr_quota_is_limited(quota, errand->owner);
	pthread_mutex_lock(&errands.lock);
	while ((result = try_locked(errand, error)) == -EAGAIN) {
		bool is_over;

		gcr_cond_wait_until(&errands.ended, &errands.lock, gcr_clock_usec() + LOOK_USEC);
		pthread_mutex_unlock(&errands.lock);
		is_over = is_stopped(wait);
		if (is_over)
			return gcr_error_set(error, ECANCELED, "%s", "");
		if (wait->deadline_usec && gcr_clock_usec() >= wait->deadline_usec)
			return gcr_error_set(
				error, ETIMEDOUT,
				"other dumps or restores of user %u wait for filesystems that do "
				"not answer",
				(unsigned int)errand->owner);
		pthread_mutex_lock(&errands.lock);
	}
	pthread_mutex_unlock(&errands.lock);
	if (!result)
		*ret_errand = TAKE_PTR(errand);
	return result;
}

void gcr_errand_leave(struct gcr_errand *errand)
{
	GCR_LOCK_SCOPE(&errands.lock);
	errand->is_left = true;
	/* Waiting callers may have to fail, because no slot will become free. */
	pthread_cond_broadcast(&errands.ended);
}

void gcr_errand_end(struct gcr_errand *errand)
{
	struct gcr_errand **link = &errands.list;

	if (!errand)
		return;
	pthread_mutex_lock(&errands.lock);
	while (*link != errand)
		link = &(*link)->next;
	*link = errand->next;
	pthread_cond_broadcast(&errands.ended);
	pthread_mutex_unlock(&errands.lock);
	free(errand);
}

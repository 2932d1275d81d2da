/* SPDX-License-Identifier: MIT */
/* A table of users whose writes were refused, with the last error and the log allowance of each. */
#include "fs/base/refusals.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "fs/base/log.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define USERS_MAX    64 /* when full, the user with the oldest activity is dropped */
#define OF_USER_USEC GCR_USEC_PER_SEC
#define OF_USER_MAX  10
#define OF_ALL_USEC  (GCR_USEC_PER_SEC / 5)
#define OF_ALL_MAX   100

/* A token bucket: a burst of lines, then one in each period. */
struct allowance {
	int64_t free_usec; /* when the bucket is full again */
};

struct user {
	uid_t uid;
	bool is_used;
	int64_t last_usec;
	struct allowance log;
	uid_t reader; /* of the error */
	struct gcr_error error;
};

struct gcr_refusals {
	uid_t trusted;
	pthread_mutex_t lock; /* guards the fields below */
	struct user users[USERS_MAX];
	struct allowance log;
	uint64_t left_out; /* lines suppressed since the last one written */
};

int gcr_refusals_create(uid_t trusted, struct gcr_refusals **ret_refusals)
{
	struct gcr_refusals *refusals = calloc(1, sizeof(*refusals));

	if (!refusals)
		return -ENOMEM;
	refusals->trusted = trusted;
	pthread_mutex_init(&refusals->lock, NULL);
	/* The first entry is reserved for the trusted user. */
	refusals->users[0].uid = trusted;
	refusals->users[0].is_used = true;
	*ret_refusals = refusals;
	return 0;
}

void gcr_refusals_destroy(struct gcr_refusals *refusals)
{
	if (!refusals)
		return;
	pthread_mutex_destroy(&refusals->lock);
	free(refusals);
}

/* The user's entry; NULL: there is none. */
static struct user *find_locked(struct gcr_refusals *refusals, uid_t uid)
{
	for (size_t i = 0; i < USERS_MAX; i++)
		if (refusals->users[i].is_used && refusals->users[i].uid == uid)
			return &refusals->users[i];
	return NULL;
}

/* The user's entry; a new one replaces the entry that has not been used for longest. */
static struct user *get_locked(struct gcr_refusals *refusals, uid_t uid)
{
	struct user *user = find_locked(refusals, uid);
	struct user *oldest = &refusals->users[1];

	for (size_t i = 1; i < USERS_MAX && !user; i++)
		if (refusals->users[i].last_usec < oldest->last_usec)
			oldest = &refusals->users[i];
	if (!user) {
		user = oldest;
		*user = (struct user){.uid = uid, .is_used = true};
	}
	user->last_usec = gcr_clock_usec();
	return user;
}

void gcr_refusals_note(struct gcr_refusals *refusals, uid_t owner, uid_t reader,
		       const struct gcr_error *error)
{
	struct user *user;

	pthread_mutex_lock(&refusals->lock);
	/* Users without errors need no entry. */
	user = error->number ? get_locked(refusals, owner) : find_locked(refusals, owner);
	if (user && (error->number || user->reader == reader)) {
		user->reader = reader;
		user->error = *error;
	}
	pthread_mutex_unlock(&refusals->lock);
}

void gcr_refusals_render(struct gcr_refusals *refusals, uid_t owner, uid_t reader, FILE *stream)
{
	struct gcr_error error = {0};
	const struct user *user;

	pthread_mutex_lock(&refusals->lock);
	user = find_locked(refusals, owner);
	if (user && user->reader == reader)
		error = user->error;
	pthread_mutex_unlock(&refusals->lock);
	gcr_error_print(&error, stream);
}

/* Is a line left of this allowance of @most lines, which gets one back each @period_usec? */
static bool has_one(const struct allowance *allowance, int64_t now_usec, int64_t period_usec,
		    int most)
{
	return allowance->free_usec <= now_usec + (most - 1) * period_usec;
}

static void take_one(struct allowance *allowance, int64_t now_usec, int64_t period_usec)
{
	if (allowance->free_usec < now_usec)
		allowance->free_usec = now_usec;
	allowance->free_usec += period_usec;
}

/* May a line be written? *ret_left_out: number of suppressed lines, to be reported with it. */
static bool may_log(struct gcr_refusals *refusals, uid_t uid, uint64_t *ret_left_out)
{
	int64_t now_usec = gcr_clock_usec();
	struct user *user;
	bool may = true;

	pthread_mutex_lock(&refusals->lock);
	if (uid != refusals->trusted) {
		user = get_locked(refusals, uid);
		may = has_one(&user->log, now_usec, OF_USER_USEC, OF_USER_MAX) &&
		      has_one(&refusals->log, now_usec, OF_ALL_USEC, OF_ALL_MAX);
		if (may) {
			take_one(&user->log, now_usec, OF_USER_USEC);
			take_one(&refusals->log, now_usec, OF_ALL_USEC);
		}
	}
	*ret_left_out = refusals->left_out;
	refusals->left_out = may ? 0 : refusals->left_out + 1;
	pthread_mutex_unlock(&refusals->lock);
	return may;
}

void gcr_refusals_log(struct gcr_refusals *refusals, uid_t uid, pid_t pid, const char *format, ...)
{
	_cleanup_free_ char *words = NULL;
	uint64_t left_out;
	va_list arguments;
	int length;

	if (!may_log(refusals, uid, &left_out))
		return;
	if (left_out)
		gcr_log(LOG_WARNING, 0, "%llu errors of ordinary users are not in this log",
			(unsigned long long)left_out);
	va_start(arguments, format);
	length = vasprintf(&words, format, arguments);
	va_end(arguments);
	if (length < 0)
		words = NULL;
	else
		gcr_log(LOG_WARNING, pid, "%s", words);
}

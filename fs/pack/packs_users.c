/* SPDX-License-Identifier: MIT */
/*
 * The packs of all users, opened at first use. users->lock guards the list; users are added at its
 * head and never removed before the list is destroyed.
 */
#include "fs/pack/packs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "lib/beneath.h"
#include "lib/lock.h"

struct user { /* fixed for life */
	struct user *next;
	struct gcr_packs *packs;
};

struct gcr_packs_users {
	/* Fixed for life. */
	int store_fd;
	struct gcr_packs_account account;

	pthread_mutex_t lock; /* guards the fields below */
	struct user *users;
};

int gcr_packs_users_create(int store_fd, const struct gcr_packs_account *account,
			   struct gcr_packs_users **ret_users)
{
	struct gcr_packs_users *users = calloc(1, sizeof(*users));

	if (!users)
		return -ENOMEM;
	users->store_fd = store_fd;
	users->account = *account;
	pthread_mutex_init(&users->lock, NULL);
	*ret_users = users;
	return 0;
}

/* Removes directories without segments; the others are not empty and stay. */
static void remove_directories(const struct gcr_packs_users *users)
{
	char name[sizeof(GCR_PACKS_NAME "/") + 10];

	for (const struct user *user = users->users; user; user = user->next) {
		snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u", gcr_packs_uid(user->packs));
		unlinkat(users->store_fd, name, AT_REMOVEDIR);
	}
	unlinkat(users->store_fd, GCR_PACKS_NAME, AT_REMOVEDIR);
}

void gcr_packs_users_destroy(struct gcr_packs_users *users)
{
	if (!users)
		return;
	remove_directories(users);
	while (users->users) {
		struct user *user = users->users;

		users->users = user->next;
		gcr_packs_wait_disk(user->packs);
		gcr_packs_unref(user->packs);
		free(user);
	}
	pthread_mutex_destroy(&users->lock);
	free(users);
}

int gcr_packs_users_get(struct gcr_packs_users *users, uid_t uid, struct gcr_packs **ret_packs,
			struct gcr_error *error)
{
	struct user *user;
	int result;

	GCR_LOCK_SCOPE(&users->lock);
	for (user = users->users; user; user = user->next)
		if (gcr_packs_uid(user->packs) == uid)
			break;
	if (!user) {
		user = calloc(1, sizeof(*user));
		if (!user)
			return gcr_error_set(error, ENOMEM, "out of memory");
		result = gcr_packs_open(users->store_fd, uid, &users->account, &user->packs, error);
		if (result < 0) {
			free(user);
			return result;
		}
		user->next = users->users;
		users->users = user;
	}
	*ret_packs = gcr_packs_ref(user->packs);
	return 0;
}

static void sweep_user(struct gcr_packs_users *users, const char *name)
{
	_cleanup_(gcr_packs_unref_cleanup) struct gcr_packs *packs = NULL;
	struct gcr_error error;
	unsigned long uid;
	char *end;

	uid = strtoul(name, &end, 10);
	if (*name < '0' || *name > '9' || *end || (uid_t)uid != uid)
		return;
	if (gcr_packs_users_get(users, (uid_t)uid, &packs, &error) < 0)
		gcr_log(LOG_WARNING, 0, "%s", error.words);
	else
		gcr_packs_sweep(packs);
}

void gcr_packs_users_sweep(struct gcr_packs_users *users)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;

	if (gcr_beneath_list(users->store_fd, GCR_PACKS_NAME, &dir) < 0)
		return;
	while ((entry = readdir(dir)))
		sweep_user(users, entry->d_name);
}

void gcr_packs_users_figures(struct gcr_packs_users *users, struct gcr_packs_figures *ret_figures)
{
	struct gcr_packs_figures sum = {0};
	const struct user *first;

	pthread_mutex_lock(&users->lock);
	first = users->users;
	pthread_mutex_unlock(&users->lock);
	/* Without the lock: one user's packs may be busy, while others look up theirs. */
	for (const struct user *user = first; user; user = user->next) {
		struct gcr_packs_figures one;

		gcr_packs_figures(user->packs, &one);
		sum.chunks += one.chunks;
		sum.packed_bytes += one.packed_bytes;
		sum.unpacked_bytes += one.unpacked_bytes;
		sum.shared_bytes += one.shared_bytes;
		sum.memory_bytes += one.memory_bytes;
		sum.spilled_bytes += one.spilled_bytes;
		sum.segments += one.segments;
		sum.spilled_segments += one.spilled_segments;
	}
	*ret_figures = sum;
}

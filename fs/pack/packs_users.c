/* SPDX-License-Identifier: MIT */
/*
 * The packs of all users, opened at first use, and closed when nobody uses them and no chunks are
 * left. users->lock guards the list. In the lock order a lock of packs comes after it.
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
#include "fs/pack/packs_private.h"
#include "lib/beneath.h"
#include "lib/lock.h"

struct user {
	struct user *next;
	struct gcr_packs *packs; /* a reference */
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

/* Removes the user's directory. False: the directory has segments, or cannot be removed. */
static bool remove_directory(const struct gcr_packs_users *users, const struct user *user)
{
	char name[sizeof(GCR_PACKS_NAME "/") + 10];

	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u", gcr_packs_uid(user->packs));
	return !unlinkat(users->store_fd, name, AT_REMOVEDIR) || errno == ENOENT;
}

void gcr_packs_users_destroy(struct gcr_packs_users *users)
{
	if (!users)
		return;
	while (users->users) {
		struct user *user = users->users;

		users->users = user->next;
		remove_directory(users, user);
		gcr_packs_wait_disk(user->packs);
		user->packs->users = NULL;
		gcr_packs_unref(user->packs);
		free(user);
	}
	unlinkat(users->store_fd, GCR_PACKS_NAME, AT_REMOVEDIR);
	pthread_mutex_destroy(&users->lock);
	free(users);
}

/*
 * Has nobody but the list a reference, and are there no chunks? New references are made from those
 * that exist, or with the lock of the list. Lock: users.
 */
static bool is_unused_locked(const struct user *user)
{
	return atomic_load_explicit(&user->packs->references, memory_order_acquire) == 1 &&
	       gcr_packs_are_empty(user->packs);
}

/*
 * Takes unused packs out of the list: @packs, which may be freed already, or all of them if NULL.
 * Returns them as a list. Their directories are removed with the lock held: the same user may get a
 * new one right after it. Packs whose directory stays are kept: files in it, opened again, would be
 * taken for those of an earlier daemon. Lock: users.
 */
static struct user *take_unused_locked(struct gcr_packs_users *users, const struct gcr_packs *packs)
{
	struct user **link = &users->users;
	struct user *unused = NULL;

	while (*link) {
		struct user *user = *link;

		if ((packs && user->packs != packs) || !is_unused_locked(user) ||
		    !remove_directory(users, user)) {
			link = &user->next;
			continue;
		}
		*link = user->next;
		user->next = unused;
		unused = user;
	}
	return unused;
}

static void free_unused(struct user *unused)
{
	while (unused) {
		struct user *user = unused;

		unused = user->next;
		gcr_packs_unref(user->packs);
		free(user);
	}
}

static void close_unused(struct gcr_packs_users *users, const struct gcr_packs *packs)
{
	struct user *unused;

	pthread_mutex_lock(&users->lock);
	unused = take_unused_locked(users, packs);
	pthread_mutex_unlock(&users->lock);
	free_unused(unused);
}

void gcr_packs_unref(struct gcr_packs *packs)
{
	struct gcr_packs_users *users = packs ? packs->users : NULL;
	int references;

	if (!packs)
		return;
	references = atomic_fetch_sub_explicit(&packs->references, 1, memory_order_acq_rel);
	if (references == 1)
		gcr_packs_free(packs);
	else if (references == 2 && users)
		close_unused(users, packs);
}

static struct user *find_locked(const struct gcr_packs_users *users, uid_t uid)
{
	struct user *user = users->users;

	while (user && gcr_packs_uid(user->packs) != uid)
		user = user->next;
	return user;
}

/* Opens the packs of a user who is not in the list. Lock: users. */
static int add_locked(struct gcr_packs_users *users, uid_t uid, struct user **ret_user,
		      struct gcr_error *error)
{
	_cleanup_free_ struct user *user = calloc(1, sizeof(*user));
	int result;

	if (!user)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_packs_open(users->store_fd, uid, &users->account, &user->packs, error);
	if (result < 0)
		return result;
	user->packs->users = users;
	user->next = users->users;
	users->users = user;
	*ret_user = TAKE_PTR(user);
	return 0;
}

int gcr_packs_users_get(struct gcr_packs_users *users, uid_t uid, struct gcr_packs **ret_packs,
			struct gcr_error *error)
{
	struct user *unused = NULL;
	struct user *user;
	int result = 0;

	pthread_mutex_lock(&users->lock);
	user = find_locked(users, uid);
	if (!user) {
		/* Those whose last segments were removed from the disk after the last use. */
		unused = take_unused_locked(users, NULL);
		result = add_locked(users, uid, &user, error);
	}
	if (!result)
		*ret_packs = gcr_packs_ref(user->packs);
	pthread_mutex_unlock(&users->lock);
	free_unused(unused);
	return result;
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

/* References to the packs of all users; the caller frees the array. NULL: no memory. */
static struct gcr_packs **refer_to_all(struct gcr_packs_users *users, size_t *ret_count)
{
	struct gcr_packs **list;
	size_t count = 0;

	GCR_LOCK_SCOPE(&users->lock);
	for (const struct user *user = users->users; user; user = user->next)
		count++;
	list = calloc(count + 1, sizeof(struct gcr_packs *));
	if (!list)
		return NULL;
	count = 0;
	for (const struct user *user = users->users; user; user = user->next)
		list[count++] = gcr_packs_ref(user->packs);
	*ret_count = count;
	return list;
}

void gcr_packs_users_figures(struct gcr_packs_users *users, struct gcr_packs_figures *ret_figures)
{
	struct gcr_packs_figures sum = {0};
	size_t count = 0;
	/* Without the lock: one user's packs may be busy, while others look up theirs. */
	_cleanup_free_ struct gcr_packs **list = refer_to_all(users, &count);

	for (size_t i = 0; i < count; i++) {
		struct gcr_packs_figures one;

		gcr_packs_figures(list[i], &one);
		gcr_packs_unref(list[i]);
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

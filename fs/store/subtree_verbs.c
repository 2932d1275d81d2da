/* SPDX-License-Identifier: MIT */
/*
 * Changes by users and verbs exclude each other: a change fails while a verb is under way, and a
 * verb waits for the changes that have begun.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>

#include "fs/store/store.h"
#include "lib/lock.h"

/* May the subtree be changed? -ESTALE: the subtree is retired; -EBUSY: a verb. Lock: subtree. */
static int may_change_locked(const struct gcr_subtree *subtree)
{
	return subtree->is_retired ? -ESTALE : subtree->verbs ? -EBUSY : 0;
}

int gcr_subtree_touch(struct gcr_subtree *subtree)
{
	struct gcr_room *room = NULL;
	int result = 0;

	if (atomic_load(&subtree->is_touched))
		return 0;
	pthread_mutex_lock(&subtree->touch_lock);
	if (!atomic_load(&subtree->is_touched)) {
		if (subtree->touch)
			result = subtree->touch(subtree->data, &room);
		if (room)
			gcr_room_set_owner(room, atomic_load(&subtree->owner));
		if (!result) {
			pthread_mutex_lock(&subtree->lock);
			subtree->room = room;
			atomic_store(&subtree->is_touched, true);
			pthread_mutex_unlock(&subtree->lock);
		}
	}
	pthread_mutex_unlock(&subtree->touch_lock);
	return result;
}

bool gcr_subtree_is_touched(const struct gcr_subtree *subtree)
{
	return atomic_load(&subtree->is_touched);
}

/* Prepare the first change: the account is not made while a verb is under way. */
static int prepare_change(struct gcr_subtree *subtree)
{
	int result;

	pthread_mutex_lock(&subtree->lock);
	result = may_change_locked(subtree);
	if (!result)
		subtree->changes++;
	pthread_mutex_unlock(&subtree->lock);
	if (result < 0)
		return result;
	result = gcr_subtree_touch(subtree);
	gcr_subtree_end_change(subtree);
	return result;
}

int gcr_subtree_begin_change(struct gcr_subtree *subtree, uint64_t epoch)
{
	int result = gcr_subtree_is_touched(subtree) ? 0 : prepare_change(subtree);

	if (result < 0)
		return result;
	pthread_mutex_lock(&subtree->lock);
	result = may_change_locked(subtree);
	if (!result && subtree->epoch != epoch)
		result = -EBUSY;
	if (!result)
		subtree->changes++;
	pthread_mutex_unlock(&subtree->lock);
	return result;
}

void gcr_subtree_end_change(struct gcr_subtree *subtree)
{
	pthread_mutex_lock(&subtree->lock);
	if (!--subtree->changes)
		pthread_cond_broadcast(&subtree->has_no_change);
	pthread_mutex_unlock(&subtree->lock);
}

int gcr_subtree_lock_names(struct gcr_subtree *subtree)
{
	int result = gcr_subtree_is_touched(subtree) ? 0 : prepare_change(subtree);

	if (result < 0)
		return result;
	pthread_mutex_lock(&subtree->lock);
	result = may_change_locked(subtree);
	if (result < 0)
		pthread_mutex_unlock(&subtree->lock);
	return result;
}

void gcr_subtree_begin_verb(struct gcr_subtree *subtree)
{
	pthread_mutex_lock(&subtree->lock);
	subtree->verbs++;
	subtree->epoch++;
	while (subtree->changes)
		pthread_cond_wait(&subtree->has_no_change, &subtree->lock);
	pthread_mutex_unlock(&subtree->lock);
}

void gcr_subtree_end_verb(struct gcr_subtree *subtree)
{
	pthread_mutex_lock(&subtree->lock);
	subtree->verbs--;
	pthread_mutex_unlock(&subtree->lock);
}

bool gcr_subtree_is_unwanted(struct gcr_subtree *subtree)
{
	bool is;

	pthread_mutex_lock(&subtree->lock);
	is = subtree->verbs || subtree->is_retired;
	pthread_mutex_unlock(&subtree->lock);
	return is;
}

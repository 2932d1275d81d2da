/* SPDX-License-Identifier: MIT */
/*
 * The queue of removals, in which users take turns, and the bytes of files that are unlinked and
 * still open.
 */
#include "fs/store/store_private.h"

#include <inttypes.h>
#include <stdio.h>

#include "fs/base/quota.h"
#include "fs/store/subtree.h"
#include "lib/clock.h"

void gcr_store_note_unlinked_locked(struct gcr_store *store)
{
	store->unlinked_usec = gcr_clock_usec();
	store->held_free_blocks = 0;
}

void gcr_store_name_removal_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	snprintf(removal->name, sizeof(removal->name), ".gone-%" PRIu32,
		 gcr_store_next_number_locked(store));
}

bool gcr_store_removal_number(const char *name, uint32_t *ret_number)
{
	return sscanf(name, ".gone-%" SCNu32, ret_number) == 1;
}

/* The user for whom the files count. Lock: store. */
static uid_t owner_of(const struct gcr_store *store, const struct gcr_store_removal *removal)
{
	const struct gcr_subtree *subtree = removal->subtree;

	if (!subtree && removal->snapshot)
		subtree = removal->snapshot->subtree;
	return gcr_quota_owner(store->quota, subtree ? gcr_subtree_owner(subtree) : removal->uid);
}

void gcr_store_remove_later_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	struct gcr_store_removal **link;

	removal->owner = owner_of(store, removal);
	removal->round = store->removal_round + (removal->owner == store->removal_owner);
	for (const struct gcr_store_removal *other = store->removals; other; other = other->next)
		if (other->owner == removal->owner && other->round >= removal->round)
			removal->round = other->round + 1;
	for (link = &store->removals; *link && (*link)->round <= removal->round;
	     link = &(*link)->next)
		;
	removal->next = *link;
	*link = removal;
	pthread_cond_broadcast(&store->changed);
}

void gcr_store_hold(struct gcr_store *store, uint64_t bytes)
{
	pthread_mutex_lock(&store->lock);
	store->going_bytes += bytes;
	pthread_mutex_unlock(&store->lock);
}

void gcr_store_let_go(struct gcr_store *store, uint64_t bytes)
{
	pthread_mutex_lock(&store->lock);
	store->going_bytes -= bytes;
	/* The kernel may have the file open a moment longer (passthrough). */
	gcr_store_note_unlinked_locked(store);
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

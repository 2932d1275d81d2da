/* SPDX-License-Identifier: MIT */
/* The queue of removals, and the bytes of files that are unlinked and still open. */
#include "fs/store/store_private.h"

#include <inttypes.h>
#include <stdio.h>

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

void gcr_store_remove_later_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	removal->next = NULL;
	*store->removals_end = removal;
	store->removals_end = &removal->next;
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

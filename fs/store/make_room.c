/* SPDX-License-Identifier: MIT */
/* One step of making room in the store: a kept snapshot is dropped, or files of the pools are. */
#include "fs/store/store_private.h"

#include "lib/clock.h"

/*
 * From this time before the deadline on, kept snapshots are dropped even if removals are under way:
 * the removals may be of very many names, and make no room for long. The removal of a kept snapshot
 * takes time, too.
 */
#define GIVE_UP_USEC (GCR_USEC_PER_SEC / 2)
/* Pause between the drops of two kept snapshots while removals are under way. */
#define PAUSE_USEC   (GCR_USEC_PER_SEC / 5)

bool gcr_store_make_room_locked(struct gcr_store *store, uint64_t missing, int64_t deadline_usec)
{
	bool is_removing = store->removals || store->removing;
	int64_t now_usec = gcr_clock_usec();
	struct gcr_pool_file *given_up;

	if (store->kept && is_removing) {
		if (now_usec >= deadline_usec)
			return false;
		if (now_usec < deadline_usec - GIVE_UP_USEC) {
			gcr_store_wait_until_locked(store, deadline_usec - GIVE_UP_USEC);
			return true;
		}
	}
	if (store->kept) {
		pthread_mutex_unlock(&store->lock);
		gcr_store_drop_kept(store, 0, 0);
		pthread_mutex_lock(&store->lock);
		if (is_removing)
			gcr_store_wait_until_locked(store, now_usec + PAUSE_USEC);
		return true;
	}
	given_up = gcr_store_shrink_pool_locked(store, missing);
	if (!given_up)
		return false;
	pthread_mutex_unlock(&store->lock);
	gcr_store_remove_pool_files(store, given_up);
	pthread_mutex_lock(&store->lock);
	return true;
}

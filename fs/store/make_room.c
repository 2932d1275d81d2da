/* SPDX-License-Identifier: MIT */
#include "fs/store/store_private.h"

#include "lib/clock.h"

bool gcr_store_make_room_locked(struct gcr_store *store, uint64_t missing, int64_t deadline_usec)
{
	struct gcr_pool_file *given_up;

	if (store->kept && (store->removals || store->removing)) {
		if (gcr_clock_usec() >= deadline_usec)
			return false;
		gcr_store_wait_until_locked(store, deadline_usec);
		return true;
	}
	if (store->kept) {
		pthread_mutex_unlock(&store->lock);
		gcr_store_drop_kept(store, 0, 0);
		pthread_mutex_lock(&store->lock);
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

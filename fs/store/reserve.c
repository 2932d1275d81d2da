/* SPDX-License-Identifier: MIT */
/* Promises to the pieces that are packed: see the reserve in account.c. */
#include "fs/store/store_private.h"

#include <errno.h>

#include "lib/clock.h"

/* Maximum wait for removals under way: a verb may be waiting for the piece. */
#define WAIT_USEC GCR_USEC_PER_SEC
/* Wait for the pieces of other threads before checking whether this one is still wanted. */
#define LOOK_USEC (GCR_USEC_PER_SEC / 20)

/* May the piece begin? -EAGAIN: pieces that are under way will end soon. Lock: store. */
static int promise_locked(struct gcr_store *store, uint64_t bytes, uint64_t *ret_missing)
{
	bool is_alone = !store->packing_bytes;
	int result = -EAGAIN;

	/* All pieces together stay within the reserve; only a single piece may exceed it. */
	if (is_alone || store->packing_bytes + bytes <= store->reserve_bytes)
		result = gcr_store_check_packing_locked(store, bytes, ret_missing);
	return result < 0 && !is_alone ? -EAGAIN : result;
}

/*
 * Wait briefly: another thread's piece may take as long as a disk operation. Returns -ECANCELED if
 * the piece is no longer wanted. Lock: store; released during the check.
 */
static int wait_for_others_locked(struct gcr_store *store, const struct gcr_wanted *wanted)
{
	bool is_wanted;

	gcr_store_wait_until_locked(store, gcr_clock_usec() + LOOK_USEC);
	if (!wanted)
		return 0;
	pthread_mutex_unlock(&store->lock);
	is_wanted = wanted->is_wanted(wanted->data);
	pthread_mutex_lock(&store->lock);
	return is_wanted ? 0 : -ECANCELED;
}

int gcr_snapshot_begin_piece(struct gcr_snapshot *snapshot, uint64_t bytes,
			     const struct gcr_wanted *wanted)
{
	struct gcr_store *store = snapshot->store;
	int64_t until_usec = gcr_clock_usec() + WAIT_USEC;
	uint64_t missing = 0;
	int result;

	/* Nothing that is given up would be enough. */
	if (bytes > store->size_bytes)
		return -ENOSPC;
	pthread_mutex_lock(&store->lock);
	while ((result = promise_locked(store, bytes, &missing)) < 0) {
		if (result == -EAGAIN) {
			result = wait_for_others_locked(store, wanted);
			if (result < 0)
				break;
			until_usec = gcr_clock_usec() + WAIT_USEC;
			continue;
		}
		if (gcr_store_make_room_locked(store, missing, until_usec))
			continue;
		if (!gcr_store_is_removing_locked(store) || gcr_clock_usec() >= until_usec)
			break;
		gcr_store_wait_until_locked(store, until_usec);
	}
	if (!result)
		store->packing_bytes += bytes;
	pthread_mutex_unlock(&store->lock);
	return result;
}

void gcr_snapshot_end_piece(struct gcr_snapshot *snapshot, uint64_t bytes)
{
	struct gcr_store *store = snapshot->store;

	pthread_mutex_lock(&store->lock);
	store->packing_bytes -= bytes;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

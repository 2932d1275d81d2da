/* SPDX-License-Identifier: MIT */
/*
 * Claims: room that verbs are about to need of the store, made before it is promised. A verb that
 * makes room (fs/verb/reclaim.h) claims the room as soon as there is enough, so that several verbs
 * do not count on the same bytes; other promises of room ignore claims, but claims count for a
 * user's quota. A claim ends when the room is promised, or when the verb is over.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <sys/vfs.h>

#include "lib/clock.h"

/* A worker begins to unregister files that have been removed after a third of a second. */
#define HELD_USEC (2 * GCR_USEC_PER_SEC)
/* Polling interval: there is no notification when the worker has finished. */
#define LOOK_USEC (20 * GCR_USEC_PER_MSEC)

uint64_t gcr_snapshot_cost(const struct gcr_extent *extents, size_t count)
{
	uint64_t bytes = gcr_snapshot_metadata_bytes(extents, count);

	for (size_t i = 0; i < count; i++)
		bytes += gcr_store_cost(extents[i].bytes);
	return bytes;
}

/*
 * May workers still have unlinked files open? The driver takes seconds to release large ones: as
 * long as the free memory keeps growing, the time limit starts again. Lock: store.
 */
static bool is_held_locked(struct gcr_store *store, int64_t now_usec)
{
	struct statfs statfs;

	if (!store->unlinked_usec || now_usec > store->unlinked_usec + HELD_USEC)
		return false;
	if (fstatfs(store->fd, &statfs) < 0)
		return true;
	if (statfs.f_bfree > store->held_free_blocks) {
		if (store->held_free_blocks)
			store->unlinked_usec = now_usec;
		store->held_free_blocks = statfs.f_bfree;
	}
	return true;
}

bool gcr_store_wait_going_locked(struct gcr_store *store, bool with_held)
{
	int64_t now_usec = gcr_clock_usec();

	if (!gcr_store_is_removing_locked(store) &&
	    (!with_held || !is_held_locked(store, now_usec)))
		return false;
	gcr_store_wait_until_locked(store, now_usec + LOOK_USEC);
	return true;
}

bool gcr_store_wait_going(struct gcr_store *store, bool with_held)
{
	bool has_waited;

	pthread_mutex_lock(&store->lock);
	has_waited = gcr_store_wait_going_locked(store, with_held);
	pthread_mutex_unlock(&store->lock);
	return has_waited;
}

/* The link to the claim of this process, or to the end of the list. Lock: store. */
static struct gcr_store_claim **find_locked(struct gcr_store *store, pid_t pid,
					    uint64_t start_ticks)
{
	struct gcr_store_claim **link = &store->claims;

	while (*link && ((*link)->pid != pid || (*link)->start_ticks != start_ticks))
		link = &(*link)->next;
	return link;
}

void gcr_store_end_claim_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_store_claim **link = find_locked(store, pid, start_ticks);
	struct gcr_store_claim *claim = *link;

	if (claim)
		*link = claim->next;
	free(claim);
}

int gcr_store_check_claim_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
				 uint64_t bytes, struct gcr_error *error)
{
	const struct gcr_store_claim *claim = *find_locked(store, pid, start_ticks);

	if (!claim || !claim->payer.uid)
		return 0;
	return gcr_store_check_payer_locked(store, &claim->payer,
					    bytes > claim->bytes ? bytes - claim->bytes : 0, error);
}

void gcr_store_end_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	pthread_mutex_lock(&store->lock);
	gcr_store_end_claim_locked(store, pid, start_ticks);
	pthread_mutex_unlock(&store->lock);
}

void gcr_store_use_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks, uint64_t bytes)
{
	struct gcr_store_claim *claim;

	pthread_mutex_lock(&store->lock);
	claim = *find_locked(store, pid, start_ticks);
	if (claim)
		claim->bytes -= bytes < claim->bytes ? bytes : claim->bytes;
	pthread_mutex_unlock(&store->lock);
}

/*
 * Bytes of kept snapshots of this process, which its next freeze reuses or gives back first. Lock:
 * store.
 */
static uint64_t own_kept_locked(const struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	uint64_t bytes = 0;

	for (const struct gcr_snapshot *kept = store->kept; kept; kept = kept->next_kept)
		if (kept->pid == pid && kept->start_ticks == start_ticks)
			bytes += kept->cost_bytes;
	return bytes;
}

/*
 * Is there room for a claim of @bytes besides the other claims? Pool files are not counted as used,
 * because the pool gives way by itself. Errors as gcr_store_check_room_locked(). Lock: store.
 */
static int check_locked(struct gcr_store *store, uint64_t bytes, uint64_t *ret_missing,
			struct gcr_error *error)
{
	uint64_t wanted = bytes;

	for (const struct gcr_store_claim *claim = store->claims; claim; claim = claim->next)
		wanted += claim->bytes;
	wanted -= wanted < store->pool_bytes ? wanted : store->pool_bytes;
	return wanted ? gcr_store_check_room_locked(store, wanted, wanted, ret_missing, error) : 0;
}

int gcr_store_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		    const struct gcr_store_payer *payer, uint64_t bytes, uint64_t *ret_missing,
		    struct gcr_error *error)
{
	struct gcr_store_claim *claim = calloc(1, sizeof(*claim));
	uint64_t kept_bytes;
	int result;

	*ret_missing = 0;
	if (!claim)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_lock(&store->lock);
	gcr_store_end_claim_locked(store, pid, start_ticks);
	result = gcr_store_check_payer_locked(store, payer, bytes, error);
	kept_bytes = own_kept_locked(store, pid, start_ticks);
	bytes -= bytes < kept_bytes ? bytes : kept_bytes;
	if (!result)
		result = check_locked(store, bytes, ret_missing, error);
	if (!result) {
		*claim = (struct gcr_store_claim){store->claims, pid, start_ticks, bytes, *payer};
		store->claims = TAKE_PTR(claim);
	}
	pthread_mutex_unlock(&store->lock);
	free(claim);
	return result;
}

/* SPDX-License-Identifier: MIT */
/*
 * Rooms: the accounts of trees that users of the mount write to. Each change is promised the most
 * that it may allocate before it begins, and reports the allocation when it is done, so that no
 * freeze is promised memory that a user has taken.
 */
#include "fs/store/store_private.h"

#include <errno.h>

#include "fs/base/quota.h"
#include "lib/clock.h"

/*
 * Promised in addition, so that not every write has to ask for the host's free memory; given back
 * at the end.
 */
#define SLACK_BYTES (64ull << 20)

/* The cost of a name beyond the first ENTRIES_FREE, whose cost is lost in rounding. */
#define ENTRY_BYTES  4096
#define ENTRIES_FREE 1024

/* Maximum wait of a change for removals under way: another thread may wait for the change. */
#define WAIT_USEC GCR_USEC_PER_SEC

/* Kernel memory for the names, which is in no file. */
static uint64_t entries_cost(const struct gcr_room *room)
{
	return room->entries > room->entries_free
		       ? (room->entries - room->entries_free) * ENTRY_BYTES
		       : 0;
}

int gcr_room_create(struct gcr_store *store, uint64_t paid_bytes, const struct gcr_tree_sum *sum,
		    uint64_t own_entries, struct gcr_room **ret_room)
{
	struct gcr_room *room = calloc(1, sizeof(*room));

	if (!room)
		return -ENOMEM;
	room->store = store;
	room->paid_bytes = paid_bytes;
	room->entries = sum->entries;
	room->entries_free = own_entries + ENTRIES_FREE;
	room->resident_bytes = sum->bytes + entries_cost(room);
	if (room->resident_bytes > paid_bytes)
		room->extra_bytes = room->resident_bytes - paid_bytes;
	pthread_mutex_lock(&store->lock);
	room->next = store->rooms;
	store->rooms = room;
	store->rooms_bytes += room->extra_bytes;
	pthread_mutex_unlock(&store->lock);
	*ret_room = room;
	return 0;
}

uint64_t gcr_room_destroy_locked(struct gcr_room *room)
{
	struct gcr_store *store = room->store;
	struct gcr_room **link = &store->rooms;
	uint64_t extra = room->extra_bytes;

	while (*link != room)
		link = &(*link)->next;
	*link = room->next;
	store->rooms_bytes -= extra;
	free(room);
	return extra;
}

/*
 * Promise @bytes more, at the cost of kept snapshots and the pool if need be; waits for removals
 * under way until @deadline_usec. -ENOSPC, -ESTALE. Lock: store; released while waiting.
 */
static int extend_locked(struct gcr_room *room, uint64_t bytes, int64_t deadline_usec)
{
	struct gcr_store *store = room->store;

	for (;;) {
		uint64_t missing = 0;

		if (room->is_closed)
			return -ESTALE;
		if (!gcr_store_check_room_locked(store, bytes, bytes, &missing, NULL))
			break;
		if (store->make_room_locked(store, missing, deadline_usec))
			continue;
		if (!gcr_store_is_removing_locked(store) || gcr_clock_usec() >= deadline_usec)
			return -ENOSPC;
		gcr_store_wait_until_locked(store, deadline_usec);
	}
	room->extra_bytes += bytes;
	store->rooms_bytes += bytes;
	return 0;
}

/* The part of @bytes more that is not promised yet. Lock: store. */
static uint64_t missing_locked(const struct gcr_room *room, uint64_t bytes)
{
	uint64_t wanted = room->resident_bytes + room->promised_bytes + bytes;

	return wanted > gcr_room_paid_locked(room) ? wanted - gcr_room_paid_locked(room) : 0;
}

void gcr_room_set_owner(struct gcr_room *room, uid_t uid)
{
	struct gcr_store *store = room->store;

	pthread_mutex_lock(&store->lock);
	room->uid = uid;
	/* The snapshot that owns the tree changes its owner, too. */
	for (struct gcr_snapshot *snapshot = store->snapshots; snapshot && room->payer_bytes;
	     snapshot = snapshot->next)
		if (room->payer_bytes == &snapshot->cost_bytes)
			room->uid = snapshot->uid = uid ? uid : snapshot->root_uid;
	pthread_mutex_unlock(&store->lock);
}

/*
 * Would the tree's owner exceed the quota, if @uid is a user with limits? Other users write there
 * only with the owner's permission. Lock: store.
 */
static int check_user_locked(const struct gcr_room *room, uid_t uid, uint64_t bytes)
{
	if (!gcr_quota_is_limited(room->store->quota, uid))
		return 0;
	return gcr_store_check_user_locked(room->store, room->uid, bytes, NULL);
}

int gcr_room_take(struct gcr_room *room, uid_t uid, uint64_t bytes)
{
	int64_t deadline_usec = gcr_clock_usec() + WAIT_USEC;
	struct gcr_store *store = room->store;
	uint64_t missing = 0;
	int result = 0;

	if (!bytes)
		return 0;
	if (bytes > store->size_bytes)
		return -ENOSPC;
	pthread_mutex_lock(&store->lock);
	while (!result && (missing = missing_locked(room, bytes))) {
		uint64_t unused = 0;

		result = check_user_locked(room, uid, missing);
		if (result < 0)
			break;
		if (!check_user_locked(room, uid, missing + SLACK_BYTES) &&
		    !gcr_store_check_room_locked(store, missing + SLACK_BYTES,
						 missing + SLACK_BYTES, &unused, NULL))
			missing += SLACK_BYTES;
		result = extend_locked(room, missing, deadline_usec);
	}
	if (!result)
		room->promised_bytes += bytes;
	pthread_mutex_unlock(&store->lock);
	return result;
}

int gcr_room_take_promised(struct gcr_room *room, uint64_t bytes)
{
	struct gcr_store *store = room->store;
	uint64_t missing;
	int result = 0;

	pthread_mutex_lock(&store->lock);
	missing = missing_locked(room, bytes);
	if (room->is_closed)
		result = -ESTALE;
	else if (gcr_store_used_locked(store) + missing > store->size_bytes)
		result = -ENOSPC;
	if (!result) {
		room->extra_bytes += missing;
		store->rooms_bytes += missing;
		room->promised_bytes += bytes;
	}
	pthread_mutex_unlock(&store->lock);
	return result;
}

void gcr_room_close(struct gcr_room *room)
{
	pthread_mutex_lock(&room->store->lock);
	room->is_closed = true;
	pthread_cond_broadcast(&room->store->changed);
	pthread_mutex_unlock(&room->store->lock);
}

/* The change may have allocated more than was promised: the excess is added to the account. */
static void add_resident_locked(struct gcr_room *room, uint64_t before_bytes, uint64_t after_bytes)
{
	uint64_t more;

	room->resident_bytes += after_bytes;
	room->resident_bytes -= before_bytes < room->resident_bytes ? before_bytes
								    : room->resident_bytes;
	if (room->resident_bytes > gcr_room_paid_locked(room)) {
		more = room->resident_bytes - gcr_room_paid_locked(room);
		room->extra_bytes += more;
		room->store->rooms_bytes += more;
	}
}

void gcr_room_recount(struct gcr_room *room, uint64_t taken_bytes, uint64_t before_bytes,
		      uint64_t after_bytes)
{
	pthread_mutex_lock(&room->store->lock);
	room->promised_bytes -= taken_bytes;
	add_resident_locked(room, before_bytes, after_bytes);
	pthread_mutex_unlock(&room->store->lock);
}

/*
 * Is the store full without the pool and the kept snapshots? These could be dropped, but the
 * caller cannot wait for that.
 */
static bool is_full_locked(const struct gcr_store *store)
{
	return gcr_store_used_locked(store) - store->pool_bytes - store->kept_bytes >=
	       gcr_store_limit_locked(store);
}

int gcr_room_add_entry(struct gcr_room *room, uid_t uid)
{
	struct gcr_store *store = room->store;
	uint64_t before_bytes;
	int result = 0;

	pthread_mutex_lock(&store->lock);
	before_bytes = entries_cost(room);
	if (room->entries >= GCR_ROOM_ENTRIES_MAX + room->entries_free ||
	    (room->entries >= room->entries_free && is_full_locked(store))) {
		result = -ENOSPC;
	} else if (room->entries >= room->entries_free &&
		   check_user_locked(room, uid, ENTRY_BYTES) < 0) {
		result = -EDQUOT;
	} else {
		room->entries++;
		add_resident_locked(room, before_bytes, entries_cost(room));
	}
	pthread_mutex_unlock(&store->lock);
	return result;
}

void gcr_room_remove_entry(struct gcr_room *room)
{
	struct gcr_store *store = room->store;
	uint64_t before_bytes;

	pthread_mutex_lock(&store->lock);
	before_bytes = entries_cost(room);
	room->entries -= room->entries > 0;
	add_resident_locked(room, before_bytes, entries_cost(room));
	pthread_mutex_unlock(&store->lock);
}

void gcr_room_trim(struct gcr_room *room)
{
	struct gcr_store *store = room->store;
	uint64_t needed;
	uint64_t extra;

	pthread_mutex_lock(&store->lock);
	needed = room->resident_bytes + room->promised_bytes;
	extra = needed > room->paid_bytes ? needed - room->paid_bytes : 0;
	if (extra < room->extra_bytes) {
		store->rooms_bytes -= room->extra_bytes - extra;
		room->extra_bytes = extra;
		store->pools_changed = true;
		pthread_cond_broadcast(&store->changed);
	}
	pthread_mutex_unlock(&store->lock);
}

void gcr_room_shrink(struct gcr_room *room, uint64_t bytes)
{
	struct gcr_store *store = room->store;
	uint64_t payers = 0;
	uint64_t needed;

	pthread_mutex_lock(&store->lock);
	needed = room->resident_bytes + room->promised_bytes;
	if (gcr_room_paid_locked(room) < needed + bytes)
		bytes = gcr_room_paid_locked(room) > needed ? gcr_room_paid_locked(room) - needed
							    : 0;
	/*
	 * Reduce the paid bytes first: the extra bytes go when no file is open for writing any
	 * more.
	 */
	if (room->payer_bytes)
		payers = bytes < room->paid_bytes ? bytes : room->paid_bytes;
	if (payers) {
		room->paid_bytes -= payers;
		*room->payer_bytes -= payers;
		store->snapshots_bytes -= payers;
	}
	bytes -= payers;
	if (bytes > room->extra_bytes)
		bytes = room->extra_bytes;
	room->extra_bytes -= bytes;
	store->rooms_bytes -= bytes;
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

uint64_t gcr_room_resident_bytes(const struct gcr_room *room)
{
	uint64_t bytes;

	pthread_mutex_lock(&room->store->lock);
	bytes = room->resident_bytes;
	pthread_mutex_unlock(&room->store->lock);
	return bytes;
}

void gcr_room_destroy(struct gcr_room *room)
{
	struct gcr_store *store;

	if (!room)
		return;
	store = room->store;
	pthread_mutex_lock(&store->lock);
	gcr_room_destroy_locked(room);
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

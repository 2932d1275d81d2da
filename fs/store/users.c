/* SPDX-License-Identifier: MIT */
/*
 * Bytes that each user holds of the store, and of the disk of -o spill. There are no separate
 * counters: the sums are computed from the accounts of snapshots, trees, claims and packed chunks
 * at each request. The pool and the kept snapshots of running processes give way to any request for
 * room, and count for no user.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <stdlib.h>

#include "fs/base/quota.h"
#include "lib/lock.h"

typedef void visit_held(void *data, uid_t uid, enum gcr_quota_kind kind, uint64_t bytes);

/* Is this a kept snapshot of a running process? Lock: store. */
static bool is_kept_locked(const struct gcr_store *store, const struct gcr_snapshot *snapshot)
{
	const struct gcr_snapshot *kept = store->kept;

	while (kept && kept != snapshot)
		kept = kept->next_kept;
	return kept;
}

/* Calls @visit for each amount that a user holds; a user may have many. Lock: store. */
static void each_locked(const struct gcr_store *store, visit_held *visit, void *data)
{
	for (const struct gcr_snapshot *snapshot = store->snapshots; snapshot;
	     snapshot = snapshot->next)
		if (!is_kept_locked(store, snapshot))
			visit(data, snapshot->uid, GCR_QUOTA_STORE, snapshot->cost_bytes);
	for (const struct gcr_store_leftover *left = store->leftovers; left; left = left->next)
		visit(data, left->uid, GCR_QUOTA_STORE, left->cost_bytes);
	for (const struct gcr_room *room = store->rooms; room; room = room->next)
		if (room != store->packs_room)
			visit(data, room->uid, GCR_QUOTA_STORE, room->extra_bytes);
	for (const struct gcr_store_claim *claim = store->claims; claim; claim = claim->next)
		visit(data, claim->payer.uid, GCR_QUOTA_STORE, claim->bytes);
	for (const struct gcr_store_packed *packed = store->packed; packed; packed = packed->next) {
		visit(data, packed->uid, GCR_QUOTA_STORE, packed->bytes);
		visit(data, packed->uid, GCR_QUOTA_SPILL, packed->spilled_bytes);
	}
}

#define KNOWN_OWNERS 64

struct sum {
	struct gcr_quota *quota;
	uid_t owner;
	enum gcr_quota_kind kind;
	uint64_t bytes;
	/* The last answers of gcr_quota_owner(), by the lowest bits of the uid; uid 0: none. */
	struct {
		uid_t uid, owner;
	} known[KNOWN_OWNERS];
};

static uid_t owner_of(struct sum *sum, uid_t uid)
{
	size_t index = uid % KNOWN_OWNERS;

	if (sum->known[index].uid != uid) {
		sum->known[index].uid = uid;
		sum->known[index].owner = gcr_quota_owner(sum->quota, uid);
	}
	return sum->known[index].owner;
}

static void add_if_his(void *data, uid_t uid, enum gcr_quota_kind kind, uint64_t bytes)
{
	struct sum *sum = data;

	if (bytes && uid && kind == sum->kind &&
	    (uid == sum->owner || owner_of(sum, uid) == sum->owner))
		sum->bytes += bytes;
}

/*
 * May user @uid hold @bytes more of this kind? 0 if the user has no limit; -EDQUOT with a message.
 * Lock: store.
 */
static int check_locked(const struct gcr_store *store, enum gcr_quota_kind kind, uid_t uid,
			uint64_t bytes, struct gcr_error *error)
{
	struct sum sum = {.quota = store->quota, .kind = kind};

	if (!gcr_quota_is_limited(store->quota, uid))
		return 0;
	sum.owner = gcr_quota_owner(store->quota, uid);
	each_locked(store, add_if_his, &sum);
	return gcr_quota_check_held(store->quota, kind, sum.owner, sum.bytes, bytes, error);
}

int gcr_store_check_user_locked(struct gcr_store *store, uid_t uid, uint64_t bytes,
				struct gcr_error *error)
{
	return check_locked(store, GCR_QUOTA_STORE, uid, bytes, error);
}

/* Bytes that are released by the process that the same verb thaws. Lock: store. */
static uint64_t returned_locked(const struct gcr_store *store, const struct gcr_store_payer *payer)
{
	uint64_t bytes = 0;

	for (const struct gcr_snapshot *snapshot = store->snapshots; snapshot && payer->thawed_pid;
	     snapshot = snapshot->next)
		if (snapshot->pid == payer->thawed_pid &&
		    snapshot->start_ticks == payer->thawed_start_ticks &&
		    snapshot->uid == payer->uid && !is_kept_locked(store, snapshot))
			bytes += snapshot->cost_bytes;
	return bytes;
}

int gcr_store_check_payer_locked(struct gcr_store *store, const struct gcr_store_payer *payer,
				 uint64_t bytes, struct gcr_error *error)
{
	uint64_t returned = returned_locked(store, payer);

	return gcr_store_check_user_locked(store, payer->uid,
					   bytes > returned ? bytes - returned : 0, error);
}

int gcr_store_check_user(struct gcr_store *store, uid_t uid, uint64_t bytes,
			 struct gcr_error *error)
{
	int result;

	pthread_mutex_lock(&store->lock);
	result = gcr_store_check_user_locked(store, uid, bytes, error);
	pthread_mutex_unlock(&store->lock);
	return result;
}

struct list {
	struct gcr_quota_held *held;
	size_t count;
	bool is_short; /* no memory */
};

static void add_to_list(void *data, uid_t uid, enum gcr_quota_kind kind, uint64_t bytes)
{
	struct list *list = data;
	struct gcr_quota_held *held;

	if (!bytes || !uid)
		return;
	for (size_t i = 0; i < list->count; i++)
		if (list->held[i].uid == uid) {
			list->held[i].counts[kind] += bytes;
			return;
		}
	held = reallocarray(list->held, list->count + 1, sizeof(*held));
	if (!held) {
		list->is_short = true;
		return;
	}
	list->held = held;
	held[list->count] = (struct gcr_quota_held){.uid = uid};
	held[list->count++].counts[kind] = bytes;
}

int gcr_store_users(struct gcr_store *store, struct gcr_quota_held **ret_held, size_t *ret_count)
{
	struct list list = {0};

	pthread_mutex_lock(&store->lock);
	each_locked(store, add_to_list, &list);
	pthread_mutex_unlock(&store->lock);
	if (list.is_short) {
		free(list.held);
		return -ENOMEM;
	}
	*ret_held = list.held;
	*ret_count = list.count;
	return 0;
}

void gcr_store_count_by(struct gcr_store *store, gcr_store_counting *counted)
{
	if (store)
		store->counted = counted;
}

struct gcr_quota *gcr_store_quota(const struct gcr_store *store)
{
	return store ? store->quota : NULL;
}

/* The user's entry, a new one if need be. NULL: no memory. Lock: store. */
static struct gcr_store_packed *get_packed_locked(struct gcr_store *store, uid_t uid)
{
	struct gcr_store_packed *packed = store->packed;

	while (packed && packed->uid != uid)
		packed = packed->next;
	if (packed)
		return packed;
	packed = calloc(1, sizeof(*packed));
	if (!packed)
		return NULL;
	packed->uid = uid;
	packed->next = store->packed;
	store->packed = packed;
	return packed;
}

/* Frees the user's entry if nothing is left. Lock: store. */
static void forget_packed_locked(struct gcr_store *store, const struct gcr_store_packed *packed)
{
	struct gcr_store_packed **link = &store->packed;
	struct gcr_store_packed *gone;

	if (packed->bytes || packed->spilled_bytes)
		return;
	while (*link != packed)
		link = &(*link)->next;
	gone = *link;
	*link = gone->next;
	free(gone);
}

void gcr_store_count_packed(struct gcr_store *store, uid_t uid, enum gcr_quota_kind kind,
			    uint64_t more, uint64_t less)
{
	struct gcr_store_packed *packed;
	uint64_t *bytes;

	GCR_LOCK_SCOPE(&store->lock);
	packed = get_packed_locked(store, uid);
	/* Without memory for the entry, the bytes are not counted. */
	if (!packed)
		return;
	bytes = kind == GCR_QUOTA_SPILL ? &packed->spilled_bytes : &packed->bytes;
	*bytes += more;
	*bytes -= less < *bytes ? less : *bytes;
	forget_packed_locked(store, packed);
}

int gcr_store_take_spilled(struct gcr_store *store, uid_t uid, uint64_t bytes,
			   struct gcr_error *error)
{
	struct gcr_store_packed *packed;
	int result;

	GCR_LOCK_SCOPE(&store->lock);
	result = check_locked(store, GCR_QUOTA_SPILL, uid, bytes, error);
	if (result < 0)
		return result;
	packed = get_packed_locked(store, uid);
	if (!packed)
		return gcr_error_set(error, ENOMEM, "out of memory");
	packed->spilled_bytes += bytes;
	return 0;
}

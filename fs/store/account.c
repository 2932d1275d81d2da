/* SPDX-License-Identifier: MIT */
/*
 * The account of the store: the memory that is promised, the memory that may still be promised, and
 * the part of it that only packing may use. The room for a snapshot is counted before the first
 * file of the snapshot is made, so that simultaneous freezes cannot be promised the same room.
 *
 * The reserve is the part that only packing may use, because packing needs some memory before it
 * frees more. Before a piece is packed, it is promised the most that packing may take; the memory
 * that its chunks and the table of its file then take is only counted. So a store that is full to
 * the last byte for everything else can still be packed, and never exceeds its size.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <string.h>
#include <sys/statfs.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/pack_file.h"
#include "lib/proc_cgroup.h"

/* The most that packing a piece takes: each chunk may need a new first and a new last page. */
#define PIECE_COST_BYTES                                                               \
	(GCR_PACK_PIECE_BYTES + 2ull * GCR_PACK_PIECE_CHUNKS * GCR_STORE_PACKED_UNIT + \
	 GCR_STORE_PACKED_UNIT)
/*
 * The reserve has room for this number of pieces at a time, since more do not make packing faster,
 * and for tables: one part in TABLES_SHARE of the store (a table takes 1 KiB for a piece, or one
 * page), and in a small store TABLES_LEAST pages.
 */
#define PIECES	       8
#define TABLES_SHARE   1024
#define TABLES_LEAST   64
/*
 * The reserve is at most one part in SMALL_SHARE of the store, unless one piece needs more. If that
 * were more than one part in SMALLEST_SHARE, there is no reserve.
 */
#define SMALL_SHARE    16
#define SMALLEST_SHARE 8

/*
 * A snapshot of more files than this, which is being written, is looked at for at most one
 * LOOK_SHAREth of the time: others wait for the store's lock meanwhile.
 */
#define LOOK_FILES 256
#define LOOK_SHARE 20

void gcr_store_set_reserve(struct gcr_store *store)
{
	uint64_t size = store->size_bytes;
	uint64_t bytes = PIECES * PIECE_COST_BYTES + size / TABLES_SHARE;
	uint64_t least = PIECE_COST_BYTES + TABLES_LEAST * GCR_STORE_PACKED_UNIT;
	uint64_t most = size / SMALL_SHARE > least ? size / SMALL_SHARE : least;

	if (bytes > most)
		bytes = most;
	store->reserve_bytes = bytes > size / SMALLEST_SHARE
				       ? 0
				       : bytes / GCR_STORE_PACKED_UNIT * GCR_STORE_PACKED_UNIT;
}

uint64_t gcr_store_limit_locked(const struct gcr_store *store)
{
	uint64_t others = store->packing_bytes > store->reserve_bytes ? store->packing_bytes
								      : store->reserve_bytes;

	return others < store->size_bytes ? store->size_bytes - others : 0;
}

uint64_t gcr_store_piece_cost(uint64_t table_bytes)
{
	return PIECE_COST_BYTES + table_bytes;
}

/* Bytes that are promised to a room, and not allocated yet. Lock: store. */
static uint64_t room_pending_locked(const struct gcr_room *room)
{
	uint64_t paid = gcr_room_paid_locked(room);

	return paid > room->resident_bytes ? paid - room->resident_bytes : 0;
}

/*
 * Memory that the files of a snapshot have allocated. For a snapshot of more than LOOK_FILES files
 * the result may be that of a short while ago, which is no larger. Lock: store.
 */
static uint64_t resident_locked(struct gcr_snapshot *snapshot)
{
	int64_t now_usec = gcr_clock_usec();

	if (snapshot->count > LOOK_FILES && now_usec < snapshot->look_usec)
		return snapshot->seen_bytes;
	/*
	 * Pages stay until the file is removed: once all are there, no further check is needed.
	 */
	snapshot->seen_bytes = gcr_snapshot_resident_bytes(snapshot, &snapshot->has_pages);
	snapshot->look_usec = gcr_clock_usec();
	snapshot->look_usec += LOOK_SHARE * (snapshot->look_usec - now_usec);
	return snapshot->seen_bytes;
}

/* Bytes that are promised, and not allocated from the machine's memory yet. Lock: store. */
static uint64_t pending_locked(struct gcr_store *store)
{
	uint64_t pending = 0;

	for (const struct gcr_room *room = store->rooms; room; room = room->next)
		pending += room_pending_locked(room);
	for (struct gcr_snapshot *snapshot = store->snapshots; snapshot;
	     snapshot = snapshot->next) {
		uint64_t resident;

		if (snapshot->has_pages || snapshot->is_touched)
			continue;
		resident = resident_locked(snapshot);
		if (!snapshot->has_pages && resident < snapshot->cost_bytes)
			pending += snapshot->cost_bytes - resident;
	}
	return pending;
}

/* All figures but pending_bytes. Lock: store. */
static struct gcr_store_figures figures_locked(const struct gcr_store *store)
{
	uint64_t limit = store->size_bytes - store->reserve_bytes;
	uint64_t used = gcr_store_used_locked(store);

	return (struct gcr_store_figures){
		.size_bytes = store->size_bytes,
		.used_bytes = used,
		.reserve_bytes = store->reserve_bytes,
		.free_bytes = used < limit ? limit - used : 0,
		.pool_bytes = store->pool_bytes,
		.kept_bytes = store->kept_bytes,
		.survives_restart = store->survives_restart,
	};
}

void gcr_store_figures(struct gcr_store *store, struct gcr_store_figures *ret_figures)
{
	pthread_mutex_lock(&store->lock);
	*ret_figures = figures_locked(store);
	ret_figures->pending_bytes = pending_locked(store);
	pthread_mutex_unlock(&store->lock);
}

void gcr_store_counted_figures(struct gcr_store *store, struct gcr_store_figures *ret_figures)
{
	pthread_mutex_lock(&store->lock);
	*ret_figures = figures_locked(store);
	pthread_mutex_unlock(&store->lock);
}

/* Free bytes of the file system itself, beyond the pending promises. Lock: store. */
static uint64_t file_system_room_locked(const struct gcr_store *store, uint64_t pending)
{
	struct statfs statfs;
	uint64_t free_bytes;

	if (fstatfs(store->fd, &statfs) < 0 || !statfs.f_blocks)
		return UINT64_MAX;
	free_bytes = (uint64_t)statfs.f_bavail * (uint64_t)statfs.f_bsize;
	return free_bytes > pending ? free_bytes - pending : 0;
}

/*
 * May @bytes more be used, within @limit_bytes of the store, with @margin_bytes of the host's
 * memory to spare? Lock: store.
 */
static int check_room_locked(struct gcr_store *store, uint64_t limit_bytes, uint64_t margin_bytes,
			     uint64_t bytes, uint64_t fresh_bytes, uint64_t *ret_missing,
			     struct gcr_error *error)
{
	uint64_t used = gcr_store_used_locked(store);
	uint64_t pending = pending_locked(store);
	uint64_t room = used < limit_bytes ? limit_bytes - used : 0;
	uint64_t memory = UINT64_MAX;
	_cleanup_free_ char *what = NULL;

	if (bytes > room) {
		*ret_missing = bytes - room;
		return gcr_error_set(error, ENOSPC,
				     "the store is full: %llu MiB more are needed, %llu of its "
				     "%llu MiB are free (see store_size in gpucrfs(8))",
				     (unsigned long long)bytes >> 20,
				     (unsigned long long)room >> 20,
				     (unsigned long long)store->size_bytes >> 20);
	}
	/*
	 * Other processes may use the file system too, or have files open that the daemon has
	 * removed.
	 */
	room = file_system_room_locked(store, pending);
	if (fresh_bytes > room) {
		*ret_missing = fresh_bytes - room;
		return gcr_error_set(error, ENOSPC,
				     "%s is full: %llu MiB more are needed, %llu MiB are free",
				     store->path, (unsigned long long)fresh_bytes >> 20,
				     (unsigned long long)room >> 20);
	}
	/* Pages are charged to the process that touches them first: the daemon or a helper. */
	if (gcr_proc_memory_room(getpid(), &memory, &what) < 0)
		return 0;
	pending += margin_bytes;
	memory = memory > pending ? memory - pending : 0;
	if (fresh_bytes > memory) {
		*ret_missing = fresh_bytes - memory;
		return gcr_error_set(error, ENOMEM,
				     "the store would take %llu MiB more of the host's memory, "
				     "but %s leaves %llu MiB",
				     (unsigned long long)fresh_bytes >> 20, what,
				     (unsigned long long)memory >> 20);
	}
	return 0;
}

int gcr_store_check_room_locked(struct gcr_store *store, uint64_t bytes, uint64_t fresh_bytes,
				uint64_t *ret_missing, struct gcr_error *error)
{
	return check_room_locked(store, gcr_store_limit_locked(store),
				 GCR_STORE_MEMORY_MARGIN_BYTES, bytes, fresh_bytes, ret_missing,
				 error);
}

int gcr_store_check_packing_locked(struct gcr_store *store, uint64_t bytes, uint64_t *ret_missing)
{
	uint64_t more = store->packing_bytes + bytes;

	/*
	 * Half of the margin that is left to other processes is enough, because packing frees
	 * memory.
	 */
	return check_room_locked(store, store->size_bytes, GCR_STORE_MEMORY_MARGIN_BYTES / 2, more,
				 more, ret_missing, NULL);
}

uint32_t gcr_store_next_number_locked(struct gcr_store *store)
{
	if (!++store->last_number)
		store->last_number++;
	return store->last_number;
}

void gcr_store_wait_until_locked(struct gcr_store *store, int64_t deadline_usec)
{
	gcr_cond_wait_until(&store->changed, &store->lock, deadline_usec);
}

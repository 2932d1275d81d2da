/* SPDX-License-Identifier: MIT */
/*
 * What is kept of processes that run again (-o keep=): their last snapshot, with its papers, so
 * that the next freeze copies only what has changed. It is the first to go when the store is short.
 * A kept snapshot belongs to the list, which has a reference of it.
 */
#include "fs/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/log.h"
#include "lib/digest.h"
#include "lib/extent.h"

/* The first that is @pid's, or of anybody for 0, is the caller's then. Lock: store. */
static struct gcr_snapshot *take_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	for (struct gcr_snapshot **link = &store->kept; *link; link = &(*link)->next_kept) {
		struct gcr_snapshot *snapshot = *link;

		if (pid && (snapshot->pid != pid || snapshot->start_ticks != start_ticks))
			continue;
		*link = snapshot->next_kept;
		snapshot->next_kept = NULL;
		store->kept_bytes -= snapshot->cost_bytes;
		return snapshot;
	}
	return NULL;
}

/* Its files are not wanted for anything. */
static void give_up(struct gcr_snapshot *snapshot)
{
	gcr_snapshot_spoil(snapshot);
	gcr_snapshot_discard(snapshot);
}

bool gcr_store_give_up_kept(struct gcr_store *store)
{
	struct gcr_snapshot *snapshot;

	pthread_mutex_lock(&store->lock);
	snapshot = take_locked(store, 0, 0);
	pthread_mutex_unlock(&store->lock);
	if (snapshot)
		give_up(snapshot);
	return snapshot;
}

int gcr_store_keep(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	struct gcr_snapshot **link;
	bool has_room;

	if (snapshot->cost_bytes > store->keep_limit_bytes)
		return -ENOSPC;
	for (;;) {
		pthread_mutex_lock(&store->lock);
		if (snapshot->spoiled || snapshot->discarded || store->stopping) {
			pthread_mutex_unlock(&store->lock);
			return -ENOSPC;
		}
		has_room = store->kept_bytes + snapshot->cost_bytes <= store->keep_limit_bytes;
		if (has_room)
			break;
		pthread_mutex_unlock(&store->lock);
		gcr_store_give_up_kept(store);
	}
	for (link = &store->kept; *link; link = &(*link)->next_kept)
		;
	*link = snapshot;
	store->kept_bytes += snapshot->cost_bytes;
	pthread_mutex_unlock(&store->lock);
	return 0;
}

struct gcr_snapshot *gcr_store_find_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_snapshot *snapshot;

	pthread_mutex_lock(&store->lock);
	snapshot = store->kept;
	while (snapshot && (snapshot->pid != pid || snapshot->start_ticks != start_ticks))
		snapshot = snapshot->next_kept;
	if (snapshot)
		gcr_snapshot_ref(snapshot);
	pthread_mutex_unlock(&store->lock);
	return snapshot;
}

struct gcr_snapshot *gcr_store_take_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_snapshot *snapshot;

	pthread_mutex_lock(&store->lock);
	snapshot = take_locked(store, pid, start_ticks);
	pthread_mutex_unlock(&store->lock);
	return snapshot;
}

void gcr_store_drop_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_snapshot *snapshot = gcr_store_take_kept(store, pid, start_ticks);

	if (snapshot)
		give_up(snapshot);
}

void gcr_store_drop_all_kept(struct gcr_store *store)
{
	while (gcr_store_give_up_kept(store))
		;
}

/* ---- using it again ---- */

/* The file @index of @old for another snapshot, unless somebody reads it. */
static struct gcr_pool_file *take_file(struct gcr_snapshot *old, size_t index)
{
	struct gcr_pool_file *file = calloc(1, sizeof(*file));
	struct gcr_snapshot_file *from = &old->files[index];
	struct gcr_store *store = old->store;
	struct stat stat;

	if (!file)
		return NULL;
	pthread_mutex_lock(&store->lock);
	if (old->spoiled || from->readers || from->unlinked) {
		pthread_mutex_unlock(&store->lock);
		free(file);
		return NULL;
	}
	file->bytes = old->extents[index].bytes;
	file->cost_bytes = from->cost_bytes;
	file->number = ++store->last_pool_number;
	from->unlinked = true;
	old->cost_bytes -= from->cost_bytes;
	store->snapshots_bytes -= from->cost_bytes;
	store->pool_bytes += from->cost_bytes;
	pthread_mutex_unlock(&store->lock);
	/* One that is not what it was is written anew. */
	file->is_known = !gcr_store_move_to_pool(old, index, file) &&
			 !gcr_store_stat_pool_file(store, file, &stat) &&
			 (uint64_t)stat.st_size == file->bytes;
	file->has_pages = file->is_known;
	return file;
}

void gcr_store_reuse_kept(struct gcr_snapshot *snapshot, struct gcr_snapshot *old,
			  struct gcr_pool_file **files)
{
	uint64_t chunks = gcr_snapshot_first_chunk(snapshot, snapshot->count);
	_cleanup_free_ struct gcr_digest *digests = NULL;
	_cleanup_free_ struct gcr_digest *known = NULL;
	struct gcr_error error;
	uint64_t chunk = 0;

	if (gcr_snapshot_read_digests(old, &digests, &error) < 0) {
		gcr_log(LOG_WARNING, snapshot->pid, "what was kept cannot be used: %s",
			error.words);
		return;
	}
	known = calloc(chunks ? chunks : 1, sizeof(*known));
	for (size_t i = 0; known && i < snapshot->count; i++) {
		struct gcr_extent *extent = &snapshot->extents[i];
		uint64_t count = gcr_digest_count(extent->bytes);
		char name[GCR_EXTENT_NAME_BYTES];
		size_t index;

		gcr_extent_name(extent, name);
		if (extent->kind == GCR_MEMORY_DEVICE && !gcr_snapshot_find(old, name, &index) &&
		    old->extents[index].bytes == extent->bytes)
			files[i] = take_file(old, index);
		if (files[i] && files[i]->is_known) {
			memcpy(known + chunk, digests + gcr_snapshot_first_chunk(old, index),
			       count * sizeof(*known));
			extent->flags |= GCR_EXTENT_KNOWN;
		}
		chunk += count;
	}
	snapshot->known = TAKE_PTR(known);
}

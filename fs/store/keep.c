/* SPDX-License-Identifier: MIT */
/*
 * Kept snapshots (-o keep=): the last snapshots of processes that run again, with their metadata,
 * so that the next freeze copies only the changes. Kept snapshots are dropped first when the store
 * is short of room. The list holds a reference to each kept snapshot.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/digest_buffer.h"
#include "fs/store/subtree.h"
#include "lib/digest.h"
#include "lib/extent.h"

/*
 * Take the first snapshot of @pid, or of any process for 0, out of the list: its reference is the
 * caller's. Lock: store.
 */
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

/* Discard the snapshot without reusing its files. */
static void give_up(struct gcr_snapshot *snapshot)
{
	gcr_snapshot_taint(snapshot);
	gcr_snapshot_discard(snapshot);
}

int gcr_store_keep(struct gcr_snapshot *snapshot, struct gcr_digest_buffer **digests)
{
	struct gcr_store *store = snapshot->store;
	struct gcr_snapshot *oldest;
	struct gcr_snapshot **link;

	if (snapshot->cost_bytes > store->keep_limit_bytes)
		return -ENOSPC;
	/* Users cannot change the files from now on. */
	gcr_subtree_begin_verb(snapshot->subtree);
	for (;;) {
		pthread_mutex_lock(&store->lock);
		if (snapshot->is_tainted || snapshot->discarded || store->stopping) {
			pthread_mutex_unlock(&store->lock);
			return -ENOSPC;
		}
		if (store->kept_bytes + snapshot->cost_bytes <= store->keep_limit_bytes)
			break;
		oldest = take_locked(store, 0, 0);
		pthread_mutex_unlock(&store->lock);
		if (oldest)
			give_up(oldest);
	}
	for (link = &store->kept; *link; link = &(*link)->next_kept)
		;
	*link = snapshot;
	snapshot->digests = TAKE_PTR(*digests);
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

bool gcr_store_drop_kept_of_others(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_snapshot *found = NULL;

	pthread_mutex_lock(&store->lock);
	for (const struct gcr_snapshot *kept = store->kept; kept && !found; kept = kept->next_kept)
		if (kept->pid != pid || kept->start_ticks != start_ticks)
			found = take_locked(store, kept->pid, kept->start_ticks);
	pthread_mutex_unlock(&store->lock);
	if (found)
		give_up(found);
	return found;
}

void gcr_store_drop_all_kept(struct gcr_store *store)
{
	struct gcr_snapshot *snapshot;

	do {
		pthread_mutex_lock(&store->lock);
		snapshot = take_locked(store, 0, 0);
		pthread_mutex_unlock(&store->lock);
		if (snapshot)
			give_up(snapshot);
	} while (snapshot);
}

/* ---- reuse ---- */

struct name {
	char text[GCR_EXTENT_NAME_BYTES];
	size_t index;
	uint64_t chunk; /* index of its first digest */
};

static int compare_names(const void *left, const void *right)
{
	return strcmp(((const struct name *)left)->text, ((const struct name *)right)->text);
}

/* The snapshot's files sorted by name; the caller frees the array. NULL: no memory. */
static struct name *sort_names(const struct gcr_snapshot *snapshot)
{
	struct name *names = calloc(snapshot->count ? snapshot->count : 1, sizeof(*names));
	uint64_t chunk = 0;

	for (size_t i = 0; names && i < snapshot->count; i++) {
		gcr_extent_name(&snapshot->extents[i], names[i].text);
		names[i].index = i;
		names[i].chunk = chunk;
		chunk += gcr_digest_count(snapshot->extents[i].bytes);
	}
	if (names)
		qsort(names, snapshot->count, sizeof(*names), compare_names);
	return names;
}

/* The file of @old for the same extent, of the same size; NULL: there is none. */
static const struct name *find(const struct gcr_snapshot *old, const struct name *names,
			       const struct gcr_extent *extent)
{
	const struct name *found;
	struct name wanted;

	gcr_extent_name(extent, wanted.text);
	found = bsearch(&wanted, names, old->count, sizeof(*names), compare_names);
	return found && old->extents[found->index].bytes == extent->bytes ? found : NULL;
}

static bool has_kept(const struct gcr_snapshot *kept, const struct gcr_extent *extent)
{
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat stat;

	gcr_extent_name(extent, name);
	return !fstatat(kept->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW) &&
	       (uint64_t)stat.st_size == extent->bytes;
}

size_t gcr_store_not_kept(const struct gcr_snapshot *kept, struct gcr_extent *extents, size_t count)
{
	size_t left = 0;

	for (size_t i = 0; i < count; i++)
		if (!kept || !has_kept(kept, &extents[i]))
			extents[left++] = extents[i];
	return left;
}

/* Take the file @index of @old for another snapshot; NULL: not available. */
static struct gcr_pool_file *take_file(struct gcr_snapshot *old, size_t index)
{
	struct gcr_pool_file *file = calloc(1, sizeof(*file));
	struct gcr_snapshot_file *from = &old->files[index];
	struct gcr_store *store = old->store;
	struct stat stat;

	if (!file)
		return NULL;
	pthread_mutex_lock(&store->lock);
	if (old->is_tainted || from->unlinked) {
		pthread_mutex_unlock(&store->lock);
		free(file);
		return NULL;
	}
	file->bytes = old->extents[index].bytes;
	file->cost_bytes = from->cost_bytes;
	file->number = ++store->last_pool_number;
	from->unlinked = true;
	from->cost_bytes = 0;
	old->cost_bytes -= file->cost_bytes;
	store->snapshots_bytes -= file->cost_bytes;
	store->pool_bytes += file->cost_bytes;
	pthread_mutex_unlock(&store->lock);
	/* A file that has changed its size is not reused. */
	file->is_known = !gcr_store_move_to_pool(old, index, file) &&
			 !gcr_store_stat_pool_file(store, file, &stat) &&
			 (uint64_t)stat.st_size == file->bytes;
	file->has_pages = file->is_known;
	if (file->is_known)
		return file;
	pthread_mutex_lock(&store->lock);
	gcr_store_give_up_locked(store, file);
	pthread_mutex_unlock(&store->lock);
	return NULL;
}

/* Have both the same files in the same order? Then the digests are in the right order, too. */
static bool has_same_files(const struct gcr_snapshot *left, const struct gcr_snapshot *right)
{
	bool is_same = left->count == right->count;

	for (size_t i = 0; is_same && i < left->count; i++)
		is_same = gcr_extent_same_file(&left->extents[i], &right->extents[i]);
	return is_same;
}

void gcr_store_reuse_kept(struct gcr_snapshot *snapshot, struct gcr_snapshot *old,
			  struct gcr_pool_file **files)
{
	_cleanup_(gcr_digest_buffer_destroy_cleanup) struct gcr_digest_buffer *old_buffer =
		TAKE_PTR(old->digests);
	_cleanup_free_ struct name *names = sort_names(old);
	struct gcr_digest *digests;
	uint64_t chunk = 0;

	if (!names || !old_buffer)
		return;
	digests = gcr_digest_buffer_digests(old_buffer);
	if (has_same_files(snapshot, old))
		snapshot->digests = TAKE_PTR(old_buffer);
	else if (gcr_digest_buffer_create(gcr_snapshot_first_chunk(snapshot, snapshot->count),
					  &snapshot->digests) < 0)
		return;
	/* Users cannot begin to read the files from now on. */
	gcr_subtree_retire(old->subtree);
	for (size_t i = 0; i < snapshot->count; i++) {
		const struct gcr_extent *extent = &snapshot->extents[i];
		const struct name *name = find(old, names, extent);
		uint64_t count = gcr_digest_count(extent->bytes);

		if (name && extent->kind == GCR_MEMORY_DEVICE &&
		    !gcr_snapshot_is_file_read(old, name->index))
			files[i] = take_file(old, name->index);
		if (files[i] && files[i]->is_known) {
			snapshot->files[i].is_known = true;
			if (old_buffer)
				memcpy(gcr_digest_buffer_digests(snapshot->digests) + chunk,
				       digests + name->chunk, count * sizeof(*digests));
		}
		chunk += count;
	}
}

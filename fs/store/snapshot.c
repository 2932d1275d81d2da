/* SPDX-License-Identifier: MIT */
/*
 * The life of a snapshot: listed in its store, opened if an earlier daemon has left it, referenced,
 * discarded. snapshot_create.c makes it.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/digest_buffer.h"
#include "fs/store/subtree.h"
#include "lib/extent.h"
#include "lib/lock.h"

void gcr_snapshot_free(struct gcr_snapshot *snapshot)
{
	gcr_subtree_unref(snapshot->subtree);
	if (snapshot->files_fd >= 0)
		close(snapshot->files_fd);
	if (snapshot->root_fd >= 0)
		close(snapshot->root_fd);
	free(snapshot->extents);
	free(snapshot->files);
	free(snapshot->groups);
	gcr_digest_buffer_destroy(snapshot->digests);
	free(snapshot->leftover);
	free(snapshot);
}

/*
 * Is the generation valid? Its characters are restricted, since a generation becomes part of a
 * path.
 */
static bool is_generation(const char *text)
{
	size_t length = strlen(text);

	return length && length < sizeof(((struct gcr_snapshot *)0)->generation) &&
	       strspn(text, "0123456789abcdef-") == length;
}

void gcr_snapshot_name(pid_t pid, uint64_t start_ticks, const char *generation,
		       char ret_name[GCR_SNAPSHOT_NAME_BYTES])
{
	snprintf(ret_name, GCR_SNAPSHOT_NAME_BYTES, "%d-%" PRIu64 "-%s", (int)pid, start_ticks,
		 generation);
}

int gcr_snapshot_new(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		     const char *generation, struct gcr_snapshot **ret_snapshot,
		     struct gcr_error *error)
{
	struct gcr_snapshot *snapshot;

	if (pid <= 0 || !is_generation(generation))
		return gcr_error_set(error, EINVAL, "no snapshot can be of this generation");
	snapshot = calloc(1, sizeof(*snapshot));
	if (snapshot)
		snapshot->leftover = calloc(1, sizeof(*snapshot->leftover));
	if (!snapshot || !snapshot->leftover) {
		free(snapshot);
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	atomic_init(&snapshot->references, 1);
	snapshot->store = store;
	snapshot->pid = pid;
	if (store->counted)
		snapshot->root_uid = store->counted(pid);
	snapshot->start_ticks = start_ticks;
	snapshot->root_fd = -1;
	snapshot->files_fd = -1;
	snprintf(snapshot->generation, sizeof(snapshot->generation), "%s", generation);
	gcr_snapshot_name(pid, start_ticks, generation, snapshot->name);
	*ret_snapshot = snapshot;
	return 0;
}

int gcr_snapshot_set_cost(struct gcr_snapshot *snapshot)
{
	snapshot->files = calloc(snapshot->count ? snapshot->count : 1, sizeof(*snapshot->files));
	if (!snapshot->files)
		return -ENOMEM;
	snapshot->cost_bytes = gcr_snapshot_metadata_bytes(snapshot->extents, snapshot->count);
	for (size_t i = 0; i < snapshot->count; i++) {
		snapshot->bytes += snapshot->extents[i].bytes;
		snapshot->files[i].cost_bytes = gcr_store_cost(snapshot->extents[i].bytes);
		snapshot->cost_bytes += snapshot->files[i].cost_bytes;
	}
	return 0;
}

void gcr_snapshot_list_locked(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;

	snapshot->number = gcr_store_next_number_locked(store);
	snapshot->next = store->snapshots;
	store->snapshots = snapshot;
}

void gcr_snapshot_unlist_locked(struct gcr_snapshot *snapshot)
{
	struct gcr_snapshot **link = &snapshot->store->snapshots;

	while (*link && *link != snapshot)
		link = &(*link)->next;
	if (*link)
		*link = snapshot->next;
}

void gcr_snapshot_unlink_job_locked(struct gcr_snapshot *snapshot)
{
	struct gcr_snapshot **link = &snapshot->store->jobs;

	while (*link && *link != snapshot)
		link = &(*link)->next_job;
	if (*link)
		*link = snapshot->next_job;
}

void gcr_store_stop_populating_locked(struct gcr_snapshot *snapshot)
{
	snapshot->populating = false;
	gcr_snapshot_unlink_job_locked(snapshot);
}

/* ---- opening a snapshot ---- */

static int read_directory(struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	struct gcr_store *store = snapshot->store;
	_cleanup_close_ int fd =
		openat(store->fd, snapshot->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat stat;
	int result;

	if (fd < 0)
		return gcr_error_set(error, errno == ENOENT ? ENOENT : EPROTO,
				     "the store has no %s: %s", snapshot->name, strerror(errno));
	if (fstat(fd, &stat) < 0 || stat.st_uid != geteuid() || (stat.st_mode & 07777) != 0700)
		return gcr_error_set(error, EPROTO, "%s in the store is not ours", snapshot->name);
	result = gcr_store_read_table(fd, snapshot, error);
	if (result < 0)
		return result;
	if (gcr_snapshot_set_cost(snapshot) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	snapshot->root_fd = gcr_store_open_directory(fd, "snapshot");
	if (snapshot->root_fd < 0)
		return gcr_error_set(error, EPROTO, "%s in the store has no files", snapshot->name);
	if (!fstat(snapshot->root_fd, &stat))
		snapshot->uid = stat.st_uid ? stat.st_uid : snapshot->root_uid;
	if (gcr_snapshot_attach_subtree(snapshot) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	/* The files' owner may have removed the directory: the thaw then reports the error. */
	snapshot->files_fd = gcr_store_open_directory(snapshot->root_fd, "vram");
	if (snapshot->files_fd < 0)
		snapshot->files_fd = -1;
	return 0;
}

bool gcr_snapshot_try_ref(struct gcr_snapshot *snapshot)
{
	int references = atomic_load(&snapshot->references);

	while (references &&
	       !atomic_compare_exchange_weak(&snapshot->references, &references, references + 1))
		;
	return references;
}

/*
 * The snapshot of this name that is open already, with a reference for the caller; NULL if there is
 * none. Waits for one whose last reference is being dropped. Lock: store.
 */
static struct gcr_snapshot *find_open_locked(struct gcr_store *store, const char *name)
{
	for (;;) {
		struct gcr_snapshot *snapshot = store->snapshots;

		while (snapshot && strcmp(snapshot->name, name) != 0)
			snapshot = snapshot->next;
		if (!snapshot || gcr_snapshot_try_ref(snapshot))
			return snapshot;
		pthread_cond_wait(&store->changed, &store->lock);
	}
}

/*
 * Takes the leftover of this snapshot's name out of the list, and lists the snapshot. If another
 * thread has done so, returns the snapshot of that thread in @ret_open, with a reference. -ENOENT
 * if there is neither.
 */
static int take_leftover(struct gcr_snapshot *snapshot, struct gcr_snapshot **ret_open)
{
	struct gcr_store *store = snapshot->store;
	struct gcr_store_leftover **link;
	struct gcr_store_leftover *leftover;

	GCR_LOCK_SCOPE(&store->lock);
	*ret_open = find_open_locked(store, snapshot->name);
	if (*ret_open)
		return 0;
	for (link = &store->leftovers; *link && strcmp((*link)->name, snapshot->name) != 0;
	     link = &(*link)->next)
		;
	leftover = *link;
	if (!leftover)
		return -ENOENT;
	*link = leftover->next;
	store->snapshots_bytes += snapshot->cost_bytes - leftover->cost_bytes;
	gcr_snapshot_list_locked(snapshot);
	free(leftover);
	return 0;
}

int gcr_snapshot_open(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		      const char *generation, struct gcr_snapshot **ret_snapshot,
		      struct gcr_error *error)
{
	_cleanup_(gcr_snapshot_free_cleanup) struct gcr_snapshot *snapshot = NULL;
	struct gcr_snapshot *open;
	int result;

	result = gcr_snapshot_new(store, pid, start_ticks, generation, &snapshot, error);
	if (result < 0)
		return result;
	pthread_mutex_lock(&store->lock);
	open = find_open_locked(store, snapshot->name);
	pthread_mutex_unlock(&store->lock);
	if (open) {
		*ret_snapshot = open;
		return 0;
	}
	result = read_directory(snapshot, error);
	if (result < 0)
		return result;
	if (take_leftover(snapshot, &open) < 0)
		return gcr_error_set(error, ENOENT, "%s in the store is being removed",
				     snapshot->name);
	if (open) {
		*ret_snapshot = open;
		return 0;
	}
	gcr_snapshot_finish(snapshot);
	/* Users may have changed the tree under an earlier daemon. */
	if (gcr_subtree_touch(snapshot->subtree) < 0)
		gcr_snapshot_taint(snapshot);
	result = gcr_snapshot_attach_tables(snapshot, error);
	if (result < 0) {
		gcr_snapshot_unref(TAKE_PTR(snapshot));
		return result;
	}
	*ret_snapshot = TAKE_PTR(snapshot);
	return 0;
}

/* ---- references ---- */

struct gcr_snapshot *gcr_snapshot_ref(struct gcr_snapshot *snapshot)
{
	atomic_fetch_add(&snapshot->references, 1);
	return snapshot;
}

void gcr_snapshot_unref(struct gcr_snapshot *snapshot)
{
	struct gcr_store_leftover *leftover;
	struct gcr_room *room = NULL;
	struct gcr_store *store;
	uint64_t extra;

	if (!snapshot || atomic_fetch_sub(&snapshot->references, 1) != 1)
		return;
	store = snapshot->store;
	if (snapshot->subtree) {
		gcr_subtree_retire(snapshot->subtree);
		room = gcr_subtree_take_room(snapshot->subtree);
	}
	pthread_mutex_lock(&store->lock);
	if (room) {
		extra = gcr_room_destroy_locked(room);
		snapshot->cost_bytes += extra;
		store->snapshots_bytes += extra;
	}
	if (!snapshot->discarded) {
		/* The files stay, and count as a leftover. */
		gcr_snapshot_unlist_locked(snapshot);
		gcr_store_stop_populating_locked(snapshot);
		leftover = TAKE_PTR(snapshot->leftover);
		snprintf(leftover->name, sizeof(leftover->name), "%s", snapshot->name);
		leftover->cost_bytes = snapshot->cost_bytes;
		leftover->uid = snapshot->uid;
		leftover->claimed = true;
		leftover->next = store->leftovers;
		store->leftovers = leftover;
		pthread_cond_broadcast(&store->changed);
	}
	pthread_mutex_unlock(&store->lock);
	gcr_snapshot_free(snapshot);
}

void gcr_snapshot_taint(struct gcr_snapshot *snapshot)
{
	pthread_mutex_lock(&snapshot->store->lock);
	snapshot->is_tainted = true;
	pthread_mutex_unlock(&snapshot->store->lock);
}

/*
 * The sum of the bytes that the files count, for which remove_files() and the pool account one by
 * one.
 */
static uint64_t files_cost(const struct gcr_snapshot *snapshot)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < snapshot->count; i++)
		bytes += snapshot->files[i].cost_bytes;
	return bytes;
}

void gcr_snapshot_discard(struct gcr_snapshot *snapshot)
{
	struct gcr_store_removal *removal;
	struct gcr_room *room;
	struct gcr_store *store;
	uint64_t cost;

	if (!snapshot)
		return;
	store = snapshot->store;
	removal = calloc(1, sizeof(*removal));
	gcr_subtree_retire(snapshot->subtree);
	room = removal ? gcr_subtree_take_room(snapshot->subtree) : NULL;
	pthread_mutex_lock(&store->lock);
	if (snapshot->discarded || !removal) {
		/* Without memory for a removal, the files are left for the next daemon's sweep. */
		pthread_mutex_unlock(&store->lock);
		free(removal);
		gcr_snapshot_unref(snapshot);
		return;
	}
	snapshot->discarded = true;
	gcr_snapshot_unlist_locked(snapshot);
	gcr_store_stop_populating_locked(snapshot);
	cost = snapshot->cost_bytes;
	store->snapshots_bytes -= cost;
	if (room)
		cost += gcr_room_destroy_locked(room);
	store->going_bytes += cost;
	pthread_mutex_unlock(&store->lock);

	gcr_store_return_to_pool(snapshot);
	snprintf(removal->name, sizeof(removal->name), ".gone-%" PRIu32, snapshot->number);
	if (renameat(store->fd, snapshot->name, store->fd, removal->name) < 0)
		snprintf(removal->name, sizeof(removal->name), "%s", snapshot->name);
	removal->snapshot = snapshot; /* with the caller's reference */
	removal->subtree = snapshot->is_touched ? gcr_subtree_ref(snapshot->subtree) : NULL;
	removal->cost_bytes = snapshot->is_touched ? cost : cost - files_cost(snapshot);
	pthread_mutex_lock(&store->lock);
	gcr_store_remove_later_locked(store, removal);
	pthread_mutex_unlock(&store->lock);
}

void gcr_snapshot_finish(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	bool is_known = true;
	struct stat stat;

	for (size_t i = 0; i < snapshot->count; i++) {
		struct gcr_snapshot_file *file = &snapshot->files[i];
		uint64_t blocks;

		if (gcr_snapshot_stat(snapshot, i, &stat) < 0) {
			is_known = false;
			continue;
		}
		blocks = (uint64_t)stat.st_blocks * 512;
		pthread_mutex_lock(&store->lock);
		if (blocks < file->cost_bytes) {
			store->snapshots_bytes -= file->cost_bytes - blocks;
			snapshot->cost_bytes -= file->cost_bytes - blocks;
			file->cost_bytes = blocks;
		}
		pthread_mutex_unlock(&store->lock);
	}
	if (!is_known)
		return;
	/* All pages that are counted are allocated: pending_locked() need not check the files. */
	pthread_mutex_lock(&store->lock);
	snapshot->has_pages = true;
	pthread_mutex_unlock(&store->lock);
}

/* SPDX-License-Identifier: MIT */
/*
 * Removing what is no longer needed, on a thread: to free the pages of 16 GiB takes a while. The
 * bytes of a file count until it is unlinked and nobody has it open any more. A mapping alone keeps
 * no memory: see fs/store/inodes.h.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/store/folder.h"
#include "fs/store/inodes.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* What could not be removed is tried again after this time. */
#define AGAIN_USEC (2 * GCR_USEC_PER_SEC)

void gcr_store_remove_later_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	removal->next = NULL;
	*store->removals_end = removal;
	store->removals_end = &removal->next;
	pthread_cond_broadcast(&store->changed);
}

/* O_PATH; -1: nothing has the name. -EMFILE, -ENOMEM, ...: it is still there. */
static int open_name(int directory_fd, const char *name, int *ret_fd)
{
	*ret_fd = openat(directory_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return *ret_fd < 0 && errno != ENOENT ? -errno : 0;
}

static bool is_known(const struct stat *stat)
{
	return gcr_inodes_folders(stat) || gcr_inodes_is_passed(stat);
}

/* A tree that goes, file by file where files are known. */
struct going_tree {
	struct gcr_store *store;
	struct gcr_folder *folder; /* what it has open it counts itself; NULL: nothing */
	uid_t uid;		   /* for whom it counts */
	uint64_t held_bytes;	   /* so much stays in going_bytes */
};

/* gcr_store_visit. What the folder itself has open, gcr_folder_orphan_all() is for. */
static int remove_if_known(void *data, int directory_fd, const char *name, const struct stat *stat)
{
	struct going_tree *tree = data;
	struct gcr_inodes_bytes bytes = {
		.store = tree->store,
		.bytes = (uint64_t)stat->st_blocks * 512,
		.uid = tree->uid,
	};
	_cleanup_close_ int fd = -1;
	int result;

	if (!S_ISREG(stat->st_mode) || !is_known(stat))
		return 0;
	result = open_name(directory_fd, name, &fd);
	if (result < 0 || fd < 0)
		return result;
	if (tree->folder && gcr_folder_has_open(tree->folder, stat->st_ino))
		bytes.store = NULL;
	unlinkat(directory_fd, name, 0);
	if (gcr_inodes_removed(fd, &bytes))
		tree->held_bytes += bytes.bytes;
	return 0;
}

/* A file of a snapshot that nobody has changed; it is open or passed. *ret_held: its cost stays. */
static int remove_known(struct gcr_snapshot *snapshot, const char *name, const struct stat *stat,
			uint64_t cost, bool *ret_held)
{
	struct gcr_store *store = snapshot->store;
	/* Another folder has counted the memory of one that was adopted, until that name went. */
	uint64_t blocks_bytes = stat->st_nlink == 1 ? (uint64_t)stat->st_blocks * 512 : 0;
	uint64_t more_bytes = blocks_bytes > cost ? blocks_bytes - cost : 0;
	struct gcr_inodes_bytes bytes = {
		.store = store,
		.bytes = cost + more_bytes,
		.uid = gcr_folder_owner(snapshot->folder),
	};
	_cleanup_close_ int fd = -1;
	int result = open_name(snapshot->files_fd, name, &fd);

	if (result < 0 || fd < 0)
		return result;
	gcr_store_hold(store, more_bytes);
	*ret_held = gcr_folder_orphan(snapshot->folder, stat->st_ino, bytes.bytes);
	if (*ret_held)
		bytes.store = NULL;
	unlinkat(snapshot->files_fd, name, 0);
	if (gcr_inodes_removed(fd, &bytes))
		*ret_held = true;
	if (!*ret_held)
		gcr_store_let_go(store, more_bytes);
	return 0;
}

/*
 * The files one by one, so that each one's bytes are free as soon as it is gone. An error is the
 * first one's; its file, and maybe others, are still there.
 */
static int remove_files(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	int first_error = 0;

	for (size_t i = 0; i < snapshot->count; i++) {
		struct gcr_snapshot_file *file = &snapshot->files[i];
		uint64_t cost = snapshot->files[i].cost_bytes;
		char name[GCR_EXTENT_NAME_BYTES];
		bool is_held = false;
		struct stat stat;
		int result = 0;

		pthread_mutex_lock(&store->lock);
		if (file->unlinked) { /* it went to the pool */
			pthread_mutex_unlock(&store->lock);
			continue;
		}
		pthread_mutex_unlock(&store->lock);
		gcr_extent_name(&snapshot->extents[i], name);
		if (!fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW) &&
		    is_known(&stat))
			result = remove_known(snapshot, name, &stat, cost, &is_held);
		else
			unlinkat(snapshot->files_fd, name, 0);
		if (result < 0) {
			first_error = first_error ? first_error : result;
			continue;
		}
		pthread_mutex_lock(&store->lock);
		file->unlinked = true;
		gcr_store_note_unlinked_locked(store);
		if (!is_held)
			store->going_bytes -= cost;
		pthread_cond_broadcast(&store->changed);
		pthread_mutex_unlock(&store->lock);
	}
	return first_error;
}

void gcr_store_hold(struct gcr_store *store, uint64_t bytes)
{
	pthread_mutex_lock(&store->lock);
	store->going_bytes += bytes;
	pthread_mutex_unlock(&store->lock);
}

void gcr_store_let_go(struct gcr_store *store, uint64_t bytes)
{
	pthread_mutex_lock(&store->lock);
	store->going_bytes -= bytes;
	/* The kernel may have it open a moment longer (passthrough). */
	gcr_store_note_unlinked_locked(store);
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

/* Lock: store. */
static void try_again_later_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	removal->is_logged = true;
	removal->due_usec = gcr_clock_usec() + AGAIN_USEC;
	removal->next = store->left_removals;
	store->left_removals = removal;
}

/* Those whose pause is over are due again. When the next one's is; 0: there is none. Lock: store.
 */
static int64_t take_due_locked(struct gcr_store *store)
{
	int64_t now_usec = gcr_clock_usec();
	struct gcr_store_removal **link = &store->left_removals;
	int64_t next_usec = 0;

	while (*link) {
		struct gcr_store_removal *removal = *link;

		if (removal->due_usec > now_usec) {
			if (!next_usec || removal->due_usec < next_usec)
				next_usec = removal->due_usec;
			link = &removal->next;
			continue;
		}
		*link = removal->next;
		gcr_store_remove_later_locked(store, removal);
	}
	return next_usec;
}

static void removal_free(struct gcr_store_removal *removal)
{
	gcr_snapshot_unref(removal->snapshot);
	gcr_folder_unref(removal->folder);
	free(removal);
}

static void carry_out(struct gcr_store *store, struct gcr_store_removal *removal)
{
	struct going_tree tree = {.store = store, .folder = removal->folder};
	uint64_t held_bytes;
	int result = 0;

	if (removal->folder || removal->snapshot)
		tree.uid = gcr_folder_owner(removal->folder ? removal->folder
							    : removal->snapshot->folder);
	if (removal->snapshot && !removal->folder)
		result = remove_files(removal->snapshot);
	if (removal->folder)
		gcr_folder_discard_packed(removal->folder);
	else
		gcr_store_drop_tables(store, removal->name);
	if (!result)
		result = gcr_store_each_file(store->fd, removal->name, remove_if_known, &tree);
	if (!result)
		result = gcr_store_remove_directory(store->fd, removal->name);
	if (result < 0 && !removal->is_logged)
		gcr_log(LOG_WARNING, 0, "%s in the store cannot be removed: %s", removal->name,
			strerror(-result));
	removal->held_bytes += tree.held_bytes;
	held_bytes = removal->held_bytes;
	if (!result && removal->folder)
		held_bytes += gcr_folder_orphan_all(removal->folder);
	pthread_mutex_lock(&store->lock);
	if (removal->snapshot)
		gcr_store_note_unlinked_locked(store);
	/* What could not be removed is still there, and counts: descriptors or memory come back. */
	if (result == 0)
		store->going_bytes -= removal->cost_bytes - held_bytes;
	else
		try_again_later_locked(store, removal);
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	if (result == 0)
		removal_free(removal);
}

static void *remove_all(void *data)
{
	struct gcr_store *store = data;

	pthread_mutex_lock(&store->lock);
	for (;;) {
		int64_t next_usec = store->stopping ? 0 : take_due_locked(store);
		struct gcr_store_removal *removal = store->removals;

		if (!removal && store->stopping)
			break;
		if (!removal && next_usec) {
			gcr_store_wait_until_locked(store, next_usec);
			continue;
		}
		if (!removal) {
			pthread_cond_wait(&store->changed, &store->lock);
			continue;
		}
		store->removals = removal->next;
		if (!store->removals)
			store->removals_end = &store->removals;
		store->removing = true;
		pthread_mutex_unlock(&store->lock);
		carry_out(store, removal);
		pthread_mutex_lock(&store->lock);
		store->removing = false;
		pthread_cond_broadcast(&store->changed);
	}
	pthread_mutex_unlock(&store->lock);
	return NULL;
}

int gcr_store_start_remover(struct gcr_store *store)
{
	int result = pthread_create(&store->remover, NULL, remove_all, store);

	store->remover_started = !result;
	return -result;
}

void gcr_store_stop_remover(struct gcr_store *store)
{
	if (!store->remover_started)
		return;
	pthread_mutex_lock(&store->lock);
	store->stopping = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	pthread_join(store->remover, NULL);
	store->remover_started = false;
	/* The next daemon removes these. */
	while (store->left_removals) {
		struct gcr_store_removal *removal = store->left_removals;

		store->left_removals = removal->next;
		removal_free(removal);
	}
}

/* SPDX-License-Identifier: MIT */
/*
 * Removing what is no longer needed, on a thread: to free the pages of 16 GiB takes a while. The
 * bytes of a file count until it is unlinked and nobody has it open any more. A mapping alone keeps
 * no memory: see gcr_folder_free_removed().
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/store/folder.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* What could not be removed is tried again after this time. */
#define AGAIN_USEC   (2 * GCR_USEC_PER_SEC)
/* A descriptor that cannot be had is tried again. */
#define ATTEMPTS     50
#define ATTEMPT_MSEC 100

void gcr_store_remove_later_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	removal->next = NULL;
	*store->removals_end = removal;
	store->removals_end = &removal->next;
	pthread_cond_broadcast(&store->changed);
}

/* O_PATH. -errno. */
static int open_path(int directory_fd, const char *name)
{
	for (int i = 0;; i++) {
		int fd = openat(directory_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

		if (fd >= 0 || i == ATTEMPTS ||
		    (errno != EMFILE && errno != ENFILE && errno != ENOMEM))
			return fd < 0 ? -errno : fd;
		poll(NULL, 0, ATTEMPT_MSEC);
	}
}

/* Unlink it, and free its memory, unless somebody has it open. */
static void remove_mapped(int directory_fd, const char *name)
{
	_cleanup_close_ int fd = open_path(directory_fd, name);

	if (fd < 0)
		gcr_log(LOG_WARNING, 0,
			"the memory of %s stays as long as somebody has it mapped: %s", name,
			strerror(-fd));
	unlinkat(directory_fd, name, 0);
	if (fd >= 0)
		gcr_folder_free_removed(fd);
}

/* gcr_store_visit: @data is the folder of the tree. */
static void remove_if_mapped(void *data, int directory_fd, const char *name,
			     const struct stat *stat)
{
	struct gcr_folder *folder = data;

	if (S_ISREG(stat->st_mode) && gcr_folder_may_be_mapped(folder, stat->st_ino))
		remove_mapped(directory_fd, name);
}

/* The files one by one, so that each one's bytes are free as soon as it is gone. */
static void remove_files(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;

	for (size_t i = 0; i < snapshot->count; i++) {
		struct gcr_snapshot_file *file = &snapshot->files[i];
		uint64_t cost = snapshot->files[i].cost_bytes;
		char name[GCR_EXTENT_NAME_BYTES];
		bool may_be_mapped = false;
		bool is_read = false;
		struct stat stat;

		pthread_mutex_lock(&store->lock);
		if (file->unlinked) { /* it went to the pool */
			pthread_mutex_unlock(&store->lock);
			continue;
		}
		pthread_mutex_unlock(&store->lock);
		gcr_extent_name(&snapshot->extents[i], name);
		if (!fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW)) {
			is_read = gcr_folder_orphan(snapshot->folder, stat.st_ino, cost);
			may_be_mapped = gcr_folder_may_be_mapped(snapshot->folder, stat.st_ino);
		}
		if (may_be_mapped)
			remove_mapped(snapshot->files_fd, name);
		else
			unlinkat(snapshot->files_fd, name, 0);
		pthread_mutex_lock(&store->lock);
		file->unlinked = true;
		gcr_store_note_unlinked_locked(store);
		if (!is_read)
			store->going_bytes -= cost;
		pthread_cond_broadcast(&store->changed);
		pthread_mutex_unlock(&store->lock);
	}
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
	uint64_t held_bytes = 0;
	int result;

	if (removal->snapshot && !removal->folder)
		remove_files(removal->snapshot);
	if (removal->folder)
		gcr_folder_discard_packed(removal->folder);
	else
		gcr_store_drop_tables(store, removal->name);
	if (removal->folder && gcr_folder_may_have_mapped(removal->folder))
		gcr_store_each_file(store->fd, removal->name, remove_if_mapped, removal->folder);
	result = gcr_store_remove_directory(store->fd, removal->name);
	if (result < 0 && !removal->is_logged)
		gcr_log(LOG_WARNING, 0, "%s in the store cannot be removed: %s", removal->name,
			strerror(-result));
	if (!result && removal->folder)
		held_bytes = gcr_folder_orphan_all(removal->folder);
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

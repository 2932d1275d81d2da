/* SPDX-License-Identifier: MIT */
/*
 * Removals, on a thread of the store: freeing the pages of 16 GiB takes a while. The bytes of a
 * file count until the file is unlinked and no descriptor of it is open any more. A mapping alone
 * keeps no memory: see fs/store/inodes.h.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/store/subtree.h"
#include "fs/store/inodes.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Pause before a failed removal is tried again. */
#define AGAIN_USEC (2 * GCR_USEC_PER_SEC)
/* A step of a removal; then those of other users have their turns. */
#define STEP_USEC  (GCR_USEC_PER_SEC / 10)
/* At the end of the daemon, for all removals that are queued. */
#define STOP_USEC  GCR_USEC_PER_SEC

/*
 * Opens a name with O_PATH. Returns 0 with -1 in *ret_fd if the name does not exist. -EMFILE,
 * -ENOMEM, ...: the name still exists.
 */
static int open_name(int directory_fd, const char *name, int *ret_fd)
{
	*ret_fd = openat(directory_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return *ret_fd < 0 && errno != ENOENT ? -errno : 0;
}

/* A tree or files being removed, and the accounts that they are in. */
struct going {
	struct gcr_store *store;
	struct gcr_subtree *subtree; /* the subtree of the files; NULL: none */
	bool is_tree;		     /* the whole tree goes: open files are orphaned at the end */
	uint32_t adopter;    /* number of gcr_inodes_link() for names of its files; 0: none */
	uid_t uid;	     /* the user for whom the bytes count */
	uint64_t tree_bytes; /* the part of going_bytes for the whole tree */
	int64_t until_usec;  /* monotonic: the end of the step */
};

/*
 * Remove the name of a file, which may have an entry in the table of inodes. going_bytes include
 * @cost of its memory. *ret_kept of @cost stays there because the file is still in use; if more
 * than @cost stays in use, the excess is added to going_bytes. The caller subtracts the rest of
 * @cost. -EMFILE, -ENOMEM, ...: the name still exists.
 */
static int remove_name(const struct going *going, int directory_fd, const char *name, uint64_t cost,
		       uint64_t *ret_kept)
{
	struct gcr_inodes_bytes bytes = {.uid = going->uid, .adopter = going->adopter};
	bool is_orphan = false;
	bool is_held;
	uint64_t more;
	struct stat stat;
	_cleanup_close_ int fd = -1;
	int result = open_name(directory_fd, name, &fd);

	*ret_kept = 0;
	if (result < 0 || fd < 0)
		return result;
	if (unlinkat(directory_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	if (fstat(fd, &stat) < 0)
		return 0;
	/*
	 * Without an entry the table has no users of the file: a user that was not known before the
	 * removal of the name cannot be added now.
	 */
	if (!gcr_inodes_is_known(&stat))
		return 0;
	/*
	 * The last name was perhaps that of a place, which has counted the file's memory until now.
	 */
	bytes.bytes = (uint64_t)stat.st_blocks * 512;
	if (stat.st_nlink || bytes.bytes < cost)
		bytes.bytes = cost;
	more = bytes.bytes - cost;
	if (more)
		gcr_store_hold(going->store, more);
	if (going->subtree && !going->is_tree)
		is_orphan = gcr_subtree_orphan(going->subtree, stat.st_ino, cost);
	if (is_orphan)
		bytes.bytes = more;
	if (!going->is_tree || !going->subtree ||
	    !gcr_subtree_has_open(going->subtree, stat.st_ino))
		bytes.store = going->store;
	is_held = gcr_inodes_removed(fd, &bytes);
	if (!is_held && more)
		gcr_store_let_go(going->store, more);
	*ret_kept = is_held || is_orphan ? cost : 0;
	return 0;
}

/* A gcr_store_visit that removes the file; @data is a struct going. */
static int remove_file(void *data, int directory_fd, const char *name, const struct stat *stat)
{
	struct going *going = data;
	uint64_t cost = (uint64_t)stat->st_blocks * 512;
	uint64_t kept;
	int result;

	if (cost > going->tree_bytes)
		cost = going->tree_bytes;
	result = remove_name(going, directory_fd, name, cost, &kept);
	going->tree_bytes -= kept;
	return result;
}

int gcr_store_remove_tree(struct gcr_store *store, int parent_fd, const char *name,
			  uint32_t adopter)
{
	struct going going = {
		.store = store,
		.is_tree = true,
		.adopter = adopter,
	};

	return gcr_store_remove_some(parent_fd, name, INT64_MAX, remove_file, &going);
}

void gcr_store_remove_tree_or_later(struct gcr_store *store, const char *name, uint32_t adopter)
{
	int result = gcr_store_remove_tree(store, store->fd, name, adopter);
	struct gcr_store_removal *removal;

	if (!result)
		return;
	/* A tree of the same name may be begun before this one is removed. */
	removal = calloc(1, sizeof(*removal));
	GCR_LOCK_SCOPE(&store->lock);
	if (removal) {
		gcr_store_name_removal_locked(store, removal);
		removal->adopter = adopter;
		if (!renameat(store->fd, name, store->fd, removal->name)) {
			gcr_store_remove_later_locked(store, removal);
			return;
		}
		free(removal);
	}
	gcr_log(LOG_WARNING, 0, "%s in the store cannot be removed: %s", name, strerror(-result));
}

/*
 * Remove the files one by one, so that the bytes of each are free at once. Returns the first error;
 * the file of that error, and possibly others, still exist. -EAGAIN: the step is over.
 */
static int remove_files(const struct going *going, struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	int first_error = 0;

	for (size_t i = 0; i < snapshot->count; i++) {
		struct gcr_snapshot_file *file = &snapshot->files[i];
		uint64_t cost = snapshot->files[i].cost_bytes;
		char name[GCR_EXTENT_NAME_BYTES];
		uint64_t kept = 0;
		int result;

		pthread_mutex_lock(&store->lock);
		if (file->unlinked) { /* moved to the pool */
			pthread_mutex_unlock(&store->lock);
			continue;
		}
		pthread_mutex_unlock(&store->lock);
		gcr_extent_name(&snapshot->extents[i], name);
		result = remove_name(going, snapshot->files_fd, name, cost, &kept);
		if (result < 0) {
			first_error = first_error ? first_error : result;
			continue;
		}
		pthread_mutex_lock(&store->lock);
		file->unlinked = true;
		gcr_store_note_unlinked_locked(store);
		store->going_bytes -= cost - kept;
		pthread_cond_broadcast(&store->changed);
		pthread_mutex_unlock(&store->lock);
		if (gcr_clock_usec() >= going->until_usec)
			return first_error ? first_error : -EAGAIN;
	}
	return first_error;
}

/* Sets a failed removal aside for AGAIN_USEC. Lock: store. */
static void try_again_later_locked(struct gcr_store *store, struct gcr_store_removal *removal)
{
	removal->is_logged = true;
	removal->due_usec = gcr_clock_usec() + AGAIN_USEC;
	removal->next = store->left_removals;
	store->left_removals = removal;
}

/*
 * Queue the failed removals whose pause is over. Returns when the next pause ends; 0: there is
 * none. Lock: store.
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
	gcr_subtree_unref(removal->subtree);
	free(removal);
}

/* Carries out a step of the removal, which is then freed or queued again. */
static void carry_out(struct gcr_store *store, struct gcr_store_removal *removal)
{
	struct gcr_snapshot *snapshot = removal->snapshot;
	struct gcr_subtree *subtree = removal->subtree;
	struct going going = {
		.store = store,
		.subtree = subtree,
		.is_tree = subtree,
		.adopter = snapshot && snapshot->is_adopted ? snapshot->number : removal->adopter,
		.uid = removal->uid,
		.tree_bytes = removal->cost_bytes,
		.until_usec = gcr_clock_usec() + STEP_USEC,
	};
	uint64_t held_bytes = 0;
	int result = 0;

	if (!subtree && snapshot)
		going.subtree = snapshot->subtree;
	if (going.subtree)
		going.uid = gcr_subtree_owner(going.subtree);
	if (!subtree && snapshot)
		result = remove_files(&going, snapshot);
	if (!result && !removal->is_left)
		result = subtree ? gcr_subtree_discard_packed(subtree)
				 : gcr_store_drop_tables(store, removal->name);
	if (!result)
		result = gcr_store_remove_some(store->fd, removal->name, going.until_usec,
					       remove_file, &going);
	if (result < 0 && result != -EAGAIN && !removal->is_logged)
		gcr_log(LOG_WARNING, 0, "%s in the store cannot be removed: %s", removal->name,
			strerror(-result));
	if (!result && subtree)
		held_bytes = gcr_subtree_orphan_all(subtree);
	removal->cost_bytes = going.tree_bytes;
	pthread_mutex_lock(&store->lock);
	if (removal->snapshot)
		gcr_store_note_unlinked_locked(store);
	/*
	 * After a failure the files still exist, and count; the removal is tried again when there
	 * may be descriptors or memory.
	 */
	if (result == 0)
		store->going_bytes -= removal->cost_bytes - held_bytes;
	else if (result == -EAGAIN)
		gcr_store_remove_later_locked(store, removal);
	else
		try_again_later_locked(store, removal);
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	if (result == 0)
		removal_free(removal);
}

/*
 * Is the time for removals at the end of the daemon over? There is such a limit only for a store
 * with its own mount: the rest disappears with the mount, or is there for the next daemon. Lock:
 * store.
 */
static bool must_stop_locked(const struct gcr_store *store)
{
	/* Not since gcr_store_stop_filler(), which sets `stopping` without a limit. */
	return store->removals_until_usec && store->mountpoint &&
	       gcr_clock_usec() >= store->removals_until_usec;
}

static void *remove_all(void *data)
{
	struct gcr_store *store = data;

	pthread_mutex_lock(&store->lock);
	for (;;) {
		int64_t next_usec = store->stopping ? 0 : take_due_locked(store);
		struct gcr_store_removal *removal = store->removals;

		if ((!removal && store->stopping) || must_stop_locked(store))
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
		store->removal_round = removal->round;
		store->removal_owner = removal->owner;
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

/* Frees removals, which the next daemon carries out. */
static void free_all(struct gcr_store_removal *removals)
{
	while (removals) {
		struct gcr_store_removal *removal = removals;

		removals = removal->next;
		removal_free(removal);
	}
}

static void stop_thread(struct gcr_store *store)
{
	pthread_mutex_lock(&store->lock);
	store->stopping = true;
	store->removals_until_usec = gcr_clock_usec() + STOP_USEC;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	pthread_join(store->remover, NULL);
	store->remover_started = false;
}

void gcr_store_stop_remover(struct gcr_store *store)
{
	if (store->remover_started)
		stop_thread(store);
	free_all(TAKE_PTR(store->removals));
	free_all(TAKE_PTR(store->left_removals));
}

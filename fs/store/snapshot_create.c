/* SPDX-License-Identifier: MIT */
/*
 * Making a snapshot: of new files and those of the pool, or of the files of a place. A snapshot's
 * directory appears under its name only when it is complete.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/store/subtree.h"
#include "fs/store/inodes.h"
#include "lib/beneath.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/procfs.h"

/*
 * Maximum time to look for room that others give back: the program waits at its gate during this
 * time.
 */
#define RESERVE_USEC (30 * GCR_USEC_PER_SEC)

/* The owner of a snapshot's files: the process's user, if the daemon may change owners. */
struct owner {
	bool is_given;
	uid_t uid;
	gid_t gid;
};

static void find_owner(const struct gcr_snapshot *snapshot, struct owner *ret_owner)
{
	*ret_owner = (struct owner){.is_given = !geteuid()};
	/* If the process has ended, the owner stays root. */
	if (ret_owner->is_given)
		gcr_proc_owner(snapshot->pid, &ret_owner->uid, &ret_owner->gid);
}

/*
 * The bytes that the files from the pool count; @with_pages: only those of files with all their
 * pages, as far as the snapshot needs them.
 */
static uint64_t sum_taken(const struct gcr_snapshot *snapshot, struct gcr_pool_file *const *files,
			  bool with_pages)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < snapshot->count; i++) {
		uint64_t cost = files[i] ? files[i]->cost_bytes : 0;

		if (with_pages && (!files[i] || !files[i]->has_pages))
			continue;
		/* The excess of a file that is too large is cut off. */
		if (with_pages && cost > gcr_store_cost(snapshot->extents[i].bytes))
			cost = gcr_store_cost(snapshot->extents[i].bytes);
		bytes += cost;
	}
	return bytes;
}

/*
 * Promise the snapshot its room. Kept snapshots and pool files that it does not use are given up if
 * need be, and removals under way are waited for.
 */
static int reserve(struct gcr_snapshot *snapshot, struct gcr_pool_file **files,
		   struct gcr_error *error)
{
	struct gcr_store *store = snapshot->store;
	int64_t until_usec = gcr_clock_usec() + RESERVE_USEC;
	struct owner owner;
	uint64_t taken;
	int result;

	find_owner(snapshot, &owner);
	pthread_mutex_lock(&store->lock);
	snapshot->uid = owner.uid ? owner.uid : snapshot->root_uid;
	store->reserving++;
	gcr_store_take_from_pool_locked(snapshot, files);
	taken = sum_taken(snapshot, files, false);
	result = gcr_store_check_claim_locked(store, snapshot->pid, snapshot->start_ticks,
					      snapshot->cost_bytes, error);
	while (!result) {
		uint64_t reused = sum_taken(snapshot, files, true);
		uint64_t more = snapshot->cost_bytes > taken ? snapshot->cost_bytes - taken : 0;
		uint64_t missing = 0;

		result = gcr_store_check_room_locked(store, more, snapshot->cost_bytes - reused,
						     &missing, error);
		if (!result)
			break;
		/*
		 * The snapshot can never fit, or other processes take all the room that becomes
		 * free.
		 */
		if (snapshot->cost_bytes > store->size_bytes - store->reserve_bytes ||
		    gcr_clock_usec() > until_usec)
			break;
		if (!gcr_store_make_room_locked(store, missing, until_usec) &&
		    !gcr_store_wait_going_locked(store, true))
			break;
		result = 0;
	}
	if (!result) {
		store->pool_bytes -= taken;
		store->snapshots_bytes += snapshot->cost_bytes;
		gcr_snapshot_list_locked(snapshot);
	} else {
		gcr_store_return_to_pool_locked(snapshot, files);
	}
	gcr_store_end_claim_locked(store, snapshot->pid, snapshot->start_ticks);
	store->reserving--;
	store->pools_changed = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	return result;
}

static int give(int directory_fd, const char *name, const struct owner *owner)
{
	if (!owner->is_given)
		return 0;
	return fchownat(directory_fd, name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) < 0
		       ? -errno
		       : 0;
}

static int make_file(struct gcr_snapshot *snapshot, size_t index,
		     const struct gcr_pool_file *from_pool, const struct owner *owner)
{
	const struct gcr_extent *extent = &snapshot->extents[index];
	struct gcr_store *store = snapshot->store;
	char name[GCR_EXTENT_NAME_BYTES];
	_cleanup_close_ int fd = -1;
	char pool_name[GCR_POOL_NAME_BYTES];

	gcr_extent_name(extent, name);
	if (from_pool) {
		gcr_store_pool_file_name(from_pool, pool_name);
		if (renameat(store->pool_fd, pool_name, snapshot->files_fd, name) < 0)
			return -errno;
		/* A new modification time for the new content. */
		if (utimensat(snapshot->files_fd, name, NULL, AT_SYMLINK_NOFOLLOW) < 0)
			return -errno;
		if (from_pool->bytes == extent->bytes) {
			snapshot->files[index].has_pages = from_pool->has_pages;
			return give(snapshot->files_fd, name, owner);
		}
	}
	fd = openat(snapshot->files_fd, name,
		    O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC |
			    (from_pool ? 0 : O_CREAT | O_EXCL),
		    0600);
	if (fd < 0 || ftruncate(fd, (off_t)extent->bytes) < 0)
		return -errno;
	snapshot->files[index].has_pages = from_pool && from_pool->has_pages;
	return give(snapshot->files_fd, name, owner);
}

/* Make the directory `snapshot` with `vram` in it, in the directory @fd. */
static int make_directories(struct gcr_snapshot *snapshot, int fd, const struct owner *owner)
{
	struct gcr_store *store = snapshot->store;
	int result = 0;

	if (mkdirat(fd, "snapshot", 0700) < 0)
		return -errno;
	snapshot->root_fd = gcr_beneath_open(fd, "snapshot", O_RDONLY | O_DIRECTORY);
	if (snapshot->root_fd < 0)
		return snapshot->root_fd;
	if (mkdirat(snapshot->root_fd, "vram", 0700) < 0)
		return -errno;
	/* The lock is for other freezes, which read files_fd to sum the allocated memory. */
	pthread_mutex_lock(&store->lock);
	snapshot->files_fd = gcr_beneath_open(snapshot->root_fd, "vram", O_RDONLY | O_DIRECTORY);
	result = snapshot->files_fd < 0 ? snapshot->files_fd : 0;
	pthread_mutex_unlock(&store->lock);
	if (!result)
		result = give(snapshot->root_fd, "vram", owner);
	return result ? result : give(fd, "snapshot", owner);
}

/* Make the directories, the files and the table, then rename the directory to its final name. */
static int make_files(struct gcr_snapshot *snapshot, const char *temporary,
		      struct gcr_pool_file *const *files)
{
	struct gcr_store *store = snapshot->store;
	_cleanup_close_ int fd = -1;
	struct owner owner;
	bool has_pages = true;
	int result = 0;

	if (mkdirat(store->fd, temporary, 0700) < 0)
		return -errno;
	fd = openat(store->fd, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	find_owner(snapshot, &owner);
	result = make_directories(snapshot, fd, &owner);
	for (size_t i = 0; i < snapshot->count && !result; i++) {
		result = make_file(snapshot, i, files[i], &owner);
		/*
		 * A file that holds its bytes may keep its holes: no thread has to fill them, but a
		 * writer may, so they stay pending.
		 */
		has_pages &= snapshot->files[i].has_pages &&
			     (!files[i] || files[i]->cost_bytes >= files[i]->bytes);
	}
	if (!result)
		result = gcr_store_write_table(fd, snapshot);
	if (!result)
		result = gcr_snapshot_attach_subtree(snapshot);
	if (!result &&
	    renameat2(store->fd, temporary, store->fd, snapshot->name, RENAME_NOREPLACE) < 0)
		result = -errno;
	if (!result) {
		pthread_mutex_lock(&store->lock);
		snapshot->has_pages = has_pages;
		pthread_mutex_unlock(&store->lock);
	}
	return result;
}

/*
 * Without a pool there is no pool thread: remove the files of a kept snapshot that were given up.
 */
static void remove_given_up(struct gcr_store *store)
{
	struct gcr_pool_file *files = NULL;

	pthread_mutex_lock(&store->lock);
	if (!store->filler_started)
		files = gcr_store_shrink_pool_locked(store, 0);
	pthread_mutex_unlock(&store->lock);
	gcr_store_remove_pool_files(store, files);
}

int gcr_snapshot_create(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			const char *generation, const struct gcr_extent *extents, size_t count,
			struct gcr_snapshot **ret_snapshot, struct gcr_error *error)
{
	_cleanup_(gcr_snapshot_free_cleanup) struct gcr_snapshot *snapshot = NULL;
	_cleanup_free_ struct gcr_pool_file **files = NULL;
	char temporary[GCR_STORE_NAME_BYTES];
	struct gcr_snapshot *old;
	int result;

	result = gcr_snapshot_new(store, pid, start_ticks, generation, &snapshot, error);
	if (result < 0)
		return result;
	files = calloc(count ? count : 1, sizeof(*files));
	snapshot->extents = calloc(count ? count : 1, sizeof(*extents));
	snapshot->count = count;
	if (!files || !snapshot->extents)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (count)
		memcpy(snapshot->extents, extents, count * sizeof(*extents));
	if (gcr_snapshot_set_cost(snapshot) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	old = gcr_store_take_kept(store, pid, start_ticks);
	if (old) {
		gcr_store_reuse_kept(snapshot, old, files);
		gcr_snapshot_discard(old);
		remove_given_up(store);
	}
	result = reserve(snapshot, files, error);
	if (result < 0) {
		remove_given_up(store);
		return result;
	}

	snprintf(temporary, sizeof(temporary), ".new-%s", snapshot->name);
	result = make_files(snapshot, temporary, files);
	for (size_t i = 0; i < count; i++) {
		if (result < 0 && files[i])
			gcr_store_unlink_pool_file(store, files[i]);
		free(files[i]);
	}
	if (result < 0) {
		gcr_store_remove_directory(store->fd, temporary);
		pthread_mutex_lock(&store->lock);
		gcr_snapshot_unlist_locked(snapshot);
		store->snapshots_bytes -= snapshot->cost_bytes;
		pthread_mutex_unlock(&store->lock);
		return gcr_error_set(error, -result, "the store's files cannot be made: %s",
				     strerror(-result));
	}
	*ret_snapshot = TAKE_PTR(snapshot);
	return 0;
}

/* ---- a snapshot of the files of a place ---- */

int gcr_snapshot_link(const struct gcr_snapshot *snapshot, size_t index, int to_fd, uint32_t number)
{
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat stat;

	gcr_extent_name(&snapshot->extents[index], name);
	return gcr_inodes_link(snapshot->files_fd, name, to_fd, number, &stat);
}

static int link_file(struct gcr_snapshot *snapshot, size_t index, int vram_fd,
		     struct gcr_error *error)
{
	const struct gcr_extent *extent = &snapshot->extents[index];
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat stat;
	int result;

	gcr_extent_name(extent, name);
	result = gcr_inodes_link(vram_fd, name, snapshot->files_fd, snapshot->number, &stat);
	if (result == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (result < 0)
		return gcr_error_set(error, EIO, "vram/%s cannot be taken: %s", name,
				     strerror(-result));
	if ((uint64_t)stat.st_size != extent->bytes)
		return gcr_error_set(error, EIO, "vram/%s has another size", name);
	return 0;
}

/* As make_files(), with hard links instead of files. */
static int make_links(struct gcr_snapshot *snapshot, const char *temporary, int vram_fd,
		      struct gcr_error *error)
{
	struct gcr_store *store = snapshot->store;
	_cleanup_close_ int fd = -1;
	struct owner owner;
	int result = 0;

	if (mkdirat(store->fd, temporary, 0700) < 0)
		return gcr_error_set(error, errno, "the store: %s", strerror(errno));
	fd = openat(store->fd, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return gcr_error_set(error, errno, "the store: %s", strerror(errno));
	find_owner(snapshot, &owner);
	result = make_directories(snapshot, fd, &owner);
	if (result < 0)
		return gcr_error_set(error, -result, "the store: %s", strerror(-result));
	for (size_t i = 0; i < snapshot->count && !result; i++)
		result = link_file(snapshot, i, vram_fd, error);
	if (result < 0)
		return result;
	result = gcr_store_write_table(fd, snapshot);
	if (!result)
		result = gcr_snapshot_attach_subtree(snapshot);
	if (!result &&
	    renameat2(store->fd, temporary, store->fd, snapshot->name, RENAME_NOREPLACE) < 0)
		result = -errno;
	return result ? gcr_error_set(error, -result, "the store: %s", strerror(-result)) : 0;
}

int gcr_snapshot_adopt(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		       const char *generation, const struct gcr_extent *extents, size_t count,
		       int vram_fd, struct gcr_snapshot **ret_snapshot, struct gcr_error *error)
{
	_cleanup_(gcr_snapshot_free_cleanup) struct gcr_snapshot *snapshot = NULL;
	char temporary[GCR_STORE_NAME_BYTES];
	struct owner owner;
	int result;

	result = gcr_snapshot_new(store, pid, start_ticks, generation, &snapshot, error);
	if (result < 0)
		return result;
	snapshot->extents = calloc(count ? count : 1, sizeof(*extents));
	snapshot->count = count;
	if (!snapshot->extents)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (count)
		memcpy(snapshot->extents, extents, count * sizeof(*extents));
	if (gcr_snapshot_set_cost(snapshot) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		snapshot->cost_bytes -= snapshot->files[i].cost_bytes;
		snapshot->files[i].cost_bytes = 0;
	}
	snapshot->is_tainted = true;
	snapshot->is_adopted = true;
	find_owner(snapshot, &owner);
	pthread_mutex_lock(&store->lock);
	snapshot->uid = owner.uid ? owner.uid : snapshot->root_uid;
	store->snapshots_bytes += snapshot->cost_bytes;
	gcr_snapshot_list_locked(snapshot);
	pthread_mutex_unlock(&store->lock);
	snprintf(temporary, sizeof(temporary), ".new-%s", snapshot->name);
	result = make_links(snapshot, temporary, vram_fd, error);
	if (result < 0) {
		gcr_store_remove_tree_or_later(store, temporary, snapshot->number);
		pthread_mutex_lock(&store->lock);
		gcr_snapshot_unlist_locked(snapshot);
		store->snapshots_bytes -= snapshot->cost_bytes;
		pthread_mutex_unlock(&store->lock);
		return result;
	}
	*ret_snapshot = TAKE_PTR(snapshot);
	return 0;
}

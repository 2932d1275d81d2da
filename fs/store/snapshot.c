/* SPDX-License-Identifier: MIT */
/*
 * Snapshots: making their files, opening those that an earlier daemon has left, and discarding
 * them. A snapshot's directory appears under its name only when it is complete.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/digest_buffer.h"
#include "fs/store/folder.h"
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

static void snapshot_free(struct gcr_snapshot *snapshot)
{
	gcr_folder_unref(snapshot->folder);
	if (snapshot->files_fd >= 0)
		close(snapshot->files_fd);
	if (snapshot->root_fd >= 0)
		close(snapshot->root_fd);
	free(snapshot->extents);
	free(snapshot->files);
	free(snapshot->groups);
	gcr_digest_buffer_destroy(snapshot->digests);
	free(snapshot);
}

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, snapshot_free);

/* The generation becomes part of a path, so its characters are restricted. */
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

static int snapshot_new(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			const char *generation, struct gcr_snapshot **ret_snapshot,
			struct gcr_error *error)
{
	struct gcr_snapshot *snapshot;

	if (pid <= 0 || !is_generation(generation))
		return gcr_error_set(error, EINVAL, "no snapshot can be of this generation");
	snapshot = calloc(1, sizeof(*snapshot));
	if (!snapshot)
		return gcr_error_set(error, ENOMEM, "out of memory");
	atomic_init(&snapshot->references, 1);
	snapshot->store = store;
	snapshot->pid = pid;
	if (store->counted)
		snapshot->root_uid = store->counted(pid, 0);
	snapshot->start_ticks = start_ticks;
	snapshot->root_fd = -1;
	snapshot->files_fd = -1;
	snprintf(snapshot->generation, sizeof(snapshot->generation), "%s", generation);
	gcr_snapshot_name(pid, start_ticks, generation, snapshot->name);
	*ret_snapshot = snapshot;
	return 0;
}

/* The extents must be set. */
static int set_cost(struct gcr_snapshot *snapshot)
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

uint64_t gcr_snapshot_resident_bytes(const struct gcr_snapshot *snapshot, bool *ret_complete)
{
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t bytes = gcr_snapshot_metadata_bytes(snapshot->extents, snapshot->count);
	bool complete = true;
	struct stat stat;

	for (size_t i = 0; i < snapshot->count; i++) {
		uint64_t found = 0;

		gcr_extent_name(&snapshot->extents[i], name);
		if (snapshot->files_fd >= 0 &&
		    !fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW))
			found = (uint64_t)stat.st_blocks * 512;
		complete &= found >= snapshot->extents[i].bytes;
		bytes += found;
	}
	*ret_complete = complete;
	return bytes;
}

/* Lock: store. */
static void list_locked(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;

	snapshot->number = gcr_store_next_number_locked(store);
	snapshot->next = store->snapshots;
	store->snapshots = snapshot;
}

/* Lock: store. */
static void unlist_locked(struct gcr_snapshot *snapshot)
{
	struct gcr_snapshot **link = &snapshot->store->snapshots;

	while (*link && *link != snapshot)
		link = &(*link)->next;
	if (*link)
		*link = snapshot->next;
}

/* ---- making a snapshot ---- */

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
		list_locked(snapshot);
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
		result = gcr_snapshot_attach_folder(snapshot);
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
	_cleanup_(snapshot_free_cleanup) struct gcr_snapshot *snapshot = NULL;
	_cleanup_free_ struct gcr_pool_file **files = NULL;
	char temporary[GCR_STORE_NAME_BYTES];
	struct gcr_snapshot *old;
	int result;

	result = snapshot_new(store, pid, start_ticks, generation, &snapshot, error);
	if (result < 0)
		return result;
	files = calloc(count ? count : 1, sizeof(*files));
	snapshot->extents = calloc(count ? count : 1, sizeof(*extents));
	snapshot->count = count;
	if (!files || !snapshot->extents)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (count)
		memcpy(snapshot->extents, extents, count * sizeof(*extents));
	if (set_cost(snapshot) < 0)
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
		unlist_locked(snapshot);
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
		result = gcr_snapshot_attach_folder(snapshot);
	if (!result &&
	    renameat2(store->fd, temporary, store->fd, snapshot->name, RENAME_NOREPLACE) < 0)
		result = -errno;
	return result ? gcr_error_set(error, -result, "the store: %s", strerror(-result)) : 0;
}

int gcr_snapshot_adopt(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		       const char *generation, const struct gcr_extent *extents, size_t count,
		       int vram_fd, struct gcr_snapshot **ret_snapshot, struct gcr_error *error)
{
	_cleanup_(snapshot_free_cleanup) struct gcr_snapshot *snapshot = NULL;
	char temporary[GCR_STORE_NAME_BYTES];
	struct owner owner;
	int result;

	result = snapshot_new(store, pid, start_ticks, generation, &snapshot, error);
	if (result < 0)
		return result;
	snapshot->extents = calloc(count ? count : 1, sizeof(*extents));
	snapshot->count = count;
	if (!snapshot->extents)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (count)
		memcpy(snapshot->extents, extents, count * sizeof(*extents));
	if (set_cost(snapshot) < 0)
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
	list_locked(snapshot);
	pthread_mutex_unlock(&store->lock);
	snprintf(temporary, sizeof(temporary), ".new-%s", snapshot->name);
	result = make_links(snapshot, temporary, vram_fd, error);
	if (result < 0) {
		gcr_store_remove_tree_or_later(store, temporary, snapshot->number);
		pthread_mutex_lock(&store->lock);
		unlist_locked(snapshot);
		store->snapshots_bytes -= snapshot->cost_bytes;
		pthread_mutex_unlock(&store->lock);
		return result;
	}
	*ret_snapshot = TAKE_PTR(snapshot);
	return 0;
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
	if (set_cost(snapshot) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	snapshot->root_fd = gcr_store_open_directory(fd, "snapshot");
	if (snapshot->root_fd < 0)
		return gcr_error_set(error, EPROTO, "%s in the store has no files", snapshot->name);
	if (!fstat(snapshot->root_fd, &stat))
		snapshot->uid = stat.st_uid ? stat.st_uid : snapshot->root_uid;
	if (gcr_snapshot_attach_folder(snapshot) < 0)
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

/* A snapshot that this daemon has open already. Lock: store. */
static struct gcr_snapshot *find_open_locked(struct gcr_store *store, const char *name)
{
	struct gcr_snapshot *snapshot = store->snapshots;

	while (snapshot && strcmp(snapshot->name, name) != 0)
		snapshot = snapshot->next;
	return snapshot && gcr_snapshot_try_ref(snapshot) ? snapshot : NULL;
}

int gcr_snapshot_open(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		      const char *generation, struct gcr_snapshot **ret_snapshot,
		      struct gcr_error *error)
{
	_cleanup_(snapshot_free_cleanup) struct gcr_snapshot *snapshot = NULL;
	struct gcr_store_leftover **link;
	struct gcr_store_leftover *leftover;
	struct gcr_snapshot *open;
	int result;

	result = snapshot_new(store, pid, start_ticks, generation, &snapshot, error);
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
	pthread_mutex_lock(&store->lock);
	for (link = &store->leftovers; *link && strcmp((*link)->name, snapshot->name) != 0;
	     link = &(*link)->next)
		;
	leftover = *link;
	if (leftover) {
		*link = leftover->next;
		store->snapshots_bytes += snapshot->cost_bytes - leftover->cost_bytes;
		list_locked(snapshot);
	}
	pthread_mutex_unlock(&store->lock);
	if (!leftover)
		return gcr_error_set(error, ENOENT, "%s in the store is being removed",
				     snapshot->name);
	free(leftover);
	gcr_snapshot_settle(snapshot);
	/* Users may have changed the tree under an earlier daemon. */
	if (gcr_folder_touch(snapshot->folder) < 0)
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
	if (snapshot->folder) {
		gcr_folder_retire(snapshot->folder);
		room = gcr_folder_take_room(snapshot->folder);
	}
	pthread_mutex_lock(&store->lock);
	if (room) {
		extra = gcr_room_destroy_locked(room);
		snapshot->cost_bytes += extra;
		store->snapshots_bytes += extra;
	}
	if (!snapshot->discarded) {
		/* The files stay, and count as a leftover. */
		unlist_locked(snapshot);
		gcr_store_stop_populating_locked(snapshot);
		leftover = calloc(1, sizeof(*leftover));
		if (leftover) {
			snprintf(leftover->name, sizeof(leftover->name), "%s", snapshot->name);
			leftover->cost_bytes = snapshot->cost_bytes;
			leftover->uid = snapshot->uid;
			leftover->claimed = true;
			leftover->next = store->leftovers;
			store->leftovers = leftover;
		}
	}
	pthread_mutex_unlock(&store->lock);
	snapshot_free(snapshot);
}

void gcr_snapshot_taint(struct gcr_snapshot *snapshot)
{
	pthread_mutex_lock(&snapshot->store->lock);
	snapshot->is_tainted = true;
	pthread_mutex_unlock(&snapshot->store->lock);
}

/* Bytes that remove_files() and the pool account for. */
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
	gcr_folder_retire(snapshot->folder);
	room = removal ? gcr_folder_take_room(snapshot->folder) : NULL;
	pthread_mutex_lock(&store->lock);
	if (snapshot->discarded || !removal) {
		/* Without memory for a removal, the files are left for the next daemon's sweep. */
		pthread_mutex_unlock(&store->lock);
		free(removal);
		gcr_snapshot_unref(snapshot);
		return;
	}
	snapshot->discarded = true;
	unlist_locked(snapshot);
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
	removal->folder = snapshot->is_touched ? gcr_folder_ref(snapshot->folder) : NULL;
	removal->cost_bytes = snapshot->is_touched ? cost : cost - files_cost(snapshot);
	pthread_mutex_lock(&store->lock);
	gcr_store_remove_later_locked(store, removal);
	pthread_mutex_unlock(&store->lock);
}

void gcr_snapshot_settle(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	bool is_settled = true;
	struct stat stat;

	for (size_t i = 0; i < snapshot->count; i++) {
		struct gcr_snapshot_file *file = &snapshot->files[i];
		uint64_t blocks;

		if (gcr_snapshot_stat(snapshot, i, &stat) < 0) {
			is_settled = false;
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
	if (!is_settled)
		return;
	/* All pages that are counted are allocated: pending_locked() need not check the files. */
	pthread_mutex_lock(&store->lock);
	snapshot->has_pages = true;
	pthread_mutex_unlock(&store->lock);
}

int gcr_snapshot_root(const struct gcr_snapshot *snapshot)
{
	return snapshot->root_fd;
}

int gcr_snapshot_directory(const struct gcr_snapshot *snapshot)
{
	return snapshot->files_fd;
}

size_t gcr_snapshot_count(const struct gcr_snapshot *snapshot)
{
	return snapshot->count;
}

const struct gcr_extent *gcr_snapshot_extent(const struct gcr_snapshot *snapshot, size_t index)
{
	return &snapshot->extents[index];
}

uint64_t gcr_snapshot_bytes(const struct gcr_snapshot *snapshot)
{
	return snapshot->bytes;
}

int gcr_snapshot_stat(const struct gcr_snapshot *snapshot, size_t index, struct stat *ret_stat)
{
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat stat;

	gcr_extent_name(&snapshot->extents[index], name);
	if (fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	*ret_stat = stat;
	return 0;
}

int gcr_snapshot_open_file(const struct gcr_snapshot *snapshot, size_t index, bool writable)
{
	char name[GCR_EXTENT_NAME_BYTES];
	int fd;

	gcr_extent_name(&snapshot->extents[index], name);
	fd = openat(snapshot->files_fd, name,
		    (writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* SPDX-License-Identifier: MIT */
/*
 * The store as a whole: its creation and end, and the data that earlier daemons have left in it.
 */
#include "fs/store/store_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/log.h"
#include "fs/store/inodes.h"
#include "fs/store/record.h"
#include "lib/beneath.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/pack_file.h"

/* More threads than this do not fault pages in any faster (measured). */
#define POPULATORS_MAX 12

/*
 * The time at the start for removing trees that an earlier daemon had not finished; the rest is
 * removed later.
 */
#define UNFINISHED_USEC GCR_USEC_PER_SEC

static unsigned int count_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	return CPU_COUNT(&set) > 0 ? (unsigned int)CPU_COUNT(&set) : 1;
}

/*
 * Memory that a file counts. The allocated bytes are a limit besides the size, because the owner
 * can set any size and leave holes.
 */
static uint64_t file_cost(const struct stat *stat)
{
	uint64_t taken = gcr_store_cost((uint64_t)stat->st_blocks * 512);
	uint64_t most = gcr_store_cost((uint64_t)stat->st_size);

	return taken < most ? taken : most;
}

/* Memory of a snapshot's files, while its table has not been read. Closes @vram_fd. */
static uint64_t files_cost(int vram_fd)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	uint64_t bytes = 0;
	struct stat stat;

	if (gcr_beneath_list_fd(vram_fd, &dir) < 0)
		return 0;
	while ((entry = readdir(dir)))
		if (entry->d_type == DT_REG &&
		    !fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW))
			bytes += file_cost(&stat);
	return bytes;
}

/*
 * Memory of the snapshot in the directory @name; 0 if there is no snapshot. *ret_uid is the owner.
 */
static uint64_t directory_cost(struct gcr_store *store, const char *name, uid_t *ret_uid)
{
	char path[GCR_STORE_NAME_BYTES + sizeof("/table")];
	_cleanup_close_ int place_fd = -1;
	_cleanup_close_ int fd = -1;
	struct stat stat;
	uint64_t table_bytes;
	uint64_t bytes = 0;
	struct gcr_tree_sum sum;
	int tables_fd;
	int vram_fd;
	uid_t uid;

	snprintf(path, sizeof(path), "%s/table", name);
	if (fstatat(store->fd, path, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	table_bytes = file_cost(&stat);
	place_fd = gcr_beneath_open(store->fd, name, O_RDONLY | O_DIRECTORY);
	fd = place_fd < 0 ? -1 : gcr_store_open_directory(place_fd, "snapshot");
	if (fd < 0)
		return table_bytes;
	if (!fstat(fd, &stat))
		*ret_uid = stat.st_uid;
	vram_fd = gcr_store_open_directory(fd, "vram");
	if (vram_fd >= 0)
		bytes = files_cost(vram_fd);
	if (!gcr_store_sum_tree(fd, &sum) && sum.bytes > bytes)
		bytes = sum.bytes;
	tables_fd = gcr_store_find_tables(store, name, &uid);
	if (tables_fd >= 0) {
		if (!gcr_store_sum_tree(tables_fd, &sum))
			bytes += sum.bytes;
		close(tables_fd);
	}
	return table_bytes + bytes;
}

static int add_leftover(struct gcr_store *store, const char *name, uint64_t cost_bytes, uid_t uid,
			bool claimed)
{
	struct gcr_store_leftover *leftover = calloc(1, sizeof(*leftover));

	if (!leftover)
		return -ENOMEM;
	snprintf(leftover->name, sizeof(leftover->name), "%s", name);
	leftover->cost_bytes = cost_bytes;
	leftover->uid = uid;
	leftover->claimed = claimed;
	leftover->next = store->leftovers;
	store->leftovers = leftover;
	store->snapshots_bytes += leftover->cost_bytes;
	return 0;
}

static int take_leftover(struct gcr_store *store, const char *name)
{
	uid_t uid = 0;
	uint64_t cost_bytes = directory_cost(store, name, &uid);

	return add_leftover(store, name, cost_bytes, uid, false);
}

/*
 * Queues the removal of a tree that has too many names to be removed at the start: the store's
 * thread removes it. -ENOMEM.
 */
static int remove_later(struct gcr_store *store, const char *name)
{
	struct gcr_store_removal *removal = calloc(1, sizeof(*removal));
	_cleanup_close_ int fd = gcr_store_open_directory(store->fd, name);
	struct gcr_tree_sum sum = {0};
	uint32_t number;
	struct stat stat;

	if (!removal)
		return -ENOMEM;
	snprintf(removal->name, sizeof(removal->name), "%s", name);
	removal->is_left = true;
	if (fd >= 0)
		gcr_store_sum_tree(fd, &sum);
	if (fd >= 0 && !fstatat(fd, "snapshot", &stat, AT_SYMLINK_NOFOLLOW))
		removal->uid = stat.st_uid;
	removal->cost_bytes = sum.bytes;
	GCR_LOCK_SCOPE(&store->lock);
	/* The names of this daemon's removals must be others. */
	if (gcr_store_removal_number(name, &number) && number > store->last_number)
		store->last_number = number;
	store->going_bytes += removal->cost_bytes;
	gcr_store_remove_later_locked(store, removal);
	return 0;
}

/*
 * Remove a tree that an earlier daemon had not finished making or removing. If that fails, the tree
 * stays, and counts.
 */
static int remove_unfinished(struct gcr_store *store, const char *name, int64_t until_usec)
{
	int result = gcr_store_remove_some(store->fd, name, until_usec, NULL, NULL);
	_cleanup_close_ int fd = -1;
	struct gcr_tree_sum sum = {0};

	if (!result)
		return 0;
	if (result == -EAGAIN && strlen(name) < GCR_STORE_NAME_BYTES)
		return remove_later(store, name);
	gcr_log(LOG_WARNING, 0, "%s in the store cannot be removed: %s", name, strerror(-result));
	if (strlen(name) >= GCR_STORE_NAME_BYTES)
		return 0;
	fd = gcr_store_open_directory(store->fd, name);
	if (fd >= 0)
		gcr_store_sum_tree(fd, &sum);
	return add_leftover(store, name, sum.bytes, 0, true);
}

/*
 * Count the content of the store. The files of a pool are of no use to another daemon and are
 * removed, as are trees that an earlier daemon had begun to make or to remove.
 */
static int take_stock(struct gcr_store *store)
{
	int64_t until_usec = gcr_clock_usec() + UNFINISHED_USEC;
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = gcr_beneath_list(store->fd, ".", &dir);

	while (!result && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		/* Unfinished dumps are examined first: see gcr_store_end_begun_places(). */
		if (!strncmp(entry->d_name, GCR_STORE_NEW_PLACE, strlen(GCR_STORE_NEW_PLACE)))
			continue;
		if (*entry->d_name == '.')
			result = remove_unfinished(store, entry->d_name, until_usec);
		else if (!strcmp(entry->d_name, GCR_PACKS_NAME))
			continue;
		else if (!strcmp(entry->d_name, GCR_STORE_POOL))
			result = gcr_store_remove_directory(store->fd, entry->d_name);
		else if (!strncmp(entry->d_name, GCR_STORE_PLACE, strlen(GCR_STORE_PLACE)))
			store->places_count++;
		else if (strlen(entry->d_name) < GCR_STORE_NAME_BYTES)
			result = take_leftover(store, entry->d_name);
	}
	return result;
}

static void store_free(struct gcr_store *store)
{
	while (store->leftovers) {
		struct gcr_store_leftover *leftover = store->leftovers;

		store->leftovers = leftover->next;
		free(leftover);
	}
	while (store->packed) {
		struct gcr_store_packed *packed = store->packed;

		store->packed = packed->next;
		free(packed);
	}
	while (store->claims)
		gcr_store_end_claim_locked(store, store->claims->pid, store->claims->start_ticks);
	if (store->fd >= 0)
		close(store->fd);
	if (store->pool_fd >= 0)
		close(store->pool_fd);
	pthread_cond_destroy(&store->changed);
	pthread_mutex_destroy(&store->lock);
	free(store->mountpoint);
	free(store->path);
	free(store);
}

GCR_DEFINE_CLEANUP(struct gcr_store *, store_free);

/* Remove the store, which contains nothing of value. */
static void detach(struct gcr_store *store)
{
	if (store->pool_fd >= 0)
		close(TAKE_FD(store->pool_fd));
	unlinkat(store->fd, GCR_STORE_POOL, AT_REMOVEDIR);
	gcr_store_detach(store);
}

/* Ends a start-up that has failed before the content was read: removes the store if it is empty. */
static void leave(struct gcr_store *store)
{
	struct gcr_tree_sum sum;

	if (!gcr_store_sum_tree(store->fd, &sum) && !sum.entries)
		detach(store);
}

/*
 * Makes the files that exist now count as older than this daemon, also if the clock has been set
 * back since. If some of them cannot be read, all later files count as older, too.
 */
static void begin_after_all(struct gcr_store *store)
{
	const struct timespec never = {.tv_sec = INT64_MAX};
	struct gcr_tree_sum sum;
	int result = gcr_store_sum_tree(store->fd, &sum);

	if (result < 0)
		gcr_log(LOG_WARNING, 0, "the store in %s cannot be looked through: %s", store->path,
			strerror(-result));
	gcr_inodes_begin_after(result < 0 ? &never : &sum.last_made);
}

int gcr_store_create(struct gcr_daemon *daemon, struct gcr_store **ret_store,
		     struct gcr_error *error)
{
	_cleanup_(store_free_cleanup) struct gcr_store *store = calloc(1, sizeof(*store));
	unsigned int processors = count_processors();
	bool is_known = false;
	int result;

	if (!store)
		return gcr_error_set(error, ENOMEM, "out of memory");
	store->fd = -1;
	store->pool_fd = -1;
	store->make_room_locked = gcr_store_make_room_locked;
	store->runtime_fd = daemon->runtime_fd;
	store->quota = daemon->quota;
	store->pool_limit_bytes = daemon->options.pool_bytes;
	store->keep_limit_bytes = daemon->options.keep_bytes;
	store->user_spill_percent = daemon->options.user_spill_percent;
	store->threads_max = processors < POPULATORS_MAX ? processors : POPULATORS_MAX;
	pthread_mutex_init(&store->lock, NULL);
	pthread_cond_init(&store->changed, NULL);
	gcr_inodes_begin();
	result = gcr_store_attach(daemon, store, error);
	if (result < 0)
		return result;
	begin_after_all(store);
	gcr_store_set_reserve(store);
	result = gcr_store_start_spill(store, &daemon->options, error);
	if (result < 0) {
		leave(store);
		return result;
	}
	result = take_stock(store);
	is_known = !result;
	if (!result)
		result = gcr_store_start_packs(store);
	if (!result && mkdirat(store->fd, GCR_STORE_POOL, 0700) < 0)
		result = -errno;
	if (!result)
		store->pool_fd = openat(store->fd, GCR_STORE_POOL,
					O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (!result && store->pool_fd < 0)
		result = -errno;
	if (!result)
		result = gcr_store_start_remover(store);
	if (!result && store->pool_limit_bytes)
		result = gcr_store_start_filler(store);
	if (result < 0) {
		gcr_store_stop_remover(store);
		gcr_store_stop_packs(store);
		gcr_store_stop_spill(store);
		gcr_error_set(error, -result, "the store in %s: %s", store->path,
			      strerror(-result));
		if (is_known && !store->leftovers && !store->places_count)
			detach(store);
		return result;
	}
	*ret_store = TAKE_PTR(store);
	return 0;
}

void gcr_store_destroy(struct gcr_store *store)
{
	bool empty;

	if (!store)
		return;
	/* While the remover thread is still running. */
	gcr_store_drop_all_kept(store);
	gcr_store_stop_filler(store);
	pthread_mutex_lock(&store->lock);
	for (struct gcr_snapshot *snapshot = store->snapshots; snapshot; snapshot = snapshot->next)
		gcr_store_stop_populating_locked(snapshot);
	while (store->populators)
		pthread_cond_wait(&store->changed, &store->lock);
	empty = !store->snapshots && !store->leftovers && !store->places_count;
	pthread_mutex_unlock(&store->lock);
	gcr_store_stop_remover(store);
	gcr_store_stop_packs(store);
	gcr_store_stop_spill(store);
	if (empty)
		detach(store);
	store_free(store);
}

/* Claims the leftovers whose names begin with @prefix: they are not swept. Lock: store. */
static void keep_locked(struct gcr_store *store, const char *prefix)
{
	for (struct gcr_store_leftover *leftover = store->leftovers; leftover;
	     leftover = leftover->next)
		if (!strncmp(leftover->name, prefix, strlen(prefix)))
			leftover->claimed = true;
}

static int keep_recorded(const struct gcr_record *record, void *data)
{
	char name[GCR_SNAPSHOT_NAME_BYTES];

	gcr_snapshot_name(record->pid, record->start_ticks, record->generation, name);
	keep_locked(data, name);
	return 0;
}

/* Keeps all snapshots of a process whose record is unreadable. */
static void keep_unreadable(const char *record_name, int error, void *data)
{
	char prefix[GCR_SNAPSHOT_NAME_BYTES];

	if (snprintf(prefix, sizeof(prefix), "%s-", record_name) < (int)sizeof(prefix))
		keep_locked(data, prefix);
}

/*
 * Queues the removal of a leftover. Returns false if there is no memory: the leftover stays in the
 * list. Lock: store.
 */
static bool remove_leftover_locked(struct gcr_store *store, struct gcr_store_leftover **link)
{
	struct gcr_store_removal *removal = calloc(1, sizeof(*removal));
	struct gcr_store_leftover *leftover = *link;

	if (!removal)
		return false;
	*link = leftover->next;
	/*
	 * Renamed first, because the references to chunks are dropped before the tree is removed: a
	 * daemon that starts in between claims none for a tree of this name.
	 */
	gcr_store_name_removal_locked(store, removal);
	if (renameat(store->fd, leftover->name, store->fd, removal->name) < 0)
		memcpy(removal->name, leftover->name, sizeof(removal->name));
	removal->cost_bytes = leftover->cost_bytes;
	removal->uid = leftover->uid;
	store->snapshots_bytes -= leftover->cost_bytes;
	store->going_bytes += leftover->cost_bytes;
	gcr_store_remove_later_locked(store, removal);
	free(leftover);
	return true;
}

void gcr_store_sweep(struct gcr_store *store)
{
	struct gcr_store_leftover **link;
	int result;

	pthread_mutex_lock(&store->lock);
	result = gcr_record_each(store->runtime_fd, keep_recorded, keep_unreadable, store);
	for (link = &store->leftovers; *link && result >= 0;) {
		if (!(*link)->claimed)
			gcr_log(LOG_NOTICE, 0, "%s in the store belongs to nobody and is removed",
				(*link)->name);
		if ((*link)->claimed || !remove_leftover_locked(store, link))
			link = &(*link)->next;
	}
	pthread_mutex_unlock(&store->lock);
}

void gcr_store_drop_left(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	char prefix[GCR_SNAPSHOT_NAME_BYTES];
	struct gcr_store_leftover **link;

	gcr_snapshot_name(pid, start_ticks, "", prefix);
	pthread_mutex_lock(&store->lock);
	for (link = &store->leftovers; *link;)
		if (strncmp((*link)->name, prefix, strlen(prefix)) != 0 ||
		    !remove_leftover_locked(store, link))
			link = &(*link)->next;
	pthread_mutex_unlock(&store->lock);
}

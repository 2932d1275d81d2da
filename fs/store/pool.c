/* SPDX-License-Identifier: MIT */
/*
 * The pool (-o pool=): files with allocated pages, ready for the next freeze of the process that
 * they are made for, and of no other. A thread of low priority makes and fills them. When the store
 * or the host is short of memory, they are given up after the kept snapshots.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/extent.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

void gcr_store_pool_file_name(const struct gcr_pool_file *file, char ret_name[GCR_POOL_NAME_BYTES])
{
	snprintf(ret_name, GCR_POOL_NAME_BYTES, "%" PRIu64, file->number);
}

void gcr_store_unlink_pool_file(struct gcr_store *store, const struct gcr_pool_file *file)
{
	char name[GCR_POOL_NAME_BYTES];

	gcr_store_pool_file_name(file, name);
	unlinkat(store->pool_fd, name, 0);
}

void gcr_store_remove_pool_files(struct gcr_store *store, struct gcr_pool_file *files)
{
	if (!files)
		return;
	while (files) {
		struct gcr_pool_file *file = files;

		files = file->next;
		gcr_store_unlink_pool_file(store, file);
		pthread_mutex_lock(&store->lock);
		/*
		 * The pool's thread may still add pages to the file until it notices the removal;
		 * that thread never waits here.
		 */
		while (file->number == store->filling_number)
			pthread_cond_wait(&store->changed, &store->lock);
		store->pool_bytes -= file->cost_bytes;
		gcr_store_note_unlinked_locked(store);
		store->pools_changed = true;
		pthread_cond_broadcast(&store->changed);
		pthread_mutex_unlock(&store->lock);
		free(file);
	}
	pthread_mutex_lock(&store->lock);
	store->pool_removers--;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

/* The link to the pool of this process, or to the end of the list. Lock: store. */
static struct gcr_pool **find_pool_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_pool **link = &store->pools;

	while (*link && ((*link)->pid != pid || (*link)->start_ticks != start_ticks))
		link = &(*link)->next;
	return link;
}

static int compare_sizes(const void *left, const void *right)
{
	const struct gcr_pool_file *a = *(struct gcr_pool_file *const *)left;
	const struct gcr_pool_file *b = *(struct gcr_pool_file *const *)right;

	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	return b->has_pages - a->has_pages;
}

struct gcr_pool_file **gcr_store_sort_pool(const struct gcr_pool *pool, size_t *ret_count)
{
	struct gcr_pool_file **sorted;
	size_t count = 0;

	for (struct gcr_pool_file *file = pool ? pool->files : NULL; file; file = file->next)
		count++;
	sorted = count ? calloc(count, sizeof(struct gcr_pool_file *)) : NULL;
	if (!sorted)
		return NULL;
	count = 0;
	for (struct gcr_pool_file *file = pool->files; file; file = file->next)
		sorted[count++] = file;
	qsort(sorted, count, sizeof(*sorted), compare_sizes);
	*ret_count = count;
	return sorted;
}

static int compare_extents(const void *left, const void *right, void *data)
{
	const struct gcr_extent *extents = data;
	uint64_t a = extents[*(const uint32_t *)left].bytes;
	uint64_t b = extents[*(const uint32_t *)right].bytes;

	if (a != b)
		return a < b ? 1 : -1;
	return *(const uint32_t *)left < *(const uint32_t *)right ? -1 : 1;
}

/* The indexes of extents, the largest extent first; the caller frees them. NULL: no memory. */
static uint32_t *sort_extents(struct gcr_extent *extents, size_t count)
{
	uint32_t *sorted = calloc(count ? count : 1, sizeof(*sorted));

	for (uint32_t i = 0; sorted && i < count; i++)
		sorted[i] = i;
	if (sorted)
		qsort_r(sorted, count, sizeof(*sorted), compare_extents, extents);
	return sorted;
}

void gcr_store_take_from_pool_locked(struct gcr_snapshot *snapshot, struct gcr_pool_file **files)
{
	struct gcr_store *store = snapshot->store;
	struct gcr_pool *pool = *find_pool_locked(store, snapshot->pid, snapshot->start_ticks);
	_cleanup_free_ uint32_t *wanted = NULL;
	_cleanup_free_ struct gcr_pool_file **sorted = NULL;
	struct gcr_pool_file *rest = NULL;
	size_t count = 0;
	size_t at = 0;

	sorted = gcr_store_sort_pool(pool, &count);
	if (!sorted)
		return;
	wanted = sort_extents(snapshot->extents, snapshot->count);
	if (!wanted)
		return;
	/* First the files of the same size. */
	for (size_t i = 0; i < snapshot->count; i++) {
		uint64_t bytes = snapshot->extents[wanted[i]].bytes;

		if (files[wanted[i]])
			continue;
		while (at < count && (sorted[at]->bytes > bytes ||
				      (sorted[at]->bytes == bytes && !sorted[at]->made)))
			at++;
		if (at < count && sorted[at]->bytes == bytes) {
			files[wanted[i]] = sorted[at];
			sorted[at++] = NULL;
		}
	}
	/*
	 * Then the largest remaining files for the largest remaining extents, to be cut. Files are
	 * never extended: a process that has registered the longer file with the driver would keep
	 * using pages that were cut off.
	 */
	at = 0;
	for (size_t i = 0; i < snapshot->count; i++) {
		if (files[wanted[i]])
			continue;
		while (at < count && (!sorted[at] || !sorted[at]->made))
			at++;
		if (at < count && sorted[at]->bytes > snapshot->extents[wanted[i]].bytes) {
			files[wanted[i]] = sorted[at];
			sorted[at++] = NULL;
		}
	}
	for (size_t i = 0; i < count; i++) {
		if (sorted[i]) {
			sorted[i]->next = rest;
			rest = sorted[i];
		}
	}
	pool->files = rest;
	/* No new files before the process runs again. */
	free(TAKE_PTR(pool->wanted));
	for (size_t i = 0; i < snapshot->count; i++)
		if (files[i] && files[i] == store->filling)
			store->filling = NULL;
}

void gcr_store_give_up_locked(struct gcr_store *store, struct gcr_pool_file *file)
{
	if (file == store->filling)
		store->filling = NULL;
	file->next = store->given_up;
	store->given_up = file;
	pthread_cond_broadcast(&store->changed);
}

void gcr_store_return_to_pool_locked(struct gcr_snapshot *snapshot, struct gcr_pool_file **files)
{
	struct gcr_store *store = snapshot->store;
	struct gcr_pool *pool = *find_pool_locked(store, snapshot->pid, snapshot->start_ticks);

	for (size_t i = 0; i < snapshot->count; i++) {
		struct gcr_pool_file *file = files[i];

		files[i] = NULL;
		if (file && pool) {
			file->next = pool->files;
			pool->files = file;
		} else if (file) { /* the process has ended since */
			gcr_store_give_up_locked(store, file);
		}
	}
	pthread_cond_broadcast(&store->changed);
}

struct gcr_pool_file *gcr_store_shrink_pool_locked(struct gcr_store *store, uint64_t bytes)
{
	struct gcr_pool_file *given_up = store->given_up;
	uint64_t sum = 0;

	store->given_up = NULL;
	for (struct gcr_pool_file *file = given_up; file; file = file->next)
		sum += file->cost_bytes;

	for (struct gcr_pool *pool = store->pools; pool && sum < bytes; pool = pool->next) {
		while (pool->files && sum < bytes) {
			struct gcr_pool_file *file = pool->files;

			pool->files = file->next;
			if (file == store->filling)
				store->filling = NULL;
			sum += file->cost_bytes;
			file->next = given_up;
			given_up = file;
		}
	}
	store->pool_removers += given_up != NULL;
	return given_up;
}

/* The process's pool, made if there was none. NULL: no memory. Lock: store. */
static struct gcr_pool *get_pool_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_pool **link = find_pool_locked(store, pid, start_ticks);

	if (*link)
		return *link;
	*link = calloc(1, sizeof(**link));
	if (*link) {
		(*link)->pid = pid;
		(*link)->start_ticks = start_ticks;
	}
	return *link;
}

void gcr_store_pool(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		    const struct gcr_extent *extents, size_t count)
{
	struct gcr_pool *pool;
	uint64_t *wanted;

	if (!store->pool_limit_bytes)
		return;
	wanted = calloc(count ? count : 1, sizeof(*wanted));
	if (!wanted)
		return;
	for (size_t i = 0; i < count; i++)
		wanted[i] = extents[i].bytes;
	pthread_mutex_lock(&store->lock);
	pool = store->stopping ? NULL : get_pool_locked(store, pid, start_ticks);
	if (pool) {
		free(pool->wanted);
		pool->wanted = TAKE_PTR(wanted);
		pool->wanted_count = count;
		store->pools_changed = true;
		pthread_cond_broadcast(&store->changed);
	}
	pthread_mutex_unlock(&store->lock);
	free(wanted);
}

void gcr_store_drop_pool_locked(struct gcr_store *store, struct gcr_pool **link)
{
	struct gcr_pool *pool = *link;

	*link = pool->next;
	while (pool->files) {
		struct gcr_pool_file *file = pool->files;

		pool->files = file->next;
		gcr_store_give_up_locked(store, file);
	}
	free(pool->wanted);
	free(pool);
}

void gcr_store_pool_drop(struct gcr_store *store, pid_t pid, uint64_t start_ticks)
{
	struct gcr_pool **link;

	pthread_mutex_lock(&store->lock);
	link = find_pool_locked(store, pid, start_ticks);
	if (*link)
		gcr_store_drop_pool_locked(store, link);
	pthread_mutex_unlock(&store->lock);
}

/* ---- files of discarded snapshots ---- */

static bool is_alive(pid_t pid, uint64_t start_ticks)
{
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(pid, &stat);

	if (!r && stat.start_ticks != start_ticks)
		return false;
	if (!r)
		r = gcr_proc_is_ending(pid);
	return r < 0 ? gcr_proc_is_silent(r) : !r;
}

/*
 * Make the file @index of a snapshot a file of the pool, if the pool has room. NULL: not reused.
 * Lock: store.
 */
static struct gcr_pool_file *return_file_locked(struct gcr_snapshot *snapshot, size_t index)
{
	uint64_t cost = gcr_store_cost(snapshot->extents[index].bytes);
	uint64_t before = snapshot->files[index].cost_bytes;
	struct gcr_store *store = snapshot->store;
	struct gcr_pool_file *file;

	/*
	 * A file that a user reads must not change, and a file that another process may write to
	 * must not be used again: the program itself has the files of managed memory mapped. A file
	 * with holes is not reused either, because other processes may have the pages registered
	 * that were there.
	 */
	if (snapshot->is_tainted || snapshot->files[index].unlinked || before < cost ||
	    snapshot->extents[index].kind != GCR_MEMORY_DEVICE ||
	    store->pool_bytes + cost > store->pool_limit_bytes ||
	    gcr_store_used_locked(store) - before + cost > gcr_store_limit_locked(store))
		return NULL;
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	file->bytes = snapshot->extents[index].bytes;
	file->cost_bytes = cost;
	file->number = ++store->last_pool_number;
	snapshot->files[index].unlinked = true;
	store->going_bytes -= before;
	store->pool_bytes += cost;
	return file;
}

/* If the file cannot be moved, `made` stays false. */
int gcr_store_move_to_pool(struct gcr_snapshot *snapshot, size_t index, struct gcr_pool_file *file)
{
	char name[GCR_EXTENT_NAME_BYTES];
	char pool_name[GCR_POOL_NAME_BYTES];
	struct stat stat;

	gcr_extent_name(&snapshot->extents[index], name);
	gcr_store_pool_file_name(file, pool_name);
	if (fstatat(snapshot->files_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
	    renameat(snapshot->files_fd, name, snapshot->store->pool_fd, pool_name) < 0)
		return -errno;
	file->made = true;
	file->has_pages = (uint64_t)stat.st_blocks * 512 >= file->bytes;
	return 0;
}

int gcr_store_stat_pool_file(struct gcr_store *store, const struct gcr_pool_file *file,
			     struct stat *ret_stat)
{
	char name[GCR_POOL_NAME_BYTES];

	gcr_store_pool_file_name(file, name);
	return fstatat(store->pool_fd, name, ret_stat, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static bool has_ended(int pidfd)
{
	struct pollfd wait = {.fd = pidfd, .events = POLLIN};

	return poll(&wait, 1, 0) == 1;
}

void gcr_store_return_to_pool(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	_cleanup_close_ int pidfd = -1;
	_cleanup_free_ struct gcr_pool_file **files = NULL;
	_cleanup_free_ bool *is_read = NULL;

	/* A process that cannot be examined gets no pool. */
	if (!store->pool_limit_bytes || !is_alive(snapshot->pid, snapshot->start_ticks) ||
	    gcr_proc_open(snapshot->pid, snapshot->start_ticks, &pidfd) < 0)
		return;
	files = calloc(snapshot->count ? snapshot->count : 1, sizeof(*files));
	is_read = calloc(snapshot->count ? snapshot->count : 1, sizeof(*is_read));
	if (!files || !is_read)
		return;
	/* The snapshot is retired: no new descriptor of its files can be opened. */
	for (size_t i = 0; i < snapshot->count; i++)
		is_read[i] = gcr_snapshot_is_file_read(snapshot, i);
	pthread_mutex_lock(&store->lock);
	/*
	 * If the process ends after this check, its pool is dropped later. /proc is not read here:
	 * such a read may block, and other threads wait for the lock.
	 */
	if (!store->stopping && !has_ended(pidfd) &&
	    get_pool_locked(store, snapshot->pid, snapshot->start_ticks))
		for (size_t i = 0; i < snapshot->count; i++)
			files[i] = is_read[i] ? NULL : return_file_locked(snapshot, i);
	pthread_mutex_unlock(&store->lock);
	for (size_t i = 0; i < snapshot->count; i++)
		if (files[i])
			gcr_store_move_to_pool(snapshot, i, files[i]);
	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; i < snapshot->count; i++)
		if (files[i] && files[i]->made && !files[i]->has_pages)
			gcr_store_give_up_locked(store, TAKE_PTR(files[i]));
	gcr_store_return_to_pool_locked(snapshot, files);
	pthread_mutex_unlock(&store->lock);
}

void gcr_store_pool_figures(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			    struct gcr_pool_figures *ret_figures)
{
	const struct gcr_pool *pool;

	*ret_figures = (struct gcr_pool_figures){0};
	pthread_mutex_lock(&store->lock);
	pool = *find_pool_locked(store, pid, start_ticks);
	for (const struct gcr_pool_file *file = pool ? pool->files : NULL; file;
	     file = file->next) {
		ret_figures->bytes += file->bytes;
		ret_figures->ready_bytes += file->has_pages ? file->bytes : 0;
	}
	pthread_mutex_unlock(&store->lock);
}

int gcr_store_pool_files(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			 uint64_t **ret_numbers, size_t *ret_count)
{
	_cleanup_free_ uint64_t *numbers = NULL;
	struct gcr_pool *pool;
	size_t count = 0;
	bool ready = true;

	pthread_mutex_lock(&store->lock);
	pool = *find_pool_locked(store, pid, start_ticks);
	for (struct gcr_pool_file *file = pool ? pool->files : NULL; file; file = file->next) {
		ready = ready && file->has_pages;
		count++;
	}
	ready = ready && count;
	numbers = ready ? calloc(count, sizeof(*numbers)) : NULL;
	count = 0;
	for (struct gcr_pool_file *file = numbers ? pool->files : NULL; file; file = file->next)
		numbers[count++] = file->number;
	pthread_mutex_unlock(&store->lock);
	if (!ready)
		return -EAGAIN;
	if (!numbers)
		return -ENOMEM;
	*ret_numbers = TAKE_PTR(numbers);
	*ret_count = count;
	return 0;
}

int gcr_store_open_pool_file(struct gcr_store *store, uint64_t number)
{
	const struct gcr_pool_file file = {.number = number};
	char name[GCR_POOL_NAME_BYTES];
	int fd;

	gcr_store_pool_file_name(&file, name);
	fd = openat(store->pool_fd, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

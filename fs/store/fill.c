/* SPDX-License-Identifier: MIT */
/*
 * The thread of the pool: decides which files each pool has, makes them, faults in their pages and
 * removes files that were given up; all of this with low priority.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "lib/clock.h"
#include "lib/proc_cgroup.h"

#define LOWEST_PRIORITY 19
/* Pause before the next attempt when a page could not be allocated. */
#define RETRY_USEC	(2 * GCR_USEC_PER_SEC)

static int compare_bytes(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left;
	uint64_t b = *(const uint64_t *)right;

	return (a < b) - (a > b);
}

/*
 * The wanted sizes that fit into the limits, chosen in order of importance, sorted with the largest
 * first; the caller frees the array. Lock: store.
 */
static uint64_t *allowed_locked(struct gcr_store *store, const struct gcr_pool *pool,
				size_t *ret_count)
{
	uint64_t *allowed = calloc(pool->wanted_count ? pool->wanted_count : 1, sizeof(*allowed));
	uint64_t own = 0;
	uint64_t others;
	uint64_t limit;
	uint64_t room;
	size_t count = 0;

	if (!allowed)
		return NULL;
	for (const struct gcr_pool_file *file = pool->files; file; file = file->next)
		own += file->cost_bytes;
	others = store->pool_bytes - own;
	room = others < store->pool_limit_bytes ? store->pool_limit_bytes - others : 0;
	others = gcr_store_used_locked(store) - own;
	limit = gcr_store_limit_locked(store);
	if (others >= limit)
		room = 0;
	else if (room > limit - others)
		room = limit - others;
	for (size_t i = 0; i < pool->wanted_count; i++) {
		uint64_t cost = gcr_store_cost(pool->wanted[i]);

		if (cost > room)
			continue;
		room -= cost;
		allowed[count++] = pool->wanted[i];
	}
	qsort(allowed, count, sizeof(*allowed), compare_bytes);
	*ret_count = count;
	return allowed;
}

/* Adds a file; NULL if other files have to be removed first. Lock: store. */
static struct gcr_pool_file *add_file_locked(struct gcr_store *store, uint64_t bytes)
{
	uint64_t cost = gcr_store_cost(bytes);
	struct gcr_pool_file *file;

	if (store->retry_usec || store->reserving ||
	    store->pool_bytes + cost > store->pool_limit_bytes ||
	    gcr_store_used_locked(store) + cost > gcr_store_limit_locked(store))
		return NULL;
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	file->bytes = bytes;
	file->cost_bytes = cost;
	file->number = ++store->last_pool_number;
	store->pool_bytes += cost;
	return file;
}

/* Make @pool hold the wanted files. Lock: store. */
static void adjust_locked(struct gcr_store *store, struct gcr_pool *pool)
{
	_cleanup_free_ struct gcr_pool_file **sorted = NULL;
	_cleanup_free_ uint64_t *allowed = NULL;
	struct gcr_pool_file *files = NULL;
	size_t count = 0;
	size_t have = 0;
	size_t at = 0;

	if (!pool->wanted)
		return;
	sorted = gcr_store_sort_pool(pool, &have);
	allowed = allowed_locked(store, pool, &count);
	if ((pool->files && !sorted) || !allowed)
		return;
	for (size_t i = 0; i < count; i++) {
		struct gcr_pool_file *file;

		while (at < have && sorted[at]->bytes > allowed[i])
			gcr_store_give_up_locked(store, sorted[at++]);
		if (at < have && sorted[at]->bytes == allowed[i])
			file = sorted[at++];
		else
			file = add_file_locked(store, allowed[i]);
		if (!file)
			continue;
		file->next = files;
		files = file;
	}
	while (at < have)
		gcr_store_give_up_locked(store, sorted[at++]);
	pool->files = files;
}

/* The first pool file that lacks pages; NULL: there is none. Lock: store. */
static struct gcr_pool_file *next_to_fill_locked(struct gcr_store *store)
{
	for (struct gcr_pool *pool = store->pools; pool; pool = pool->next)
		for (struct gcr_pool_file *file = pool->files; file; file = file->next)
			if (!file->has_pages)
				return file;
	return NULL;
}

static int open_pool_file(struct gcr_store *store, const struct gcr_pool_file *copy)
{
	char name[GCR_POOL_NAME_BYTES];
	_cleanup_close_ int fd = -1;

	gcr_store_pool_file_name(copy, name);
	fd = openat(store->pool_fd, name,
		    O_RDWR | O_NOFOLLOW | O_CLOEXEC | (copy->made ? 0 : O_CREAT | O_EXCL), 0600);
	if (fd < 0 || (!copy->made && ftruncate(fd, (off_t)copy->bytes) < 0))
		return -errno;
	return TAKE_FD(fd);
}

/*
 * Has the host @bytes of memory for the pool, and a margin? The pool does not use memory that other
 * processes will soon want. True if that cannot be found out.
 */
static bool host_has(uint64_t bytes)
{
	_cleanup_free_ char *what = NULL;
	uint64_t room;

	return gcr_proc_memory_room(getpid(), &room, &what) < 0 ||
	       room > bytes + 2 * GCR_STORE_MEMORY_MARGIN_BYTES;
}

/*
 * Fault in the pages until the file is taken away. -ECANCELED: the daemon stops; -errno. Lock:
 * store; released during the work.
 */
static int fill_locked(struct gcr_store *store, const struct gcr_pool_file *file, int fd)
{
	uint64_t bytes = file->bytes;
	int result = 0;

	for (uint64_t at = 0; at < bytes && !result && store->filling == file && !store->stopping;
	     at += GCR_STORE_PIECE_BYTES) {
		uint64_t rest = bytes - at;

		pthread_mutex_unlock(&store->lock);
		result = gcr_store_populate_piece(
			fd, at, rest < GCR_STORE_PIECE_BYTES ? rest : GCR_STORE_PIECE_BYTES);
		pthread_mutex_lock(&store->lock);
	}
	return store->stopping ? -ECANCELED : result;
}

/*
 * The file could not be filled: give the file up and make no other for a while, until there may be
 * memory. Lock: store.
 */
static void give_up_filling_locked(struct gcr_store *store, struct gcr_pool_file *file)
{
	for (struct gcr_pool *pool = store->pools; pool; pool = pool->next) {
		struct gcr_pool_file **link = &pool->files;

		while (*link && *link != file)
			link = &(*link)->next;
		if (*link) {
			*link = file->next;
			gcr_store_give_up_locked(store, file);
			store->retry_usec = gcr_clock_usec() + RETRY_USEC;
			return;
		}
	}
}

/* Make the file, if it is new, and fault in its pages. Lock: store; released during the work. */
static void work_on_locked(struct gcr_store *store, struct gcr_pool_file *file)
{
	struct gcr_pool_file copy = *file;
	int result = 0;
	int fd = -ENOMEM;

	store->filling = file;
	store->filling_number = file->number;
	pthread_mutex_unlock(&store->lock);
	if (host_has(copy.bytes))
		fd = open_pool_file(store, &copy);
	pthread_mutex_lock(&store->lock);
	if (store->filling == file) {
		file->made |= fd >= 0;
		result = fd < 0 ? -ENOMEM : fill_locked(store, file, fd);
	} else if (!copy.made) {
		/*
		 * The file was given up before it was made. A file that existed is not unlinked: a
		 * snapshot may have it by now.
		 */
		gcr_store_unlink_pool_file(store, &copy);
	}
	if (store->filling == file) {
		store->filling = NULL;
		file->has_pages = !result;
		if (result < 0)
			give_up_filling_locked(store, file);
	}
	/* Closing the file frees the pages that were added after its removal. */
	pthread_mutex_unlock(&store->lock);
	if (fd >= 0)
		close(fd);
	pthread_mutex_lock(&store->lock);
	store->filling_number = 0;
	pthread_cond_broadcast(&store->changed);
}

/* Wait for new work, or for the end of the pause after a failure. Lock: store. */
static void wait_locked(struct gcr_store *store)
{
	if (!store->retry_usec) {
		pthread_cond_wait(&store->changed, &store->lock);
		return;
	}
	if (gcr_clock_usec() < store->retry_usec) {
		gcr_store_wait_until_locked(store, store->retry_usec);
		return;
	}
	store->retry_usec = 0;
	store->pools_changed = true;
}

static void *fill_pools(void *data)
{
	struct gcr_store *store = data;

	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LOWEST_PRIORITY);
	pthread_mutex_lock(&store->lock);
	while (!store->stopping) {
		struct gcr_pool_file *given_up = gcr_store_shrink_pool_locked(store, 0);
		struct gcr_pool_file *file;

		if (given_up) {
			pthread_mutex_unlock(&store->lock);
			gcr_store_remove_pool_files(store, given_up);
			pthread_mutex_lock(&store->lock);
			continue;
		}
		if (store->pools_changed) {
			store->pools_changed = false;
			for (struct gcr_pool *pool = store->pools; pool; pool = pool->next)
				adjust_locked(store, pool);
			continue;
		}
		file = next_to_fill_locked(store);
		if (file)
			work_on_locked(store, file);
		else
			wait_locked(store);
	}
	pthread_mutex_unlock(&store->lock);
	return NULL;
}

int gcr_store_start_filler(struct gcr_store *store)
{
	int result = pthread_create(&store->filler, NULL, fill_pools, store);

	store->filler_started = !result;
	return -result;
}

void gcr_store_stop_filler(struct gcr_store *store)
{
	struct gcr_pool_file *files;

	if (!store->filler_started)
		return;
	pthread_mutex_lock(&store->lock);
	store->stopping = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	pthread_join(store->filler, NULL);
	store->filler_started = false;
	pthread_mutex_lock(&store->lock);
	while (store->pools)
		gcr_store_drop_pool_locked(store, &store->pools);
	files = gcr_store_shrink_pool_locked(store, 0);
	pthread_mutex_unlock(&store->lock);
	gcr_store_remove_pool_files(store, files);
}

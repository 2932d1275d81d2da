/* SPDX-License-Identifier: MIT */
/*
 * Places in the store: a directory `incoming-NAME` with a directory `snapshot` in it, both owned by
 * the place's user. No room is promised to a place in advance; each write takes its room.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/log.h"
#include "fs/store/subtree.h"
#include "fs/store/inodes.h"
#include "lib/beneath.h"
#include "lib/lock.h"

#define TEMPORARY_BYTES (GCR_STORE_NAME_BYTES + sizeof(".new-"))

static void make_path(const char *name, char path[GCR_STORE_NAME_BYTES])
{
	snprintf(path, GCR_STORE_NAME_BYTES, GCR_STORE_PLACE "%s", name);
}

static int give(int fd, const char *name, uid_t uid, gid_t gid)
{
	if (geteuid())
		return 0;
	return fchownat(fd, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static void make_temporary(const char *name, char temporary[TEMPORARY_BYTES])
{
	snprintf(temporary, TEMPORARY_BYTES, GCR_STORE_NEW_PLACE "%s", name);
}

int gcr_store_begin_place(struct gcr_store *store, const char *name, uint32_t *ret_number)
{
	char temporary[TEMPORARY_BYTES];
	_cleanup_close_ int fd = -1;

	make_temporary(name, temporary);
	if (mkdirat(store->fd, temporary, 0700) < 0)
		return -errno;
	fd = gcr_beneath_open(store->fd, temporary, O_RDONLY | O_DIRECTORY);
	if (fd < 0 || mkdirat(fd, "snapshot", 0700) < 0) {
		int result = fd < 0 ? fd : -errno;

		gcr_store_remove_directory(store->fd, temporary);
		return result;
	}
	GCR_LOCK_SCOPE(&store->lock);
	*ret_number = gcr_store_next_number_locked(store);
	return TAKE_FD(fd);
}

int gcr_store_publish_place(struct gcr_store *store, const char *name, uid_t uid, gid_t gid)
{
	char path[GCR_STORE_NAME_BYTES];
	char temporary[TEMPORARY_BYTES];
	int result;

	make_path(name, path);
	make_temporary(name, temporary);
	result = give(store->fd, temporary, uid, gid);
	if (!result && renameat2(store->fd, temporary, store->fd, path, RENAME_NOREPLACE) < 0)
		result = -errno;
	if (result < 0)
		return result;
	pthread_mutex_lock(&store->lock);
	store->places_count++;
	pthread_mutex_unlock(&store->lock);
	return 0;
}

void gcr_store_count_place(struct gcr_store *store, uint32_t number)
{
	gcr_inodes_count_names(store, number);
}

void gcr_store_abort_place(struct gcr_store *store, const char *name, uint32_t number)
{
	char temporary[TEMPORARY_BYTES];

	make_temporary(name, temporary);
	gcr_store_remove_tree_or_later(store, temporary, number);
}

int gcr_store_make_place(struct gcr_store *store, const char *name, uid_t uid, gid_t gid)
{
	uint32_t number;
	_cleanup_close_ int fd = gcr_store_begin_place(store, name, &number);
	int result = fd < 0 ? fd : give(fd, "snapshot", uid, gid);

	if (!result)
		result = gcr_store_publish_place(store, name, uid, gid);
	if (result < 0 && fd >= 0)
		gcr_store_abort_place(store, name, number);
	return result;
}

int gcr_store_each_place(struct gcr_store *store, int (*visit)(const char *name, void *data),
			 void *data)
{
	const size_t length = strlen(GCR_STORE_PLACE);
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = gcr_beneath_list(store->fd, ".", &dir);

	while (!result && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, GCR_STORE_PLACE, length))
			result = visit(entry->d_name + length, data);
	return result;
}

int gcr_store_end_begun_places(struct gcr_store *store,
			       void (*visit)(const char *name, int fd, void *data), void *data)
{
	const size_t length = strlen(GCR_STORE_NEW_PLACE);
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = gcr_beneath_list(store->fd, ".", &dir);

	if (result < 0)
		return result;
	while ((entry = readdir(dir))) {
		_cleanup_close_ int place_fd = -1;

		if (strncmp(entry->d_name, GCR_STORE_NEW_PLACE, length) != 0)
			continue;
		place_fd = gcr_beneath_open(store->fd, entry->d_name, O_RDONLY | O_DIRECTORY);
		if (place_fd >= 0)
			visit(entry->d_name + length, place_fd, data);
		result = gcr_store_remove_directory(store->fd, entry->d_name);
		if (result < 0)
			gcr_log(LOG_WARNING, 0, "%s in the store cannot be removed: %s",
				entry->d_name, strerror(-result));
	}
	return 0;
}

/* The data for the account of a tree that exists already. */
struct opening {
	struct gcr_store *store;
	struct gcr_tree_sum sum;
};

/* touch() of struct gcr_subtree_config. */
static int touch(void *data, struct gcr_room **ret_room)
{
	const struct opening *opening = data;

	return gcr_room_create(opening->store, 0, &opening->sum, 0, ret_room);
}

int gcr_store_sum_place(int fd, struct gcr_tree_sum *ret_sum)
{
	_cleanup_close_ int root_fd = gcr_beneath_open(fd, "snapshot", O_RDONLY | O_DIRECTORY);

	return root_fd < 0 ? root_fd : gcr_store_sum_tree(root_fd, ret_sum);
}

int gcr_store_open_place(struct gcr_store *store, const char *name, const struct gcr_tree_sum *sum,
			 struct stat *ret_stat, int *ret_fd, struct gcr_subtree **ret_subtree)
{
	struct opening opening = {.store = store};
	char path[GCR_STORE_NAME_BYTES];
	_cleanup_close_ int root_fd = -1;
	_cleanup_close_ int fd = -1;
	struct gcr_subtree *subtree;
	struct stat stat;
	int result = 0;

	make_path(name, path);
	fd = gcr_beneath_open(store->fd, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return fd;
	root_fd = gcr_store_open_directory(fd, "snapshot");
	if (root_fd < 0)
		return root_fd;
	if (fstat(fd, &stat) < 0)
		return -errno;
	if (sum)
		opening.sum = *sum;
	else
		result = gcr_store_sum_tree(root_fd, &opening.sum);
	if (!result)
		result = gcr_subtree_create(
			&(struct gcr_subtree_config){
				.root_fd = root_fd,
				.store = store,
				.owner = stat.st_uid,
				.touch = touch,
				.data = &opening,
			},
			&subtree);
	if (result < 0)
		return result;
	/*
	 * Before the subtree is visible to other threads: touch() is called now, and `opening` is
	 * not used later.
	 */
	result = gcr_subtree_touch(subtree);
	if (result < 0) {
		gcr_subtree_unref(subtree);
		return result;
	}
	*ret_stat = stat;
	*ret_fd = TAKE_FD(fd);
	*ret_subtree = subtree;
	return 0;
}

void gcr_store_close_place(struct gcr_subtree *subtree)
{
	gcr_subtree_retire(subtree);
	gcr_room_destroy(gcr_subtree_take_room(subtree));
}

int gcr_store_drop_place(struct gcr_store *store, const char *name, uint32_t number,
			 struct gcr_subtree *subtree)
{
	struct gcr_store_removal *removal = calloc(1, sizeof(*removal));
	char path[GCR_STORE_NAME_BYTES];
	struct gcr_room *room = NULL;

	if (!removal)
		return -ENOMEM;
	if (subtree) {
		gcr_subtree_retire(subtree);
		room = gcr_subtree_take_room(subtree);
		removal->subtree = gcr_subtree_ref(subtree);
	}
	removal->adopter = number;
	make_path(name, path);
	pthread_mutex_lock(&store->lock);
	gcr_store_name_removal_locked(store, removal);
	if (room)
		removal->cost_bytes = gcr_room_destroy_locked(room);
	store->going_bytes += removal->cost_bytes;
	store->places_count--;
	pthread_mutex_unlock(&store->lock);
	if (renameat(store->fd, path, store->fd, removal->name) < 0)
		snprintf(removal->name, sizeof(removal->name), "%s", path);
	pthread_mutex_lock(&store->lock);
	gcr_store_remove_later_locked(store, removal);
	pthread_mutex_unlock(&store->lock);
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * Removing and moving names of a subtree. System calls on names are made with the subtree's lock
 * held; operations that may take long are done before it is taken or after it is released.
 */
#include "fs/store/subtree_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fs/store/store.h"
#include "lib/beneath.h"

/*
 * The kernel does one rename between two directories at a time in the whole mount, and all other
 * such renames wait. So the number of names below a directory that is moved is limited; each
 * directory below it counts as MOVE_DIRECTORY_NAMES names. 100 processes that move such directories
 * keep another rename waiting for about a tenth of a second (measured).
 */
#define MOVE_NAMES_MAX	     1024
#define MOVE_DIRECTORY_NAMES 16

/* A file whose name is removed; its memory is freed when it is not open any more. */
struct removal {
	int fd; /* so that pages are not freed with the lock held; -1: no such name */
	struct stat stat;
	uint32_t item;
	struct gcr_subtree_packed *packed; /* of a file that is not open */
};

/*
 * Find the file that has the name; no error if the name does not exist. -EMFILE, -ENOMEM, ...: the
 * file cannot be examined now.
 */
static int removal_init(struct gcr_subtree *subtree, struct removal *removal, uint32_t parent,
			int parent_fd, const char *name)
{
	removal->item = gcr_subtree_item_find(subtree, parent, name);
	removal->fd = openat(parent_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (removal->fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(removal->fd, &removal->stat) < 0) {
		int result = -errno;

		close(TAKE_FD(removal->fd));
		return result;
	}
	return 0;
}

/*
 * The name has been removed, or (@is_replaced) is another file's now: update items, account and
 * inode. Lock: subtree.
 */
static void removal_done(struct gcr_subtree *subtree, struct removal *removal, bool is_replaced)
{
	struct gcr_subtree_inode *inode;

	/* Reads the new link count and change time. */
	if (removal->fd >= 0)
		fstat(removal->fd, &removal->stat);
	if (removal->item != GCR_SUBTREE_NONE)
		gcr_subtree_item_remove(subtree, removal->item,
					removal->fd >= 0 ? &removal->stat : NULL);
	if (removal->fd >= 0 && !is_replaced)
		gcr_subtree_remove_entry(subtree);
	if (removal->fd < 0)
		return;
	inode = gcr_subtree_inode_find(subtree, removal->stat.st_ino);
	if (inode) {
		inode->is_unlinked = true;
		return;
	}
	removal->packed = gcr_subtree_packed_take(subtree, removal->stat.st_ino);
	subtree->changes++; /* until removal_finish() */
}

/*
 * Finishes a removal after removal_done(): stops counting the memory of the file, unless the
 * subtree has the file open. Without the lock.
 */
static void removal_finish(struct gcr_subtree *subtree, struct removal *removal, bool was_open)
{
	uint64_t bytes =
		(uint64_t)removal->stat.st_blocks * 512 + gcr_subtree_packed_bytes(removal->packed);

	if (removal->fd < 0)
		return;
	/* For an open file, the subtree counts the bytes until the file is closed. */
	gcr_subtree_uncount_inode(subtree, removal->fd, was_open ? 0 : bytes, false);
	close(TAKE_FD(removal->fd));
	if (was_open)
		return;
	gcr_subtree_packed_discard(subtree, TAKE_PTR(removal->packed));
	if (subtree->room) {
		gcr_room_recount(subtree->room, 0, bytes, 0);
		gcr_room_trim(subtree->room);
	}
	gcr_subtree_end_change(subtree);
}

/* Has the subtree the file of this removal open? Lock: subtree. */
static bool is_open(struct gcr_subtree *subtree, const struct removal *removal)
{
	return removal->fd >= 0 && gcr_subtree_inode_find(subtree, removal->stat.st_ino);
}

/* Removes a name; on 0 removal_finish() has to follow, with *ret_was_open. Lock: subtree. */
static int unlink_locked(struct gcr_subtree *subtree, uint32_t parent, int parent_fd,
			 const char *name, int flags, struct removal *removal, bool *ret_was_open)
{
	int result = removal_init(subtree, removal, parent, parent_fd, name);

	if (result < 0)
		return result;
	*ret_was_open = is_open(subtree, removal);
	if (unlinkat(parent_fd, name, flags) < 0)
		return -errno;
	removal_done(subtree, removal, false);
	return 0;
}

int gcr_subtree_remove(struct gcr_subtree *subtree, uint32_t parent, const char *name,
		       bool is_directory)
{
	struct removal removal = {.fd = -1};
	bool was_open = false;
	int parent_fd;
	int result = gcr_subtree_lock_names(subtree);

	if (result < 0)
		return result;
	parent_fd = gcr_subtree_open_directory(subtree, parent);
	result = parent_fd;
	if (parent_fd >= 0) {
		result = unlink_locked(subtree, parent, parent_fd, name,
				       is_directory ? AT_REMOVEDIR : 0, &removal, &was_open);
		close(parent_fd);
	}
	pthread_mutex_unlock(&subtree->lock);
	if (!result)
		removal_finish(subtree, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result;
}

int gcr_subtree_take_out(struct gcr_subtree *subtree, const char *name)
{
	struct removal removal = {.fd = -1};
	bool was_open = false;
	int result;

	pthread_mutex_lock(&subtree->lock);
	result = unlink_locked(subtree, GCR_SUBTREE_ROOT, subtree->root_fd, name, 0, &removal,
			       &was_open);
	pthread_mutex_unlock(&subtree->lock);
	if (!result)
		removal_finish(subtree, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result == -ENOENT ? 0 : result;
}

/*
 * Moves the file @name into the subtree's own directory, where @removal is that of a replaced file.
 * On 0 the caller counts the new file, then calls gcr_subtree_end_change() and removal_finish().
 * Lock: subtree.
 */
static int put_locked(struct gcr_subtree *subtree, int from_fd, const char *name,
		      struct removal *removal, bool *ret_was_open)
{
	int result = removal_init(subtree, removal, GCR_SUBTREE_ROOT, subtree->root_fd, name);
	bool is_replaced = removal->fd >= 0;

	if (!result && !is_replaced)
		result = gcr_subtree_add_entry(subtree, 0);
	if (result < 0)
		return result;
	*ret_was_open = is_open(subtree, removal);
	if (renameat(from_fd, name, subtree->root_fd, name) < 0) {
		result = -errno;
		if (!is_replaced)
			gcr_subtree_remove_entry(subtree);
		return result;
	}
	removal_done(subtree, removal, is_replaced);
	subtree->changes++; /* until the new file counts */
	return 0;
}

int gcr_subtree_put(struct gcr_subtree *subtree, int from_fd, const char *name)
{
	struct removal removal = {.fd = -1, .item = GCR_SUBTREE_NONE};
	bool was_open = false;
	struct stat stat;
	int result;

	if (fstatat(from_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	pthread_mutex_lock(&subtree->lock);
	result = put_locked(subtree, from_fd, name, &removal, &was_open);
	pthread_mutex_unlock(&subtree->lock);
	if (result < 0) {
		if (removal.fd >= 0)
			close(removal.fd);
		return result;
	}
	/* The new file counts before the old one does not any more. */
	if (subtree->room)
		gcr_room_recount(subtree->room, 0, 0, gcr_subtree_blocks_bytes(&stat));
	gcr_subtree_end_change(subtree);
	removal_finish(subtree, &removal, was_open);
	return 0;
}

/*
 * The number of directory levels of @name, itself included; at most @max. 0: not a directory.
 * -EXDEV: more than *@names_left names have to be examined. -errno: unknown, for instance because a
 * directory is not readable for the daemon.
 */
static int height_of(int parent_fd, const char *name, int max, int *names_left)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int most = 0;
	int result = max ? gcr_beneath_list(parent_fd, name, &dir) : -ENOENT;

	if (result < 0)
		return result == -ENOENT || result == -ENOTDIR || result == -ELOOP ? 0 : result;
	*names_left -= MOVE_DIRECTORY_NAMES;
	while ((entry = readdir(dir)) && most < max - 1) {
		int height;

		if (--*names_left < 0)
			return -EXDEV;
		if (entry->d_type != DT_DIR || !strcmp(entry->d_name, ".") ||
		    !strcmp(entry->d_name, ".."))
			continue;
		height = height_of(dirfd(dir), entry->d_name, max - 1, names_left);
		if (height < 0)
			return height;
		most = height > most ? height : most;
	}
	return most + 1;
}

/* Would a directory of @height levels be too deep below its new parent? Lock: subtree. */
static int check_depth(const struct gcr_subtree *subtree, int height, uint32_t new_parent)
{
	char path[PATH_MAX];
	unsigned int depth;
	int result;

	if (height < 0)
		return height;
	result = gcr_subtree_item_path(subtree, new_parent, path, &depth);
	if (result < 0)
		return result;
	return depth + (unsigned int)height > GCR_STORE_DEPTH_MAX ? -ENAMETOOLONG : 0;
}

/* Move the items along with their files. Lock: subtree. */
static void rename_items(struct gcr_subtree *subtree, uint32_t from, uint32_t parent,
			 uint32_t new_parent, const char *name, const char *new_name,
			 unsigned int flags)
{
	uint32_t to = gcr_subtree_item_find(subtree, new_parent, new_name);

	if (flags & RENAME_EXCHANGE && from != GCR_SUBTREE_NONE && to != GCR_SUBTREE_NONE) {
		gcr_subtree_item_exchange(subtree, from, to);
		return;
	}
	/* An item without memory for its new name becomes stale. */
	if (flags & RENAME_EXCHANGE && to != GCR_SUBTREE_NONE &&
	    gcr_subtree_item_move(subtree, to, parent, name) < 0)
		gcr_subtree_item_remove(subtree, to, NULL);
	if (from != GCR_SUBTREE_NONE &&
	    gcr_subtree_item_move(subtree, from, new_parent, new_name) < 0)
		gcr_subtree_item_remove(subtree, from, NULL);
}

/* The directories between which names are moved; both may be the same one. */
struct parents {
	int from_fd;
	int to_fd;
	bool moves_directory;
};

static void parents_close(struct parents *parents)
{
	if (parents->from_fd >= 0)
		close(parents->from_fd);
	if (parents->to_fd >= 0)
		close(parents->to_fd);
}

/*
 * As gcr_subtree_lock_names(): on 0 the subtree's lock is held. The height of the moved directories
 * is determined without the lock, because there may be many directories below them and other
 * threads wait. Only if directories were made in the meantime, the height is determined again, with
 * the lock held.
 */
static int lock_names_to_move(struct gcr_subtree *subtree, uint32_t parent, const char *name,
			      uint32_t new_parent, const char *new_name, unsigned int flags,
			      struct parents *ret_parents)
{
	bool measures = parent != new_parent;

	for (bool keeps_lock = false;; keeps_lock = true) {
		struct parents parents = {.from_fd = -1, .to_fd = -1};
		uint64_t made;
		int names_left = MOVE_NAMES_MAX;
		int height = 0;
		int other_height = 0;
		int result = gcr_subtree_lock_names(subtree);

		if (result < 0)
			return result;
		made = subtree->directories_made;
		parents.from_fd = gcr_subtree_open_directory(subtree, parent);
		parents.to_fd =
			parents.from_fd < 0 ? -1 : gcr_subtree_open_directory(subtree, new_parent);
		result = parents.from_fd < 0 ? parents.from_fd
			 : parents.to_fd < 0 ? parents.to_fd
					     : 0;
		if (!result && measures) {
			if (!keeps_lock)
				pthread_mutex_unlock(&subtree->lock);
			height = height_of(parents.from_fd, name, GCR_STORE_DEPTH_MAX + 1,
					   &names_left);
			if (flags & RENAME_EXCHANGE)
				other_height = height_of(parents.to_fd, new_name,
							 GCR_STORE_DEPTH_MAX + 1, &names_left);
			if (!keeps_lock)
				result = gcr_subtree_lock_names(subtree);
			if (result < 0) {
				parents_close(&parents);
				return result;
			}
		}
		if (!result && measures && subtree->directories_made != made) {
			pthread_mutex_unlock(&subtree->lock);
			parents_close(&parents);
			continue;
		}
		if (!result && measures)
			result = check_depth(subtree, height, new_parent);
		if (!result && measures && flags & RENAME_EXCHANGE)
			result = check_depth(subtree, other_height, parent);
		if (!result) {
			parents.moves_directory = height > 0 || other_height > 0;
			*ret_parents = parents;
			return 0;
		}
		pthread_mutex_unlock(&subtree->lock);
		parents_close(&parents);
		return result;
	}
}

int gcr_subtree_rename(struct gcr_subtree *subtree, uint32_t parent, const char *name,
		       uint32_t new_parent, const char *new_name, unsigned int flags)
{
	struct removal removal = {.fd = -1, .item = GCR_SUBTREE_NONE};
	bool same = parent == new_parent && !strcmp(name, new_name);
	struct parents parents = {.from_fd = -1, .to_fd = -1};
	bool was_open = false;
	uint32_t from;
	int result;

	if (flags & ~(unsigned int)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		return -EINVAL;
	result = lock_names_to_move(subtree, parent, name, new_parent, new_name, flags, &parents);
	if (result < 0)
		return result;
	if (!(flags & RENAME_EXCHANGE) && !same) {
		result = removal_init(subtree, &removal, new_parent, parents.to_fd, new_name);
		was_open = is_open(subtree, &removal);
	}
	if (!result && renameat2(parents.from_fd, name, parents.to_fd, new_name, flags) < 0)
		result = -errno;
	if (!result && !same) {
		subtree->directories_made += parents.moves_directory;
		from = gcr_subtree_item_find(subtree, parent, name);
		if (!(flags & RENAME_EXCHANGE))
			removal_done(subtree, &removal, false);
		rename_items(subtree, from, parent, new_parent, name, new_name, flags);
	}
	parents_close(&parents);
	pthread_mutex_unlock(&subtree->lock);
	if (!result)
		removal_finish(subtree, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result;
}

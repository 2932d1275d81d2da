/* SPDX-License-Identifier: MIT */
/*
 * Removing and moving names of a folder. System calls on names are made with the folder's lock
 * held; operations that may take long are done before it is taken or after it is released.
 */
#include "fs/store/folder_private.h"

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
 * directory below it counts as MOVE_DIRECTORY_NAMES names.
 */
#define MOVE_NAMES_MAX	     65536
#define MOVE_DIRECTORY_NAMES 16

/* A file whose name is removed; its memory is freed when it is not open any more. */
struct removal {
	int fd; /* so that pages are not freed with the lock held; -1: no such name */
	struct stat stat;
	uint32_t item;
	struct gcr_folder_packed *packed; /* of a file that is not open */
};

/*
 * Find the file that has the name; no error if the name does not exist. -EMFILE, -ENOMEM, ...: the
 * file cannot be examined now.
 */
static int removal_init(struct gcr_folder *folder, struct removal *removal, uint32_t parent,
			int parent_fd, const char *name)
{
	removal->item = gcr_folder_item_find(folder, parent, name);
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
 * inode. Lock: folder.
 */
static void removal_done(struct gcr_folder *folder, struct removal *removal, bool is_replaced)
{
	struct gcr_folder_inode *inode;

	/* Reads the new link count and change time. */
	if (removal->fd >= 0)
		fstat(removal->fd, &removal->stat);
	if (removal->item != GCR_FOLDER_NONE)
		gcr_folder_item_remove(folder, removal->item,
				       removal->fd >= 0 ? &removal->stat : NULL);
	if (removal->fd >= 0 && !is_replaced)
		gcr_folder_remove_entry(folder);
	if (removal->fd < 0)
		return;
	inode = gcr_folder_inode_find(folder, removal->stat.st_ino);
	if (inode) {
		inode->is_unlinked = true;
		return;
	}
	removal->packed = gcr_folder_packed_take(folder, removal->stat.st_ino);
	folder->changes++; /* until removal_finish() */
}

/*
 * Finishes a removal after removal_done(): settles the memory of the file, unless the folder has
 * the file open. Without the lock.
 */
static void removal_finish(struct gcr_folder *folder, struct removal *removal, bool was_open)
{
	uint64_t bytes =
		(uint64_t)removal->stat.st_blocks * 512 + gcr_folder_packed_bytes(removal->packed);

	if (removal->fd < 0)
		return;
	/* For an open file, the folder counts the bytes until the file is closed. */
	gcr_folder_settle_inode(folder, removal->fd, was_open ? 0 : bytes, false);
	close(TAKE_FD(removal->fd));
	if (was_open)
		return;
	gcr_folder_packed_discard(folder, TAKE_PTR(removal->packed));
	if (folder->room) {
		gcr_room_settle(folder->room, 0, bytes, 0);
		gcr_room_trim(folder->room);
	}
	gcr_folder_end_change(folder);
}

/* Has the folder the file of this removal open? Lock: folder. */
static bool is_open(struct gcr_folder *folder, const struct removal *removal)
{
	return removal->fd >= 0 && gcr_folder_inode_find(folder, removal->stat.st_ino);
}

/* Removes a name; on 0 removal_finish() has to follow, with *ret_was_open. Lock: folder. */
static int unlink_locked(struct gcr_folder *folder, uint32_t parent, int parent_fd,
			 const char *name, int flags, struct removal *removal, bool *ret_was_open)
{
	int result = removal_init(folder, removal, parent, parent_fd, name);

	if (result < 0)
		return result;
	*ret_was_open = is_open(folder, removal);
	if (unlinkat(parent_fd, name, flags) < 0)
		return -errno;
	removal_done(folder, removal, false);
	return 0;
}

int gcr_folder_remove(struct gcr_folder *folder, uint32_t parent, const char *name,
		      bool is_directory)
{
	struct removal removal = {.fd = -1};
	bool was_open = false;
	int parent_fd;
	int result = gcr_folder_lock_names(folder);

	if (result < 0)
		return result;
	parent_fd = gcr_folder_open_directory(folder, parent);
	result = parent_fd;
	if (parent_fd >= 0) {
		result = unlink_locked(folder, parent, parent_fd, name,
				       is_directory ? AT_REMOVEDIR : 0, &removal, &was_open);
		close(parent_fd);
	}
	pthread_mutex_unlock(&folder->lock);
	if (!result)
		removal_finish(folder, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result;
}

int gcr_folder_take_out(struct gcr_folder *folder, const char *name)
{
	struct removal removal = {.fd = -1};
	bool was_open = false;
	int result;

	pthread_mutex_lock(&folder->lock);
	result = unlink_locked(folder, GCR_FOLDER_ROOT, folder->root_fd, name, 0, &removal,
			       &was_open);
	pthread_mutex_unlock(&folder->lock);
	if (!result)
		removal_finish(folder, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result == -ENOENT ? 0 : result;
}

/*
 * Moves the file @name into the folder's own directory, where @removal is that of a replaced file.
 * On 0 the caller counts the new file, then calls gcr_folder_end_change() and removal_finish().
 * Lock: folder.
 */
static int put_locked(struct gcr_folder *folder, int from_fd, const char *name,
		      struct removal *removal, bool *ret_was_open)
{
	int result = removal_init(folder, removal, GCR_FOLDER_ROOT, folder->root_fd, name);
	bool is_replaced = removal->fd >= 0;

	if (!result && !is_replaced)
		result = gcr_folder_add_entry(folder, 0);
	if (result < 0)
		return result;
	*ret_was_open = is_open(folder, removal);
	if (renameat(from_fd, name, folder->root_fd, name) < 0) {
		result = -errno;
		if (!is_replaced)
			gcr_folder_remove_entry(folder);
		return result;
	}
	removal_done(folder, removal, is_replaced);
	folder->changes++; /* until the new file counts */
	return 0;
}

int gcr_folder_put(struct gcr_folder *folder, int from_fd, const char *name)
{
	struct removal removal = {.fd = -1, .item = GCR_FOLDER_NONE};
	bool was_open = false;
	struct stat stat;
	int result;

	if (fstatat(from_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	pthread_mutex_lock(&folder->lock);
	result = put_locked(folder, from_fd, name, &removal, &was_open);
	pthread_mutex_unlock(&folder->lock);
	if (result < 0) {
		if (removal.fd >= 0)
			close(removal.fd);
		return result;
	}
	/* The new file counts before the old one does not any more. */
	if (folder->room)
		gcr_room_settle(folder->room, 0, 0, gcr_folder_blocks_bytes(&stat));
	gcr_folder_end_change(folder);
	removal_finish(folder, &removal, was_open);
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

/* Would a directory of @height levels be too deep below its new parent? Lock: folder. */
static int check_depth(const struct gcr_folder *folder, int height, uint32_t new_parent)
{
	char path[PATH_MAX];
	unsigned int depth;
	int result;

	if (height < 0)
		return height;
	result = gcr_folder_item_path(folder, new_parent, path, &depth);
	if (result < 0)
		return result;
	return depth + (unsigned int)height > GCR_STORE_DEPTH_MAX ? -ENAMETOOLONG : 0;
}

/* Move the items along with their files. Lock: folder. */
static void rename_items(struct gcr_folder *folder, uint32_t from, uint32_t parent,
			 uint32_t new_parent, const char *name, const char *new_name,
			 unsigned int flags)
{
	uint32_t to = gcr_folder_item_find(folder, new_parent, new_name);

	if (flags & RENAME_EXCHANGE && from != GCR_FOLDER_NONE && to != GCR_FOLDER_NONE) {
		gcr_folder_item_exchange(folder, from, to);
		return;
	}
	/* An item without memory for its new name becomes stale. */
	if (flags & RENAME_EXCHANGE && to != GCR_FOLDER_NONE &&
	    gcr_folder_item_move(folder, to, parent, name) < 0)
		gcr_folder_item_remove(folder, to, NULL);
	if (from != GCR_FOLDER_NONE && gcr_folder_item_move(folder, from, new_parent, new_name) < 0)
		gcr_folder_item_remove(folder, from, NULL);
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
 * As gcr_folder_lock_names(): on 0 the folder's lock is held. The height of the moved directories
 * is determined without the lock, because there may be many directories below them and other
 * threads wait. Only if directories were made in the meantime, the height is determined again, with
 * the lock held.
 */
static int lock_names_to_move(struct gcr_folder *folder, uint32_t parent, const char *name,
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
		int result = gcr_folder_lock_names(folder);

		if (result < 0)
			return result;
		made = folder->directories_made;
		parents.from_fd = gcr_folder_open_directory(folder, parent);
		parents.to_fd = parents.from_fd < 0 ? -1
						    : gcr_folder_open_directory(folder, new_parent);
		result = parents.from_fd < 0 ? parents.from_fd
			 : parents.to_fd < 0 ? parents.to_fd
					     : 0;
		if (!result && measures) {
			if (!keeps_lock)
				pthread_mutex_unlock(&folder->lock);
			height = height_of(parents.from_fd, name, GCR_STORE_DEPTH_MAX + 1,
					   &names_left);
			if (flags & RENAME_EXCHANGE)
				other_height = height_of(parents.to_fd, new_name,
							 GCR_STORE_DEPTH_MAX + 1, &names_left);
			if (!keeps_lock)
				result = gcr_folder_lock_names(folder);
			if (result < 0) {
				parents_close(&parents);
				return result;
			}
		}
		if (!result && measures && folder->directories_made != made) {
			pthread_mutex_unlock(&folder->lock);
			parents_close(&parents);
			continue;
		}
		if (!result && measures)
			result = check_depth(folder, height, new_parent);
		if (!result && measures && flags & RENAME_EXCHANGE)
			result = check_depth(folder, other_height, parent);
		if (!result) {
			parents.moves_directory = height > 0 || other_height > 0;
			*ret_parents = parents;
			return 0;
		}
		pthread_mutex_unlock(&folder->lock);
		parents_close(&parents);
		return result;
	}
}

int gcr_folder_rename(struct gcr_folder *folder, uint32_t parent, const char *name,
		      uint32_t new_parent, const char *new_name, unsigned int flags)
{
	struct removal removal = {.fd = -1, .item = GCR_FOLDER_NONE};
	bool same = parent == new_parent && !strcmp(name, new_name);
	struct parents parents = {.from_fd = -1, .to_fd = -1};
	bool was_open = false;
	uint32_t from;
	int result;

	if (flags & ~(unsigned int)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		return -EINVAL;
	result = lock_names_to_move(folder, parent, name, new_parent, new_name, flags, &parents);
	if (result < 0)
		return result;
	if (!(flags & RENAME_EXCHANGE) && !same) {
		result = removal_init(folder, &removal, new_parent, parents.to_fd, new_name);
		was_open = is_open(folder, &removal);
	}
	if (!result && renameat2(parents.from_fd, name, parents.to_fd, new_name, flags) < 0)
		result = -errno;
	if (!result && !same) {
		folder->directories_made += parents.moves_directory;
		from = gcr_folder_item_find(folder, parent, name);
		if (!(flags & RENAME_EXCHANGE))
			removal_done(folder, &removal, false);
		rename_items(folder, from, parent, new_parent, name, new_name, flags);
	}
	parents_close(&parents);
	pthread_mutex_unlock(&folder->lock);
	if (!result)
		removal_finish(folder, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result;
}

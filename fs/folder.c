/* SPDX-License-Identifier: MIT */
/*
 * Folders: their life, the verbs that keep users out, names and attributes. System calls on names
 * are made with the folder's lock held: they are short, and no name changes between two of them.
 */
#include "fs/folder_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fs/store.h"
#include "lib/beneath.h"

#define NUMBER_MASK ((1u << GCR_FOLDER_NUMBER_BITS) - 1)

static struct {
	pthread_mutex_t lock;
	struct gcr_folder *list;
	uint32_t last_number;
} folders = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- life ---- */

static void folder_free(struct gcr_folder *folder)
{
	gcr_folder_items_finish(folder);
	gcr_folder_packed_finish(folder);
	free(folder->passed);
	if (folder->root_fd >= 0)
		close(folder->root_fd);
	pthread_cond_destroy(&folder->is_settled);
	pthread_mutex_destroy(&folder->lock);
	pthread_mutex_destroy(&folder->touch_lock);
	free(folder);
}

GCR_DEFINE_CLEANUP(struct gcr_folder *, folder_free);

/* Caller holds folders.lock. */
static struct gcr_folder *find_locked(uint32_t number)
{
	struct gcr_folder *folder = folders.list;

	while (folder && folder->number != number)
		folder = folder->next;
	return folder;
}

/* Of root's, as dumps have them, it is the place's. */
static uid_t owner_of(const struct gcr_folder *folder, const struct stat *stat)
{
	return stat->st_uid ? stat->st_uid : folder->root_owner;
}

int gcr_folder_create(const struct gcr_folder_config *config, struct gcr_folder **ret_folder)
{
	_cleanup_(folder_free_cleanup) struct gcr_folder *folder = calloc(1, sizeof(*folder));
	struct stat stat;

	if (!folder)
		return -ENOMEM;
	atomic_init(&folder->references, 1);
	pthread_mutex_init(&folder->lock, NULL);
	pthread_mutex_init(&folder->touch_lock, NULL);
	pthread_cond_init(&folder->is_settled, NULL);
	folder->store = config->store;
	folder->touch = config->touch;
	folder->data = config->data;
	folder->gives_away = !geteuid();
	folder->tables_fd = -1;
	folder->root_fd = fcntl(config->root_fd, F_DUPFD_CLOEXEC, 0);
	if (folder->root_fd < 0 || fstat(folder->root_fd, &stat) < 0)
		return -errno;
	folder->root_owner = config->owner;
	atomic_init(&folder->owner, owner_of(folder, &stat));
	if (gcr_folder_items_init(folder) < 0)
		return -ENOMEM;
	pthread_mutex_lock(&folders.lock);
	do {
		folders.last_number = (folders.last_number + 1) & NUMBER_MASK;
	} while (find_locked(folders.last_number));
	folder->number = folders.last_number;
	folder->next = folders.list;
	folders.list = folder;
	pthread_mutex_unlock(&folders.lock);
	*ret_folder = TAKE_PTR(folder);
	return 0;
}

struct gcr_folder *gcr_folder_ref(struct gcr_folder *folder)
{
	atomic_fetch_add(&folder->references, 1);
	return folder;
}

void gcr_folder_unref(struct gcr_folder *folder)
{
	struct gcr_folder **link = &folders.list;

	if (!folder)
		return;
	pthread_mutex_lock(&folders.lock);
	if (atomic_fetch_sub(&folder->references, 1) != 1) {
		pthread_mutex_unlock(&folders.lock);
		return;
	}
	while (*link != folder)
		link = &(*link)->next;
	*link = folder->next;
	pthread_mutex_unlock(&folders.lock);
	folder_free(folder);
}

uint32_t gcr_folder_number(const struct gcr_folder *folder)
{
	return folder->number;
}

int gcr_folder_find(uint32_t number, struct gcr_folder **ret_folder)
{
	struct gcr_folder *folder;

	pthread_mutex_lock(&folders.lock);
	folder = find_locked(number);
	if (folder)
		*ret_folder = gcr_folder_ref(folder);
	pthread_mutex_unlock(&folders.lock);
	return folder ? 0 : -ESTALE;
}

/* ---- verbs and changes ---- */

/* Lock: folder. */
static int may_change_locked(const struct gcr_folder *folder)
{
	return folder->is_retired ? -ESTALE : folder->verbs ? -EBUSY : 0;
}

int gcr_folder_touch(struct gcr_folder *folder)
{
	struct gcr_room *room = NULL;
	int result = 0;

	if (atomic_load(&folder->is_touched))
		return 0;
	pthread_mutex_lock(&folder->touch_lock);
	if (!atomic_load(&folder->is_touched)) {
		if (folder->touch)
			result = folder->touch(folder->data, &room);
		if (room)
			gcr_room_set_owner(room, atomic_load(&folder->owner));
		if (!result) {
			pthread_mutex_lock(&folder->lock);
			folder->room = room;
			atomic_store(&folder->is_touched, true);
			pthread_mutex_unlock(&folder->lock);
		}
	}
	pthread_mutex_unlock(&folder->touch_lock);
	return result;
}

bool gcr_folder_is_touched(const struct gcr_folder *folder)
{
	return atomic_load(&folder->is_touched);
}

/* What is to be changed is not changed in the middle of a verb, nor is the account made then. */
static int prepare_change(struct gcr_folder *folder)
{
	int result;

	pthread_mutex_lock(&folder->lock);
	result = may_change_locked(folder);
	if (!result)
		folder->changes++;
	pthread_mutex_unlock(&folder->lock);
	if (result < 0)
		return result;
	result = gcr_folder_touch(folder);
	gcr_folder_end_change(folder);
	return result;
}

int gcr_folder_begin_change(struct gcr_folder *folder, uint64_t epoch)
{
	int result = gcr_folder_is_touched(folder) ? 0 : prepare_change(folder);

	if (result < 0)
		return result;
	pthread_mutex_lock(&folder->lock);
	result = may_change_locked(folder);
	if (!result && folder->epoch != epoch)
		result = -EBUSY;
	if (!result)
		folder->changes++;
	pthread_mutex_unlock(&folder->lock);
	return result;
}

void gcr_folder_end_change(struct gcr_folder *folder)
{
	pthread_mutex_lock(&folder->lock);
	if (!--folder->changes)
		pthread_cond_broadcast(&folder->is_settled);
	pthread_mutex_unlock(&folder->lock);
}

int gcr_folder_lock_names(struct gcr_folder *folder)
{
	int result = gcr_folder_is_touched(folder) ? 0 : prepare_change(folder);

	if (result < 0)
		return result;
	pthread_mutex_lock(&folder->lock);
	result = may_change_locked(folder);
	if (result < 0)
		pthread_mutex_unlock(&folder->lock);
	return result;
}

int gcr_folder_add_entry(struct gcr_folder *folder, uid_t uid)
{
	return folder->room ? gcr_room_add_entry(folder->room, uid) : 0;
}

void gcr_folder_remove_entry(struct gcr_folder *folder)
{
	if (folder->room)
		gcr_room_remove_entry(folder->room);
}

void gcr_folder_begin_verb(struct gcr_folder *folder)
{
	pthread_mutex_lock(&folder->lock);
	folder->verbs++;
	folder->epoch++;
	while (folder->changes)
		pthread_cond_wait(&folder->is_settled, &folder->lock);
	pthread_mutex_unlock(&folder->lock);
}

void gcr_folder_end_verb(struct gcr_folder *folder)
{
	pthread_mutex_lock(&folder->lock);
	folder->verbs--;
	pthread_mutex_unlock(&folder->lock);
}

void gcr_folder_retire(struct gcr_folder *folder)
{
	pthread_mutex_lock(&folder->lock);
	folder->is_retired = true;
	if (folder->room)
		gcr_room_close(folder->room);
	while (folder->changes)
		pthread_cond_wait(&folder->is_settled, &folder->lock);
	pthread_mutex_unlock(&folder->lock);
}

struct gcr_room *gcr_folder_take_room(struct gcr_folder *folder)
{
	struct gcr_room *room;

	pthread_mutex_lock(&folder->lock);
	while (folder->changes)
		pthread_cond_wait(&folder->is_settled, &folder->lock);
	room = TAKE_PTR(folder->room);
	pthread_mutex_unlock(&folder->lock);
	return room;
}

uint64_t gcr_folder_resident_bytes(struct gcr_folder *folder)
{
	uint64_t bytes = 0;

	/* Whoever takes the account away waits for us. */
	pthread_mutex_lock(&folder->lock);
	folder->changes++;
	pthread_mutex_unlock(&folder->lock);
	if (folder->room)
		bytes = gcr_room_resident_bytes(folder->room);
	gcr_folder_end_change(folder);
	return bytes;
}

/* ---- names ---- */

int gcr_folder_open_item(struct gcr_folder *folder, uint32_t item, int flags)
{
	char path[PATH_MAX];
	int result = folder->is_retired ? -ESTALE : gcr_folder_item_path(folder, item, path, NULL);

	return result < 0 ? result : gcr_beneath_open_path(folder->root_fd, path, flags);
}

static int open_directory(struct gcr_folder *folder, uint32_t item)
{
	return gcr_folder_open_item(folder, item, O_PATH | O_DIRECTORY);
}

static bool is_shown(mode_t mode)
{
	return S_ISREG(mode) || S_ISDIR(mode);
}

int gcr_folder_make_entry(struct gcr_folder *folder, uint32_t parent, const char *name, int fd,
			  struct gcr_folder_entry *ret_entry)
{
	struct gcr_folder_entry entry;
	int result;

	result = gcr_folder_stat_fd(folder, fd, &entry.stat);
	if (result < 0)
		return result;
	if (!is_shown(entry.stat.st_mode))
		return -ENOENT;
	result = gcr_folder_item_get(folder, parent, name, &entry.item);
	if (result < 0)
		return result;
	entry.generation = folder->items[entry.item].generation;
	*ret_entry = entry;
	return 0;
}

static int lookup_locked(struct gcr_folder *folder, uint32_t parent, const char *name,
			 struct gcr_folder_entry *ret_entry)
{
	_cleanup_close_ int parent_fd = open_directory(folder, parent);
	_cleanup_close_ int fd = -1;

	if (parent_fd < 0)
		return parent_fd;
	fd = openat(parent_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : gcr_folder_make_entry(folder, parent, name, fd, ret_entry);
}

int gcr_folder_lookup(struct gcr_folder *folder, uint32_t parent, const char *name,
		      struct gcr_folder_entry *ret_entry)
{
	int result;

	pthread_mutex_lock(&folder->lock);
	result = lookup_locked(folder, parent, name, ret_entry);
	pthread_mutex_unlock(&folder->lock);
	return result;
}

void gcr_folder_forget(struct gcr_folder *folder, uint32_t item, uint64_t count)
{
	pthread_mutex_lock(&folder->lock);
	gcr_folder_item_forget(folder, item, count);
	pthread_mutex_unlock(&folder->lock);
}

/*
 * No file gets these bits. A write, a truncation and a chown(2) would have to take them away again,
 * and the mount is nosuid: so nothing needs them. A directory gives its group on by S_ISGID.
 */
static mode_t mode_of(mode_t mode, mode_t type)
{
	return mode & 07777 & ~(mode_t)(S_ISDIR(type) ? S_ISUID : S_ISUID | S_ISGID);
}

static int change_mode(int fd, mode_t mode)
{
	struct stat stat;

	if (fstat(fd, &stat) < 0 || fchmod(fd, mode_of(mode, stat.st_mode)) < 0)
		return -errno;
	return 0;
}

int gcr_folder_give(const struct gcr_folder *folder, int parent_fd, int fd, mode_t mode, uid_t uid,
		    gid_t gid)
{
	struct stat parent;

	if (fstat(parent_fd, &parent) < 0)
		return -errno;
	if (parent.st_mode & S_ISGID)
		gid = parent.st_gid;
	if (folder->gives_away && fchown(fd, uid, gid) < 0)
		return -errno;
	/* Whatever our umask has made of it. */
	return change_mode(fd, mode);
}

static int mkdir_locked(struct gcr_folder *folder, uint32_t parent, const char *name, mode_t mode,
			uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry)
{
	_cleanup_close_ int parent_fd = open_directory(folder, parent);
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	struct stat stat;
	unsigned int depth;
	int result;

	if (parent_fd < 0)
		return parent_fd;
	result = gcr_folder_item_path(folder, parent, path, &depth);
	if (!result && depth >= GCR_STORE_DEPTH_MAX)
		result = -ENAMETOOLONG;
	if (result < 0)
		return result;
	if (mkdirat(parent_fd, name, 0700) < 0)
		return -errno;
	fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	result = fd < 0 || fstat(parent_fd, &stat) < 0 ? -errno : 0;
	if (!result)
		result = gcr_folder_give(folder, parent_fd, fd, mode | (stat.st_mode & S_ISGID),
					 uid, gid);
	if (!result)
		result = gcr_folder_make_entry(folder, parent, name, fd, ret_entry);
	if (result < 0)
		unlinkat(parent_fd, name, AT_REMOVEDIR);
	return result;
}

int gcr_folder_mkdir(struct gcr_folder *folder, uint32_t parent, const char *name, mode_t mode,
		     uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry)
{
	int result = gcr_folder_lock_names(folder);

	if (result < 0)
		return result;
	result = gcr_folder_add_entry(folder, uid);
	if (!result) {
		result = mkdir_locked(folder, parent, name, mode, uid, gid, ret_entry);
		if (result < 0)
			gcr_folder_remove_entry(folder);
	}
	pthread_mutex_unlock(&folder->lock);
	return result;
}

/* A file whose name goes; what it has taken goes when nobody has it open any more. */
struct removal {
	int fd; /* so that its pages are not freed with the lock held; -1: nothing has that name */
	struct stat stat;
	uint32_t item;
	struct gcr_folder_packed *packed; /* of one that is not open */
};

static void removal_init(struct gcr_folder *folder, struct removal *removal, uint32_t parent,
			 int parent_fd, const char *name)
{
	removal->item = gcr_folder_item_find(folder, parent, name);
	removal->fd = openat(parent_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (removal->fd >= 0 && fstat(removal->fd, &removal->stat) < 0)
		close(TAKE_FD(removal->fd));
}

/* It has been done. Lock: folder. */
static void removal_done(struct gcr_folder *folder, struct removal *removal)
{
	struct gcr_folder_inode *inode;

	if (removal->item != GCR_FOLDER_NONE)
		gcr_folder_item_remove(folder, removal->item);
	if (removal->fd >= 0)
		gcr_folder_remove_entry(folder);
	if (removal->fd < 0 || !S_ISREG(removal->stat.st_mode))
		return;
	inode = gcr_folder_inode_find(folder, removal->stat.st_ino);
	if (inode) {
		inode->is_unlinked = true;
		return;
	}
	gcr_folder_forget_passed(folder, removal->stat.st_ino);
	removal->packed = gcr_folder_packed_take(folder, removal->stat.st_ino);
	folder->changes++; /* until removal_finish() */
}

/* After removal_done(), without the lock. */
static void removal_finish(struct gcr_folder *folder, struct removal *removal, bool was_open)
{
	uint64_t bytes =
		(uint64_t)removal->stat.st_blocks * 512 + gcr_folder_packed_bytes(removal->packed);

	if (removal->fd < 0)
		return;
	close(TAKE_FD(removal->fd));
	if (was_open || !S_ISREG(removal->stat.st_mode))
		return;
	gcr_folder_packed_discard(folder, TAKE_PTR(removal->packed));
	if (folder->room) {
		gcr_room_settle(folder->room, 0, bytes, 0);
		gcr_room_trim(folder->room);
	}
	gcr_folder_end_change(folder);
}

/* Lock: folder. */
static bool is_open(struct gcr_folder *folder, const struct removal *removal)
{
	return removal->fd >= 0 && gcr_folder_inode_find(folder, removal->stat.st_ino);
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
	parent_fd = open_directory(folder, parent);
	result = parent_fd < 0 ? parent_fd : 0;
	if (!result) {
		removal_init(folder, &removal, parent, parent_fd, name);
		was_open = is_open(folder, &removal);
		if (unlinkat(parent_fd, name, is_directory ? AT_REMOVEDIR : 0) < 0)
			result = -errno;
		close(parent_fd);
	}
	if (!result)
		removal_done(folder, &removal);
	pthread_mutex_unlock(&folder->lock);
	if (!result)
		removal_finish(folder, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result;
}

/*
 * How many levels of directories there are below and with this one; at most @max. 0: it is none.
 * -errno: nobody can tell, as with a directory that we may not read.
 */
static int height_of(int parent_fd, const char *name, int max)
{
	_cleanup_close_ int fd = max ? gcr_beneath_open(parent_fd, name, O_RDONLY | O_DIRECTORY)
				     : -ENOENT;
	_cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	int most = 0;

	if (!dir && fd >= 0)
		return -errno;
	if (!dir)
		return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
	TAKE_FD(fd);
	while ((entry = readdir(dir)) && most < max - 1) {
		int height;

		if (entry->d_type != DT_DIR || !strcmp(entry->d_name, ".") ||
		    !strcmp(entry->d_name, ".."))
			continue;
		height = height_of(dirfd(dir), entry->d_name, max - 1);
		if (height < 0)
			return height;
		most = height > most ? height : most;
	}
	return most + 1;
}

/* Would the directory be too deep below its new parent? */
static int check_depth(const struct gcr_folder *folder, int parent_fd, const char *name,
		       uint32_t new_parent)
{
	char path[PATH_MAX];
	unsigned int depth;
	int result = gcr_folder_item_path(folder, new_parent, path, &depth);

	if (result < 0)
		return result;
	result = height_of(parent_fd, name, GCR_STORE_DEPTH_MAX + 1);
	if (result < 0)
		return result;
	return depth + (unsigned int)result > GCR_STORE_DEPTH_MAX ? -ENAMETOOLONG : 0;
}

/* The items follow their files. Lock: folder. */
static void rename_items(struct gcr_folder *folder, uint32_t from, uint32_t parent,
			 uint32_t new_parent, const char *name, const char *new_name,
			 unsigned int flags)
{
	uint32_t to = gcr_folder_item_find(folder, new_parent, new_name);

	if (flags & RENAME_EXCHANGE && from != GCR_FOLDER_NONE && to != GCR_FOLDER_NONE) {
		gcr_folder_item_exchange(folder, from, to);
		return;
	}
	/* One without memory for its new name is stale. */
	if (flags & RENAME_EXCHANGE && to != GCR_FOLDER_NONE &&
	    gcr_folder_item_move(folder, to, parent, name) < 0)
		gcr_folder_item_remove(folder, to);
	if (from != GCR_FOLDER_NONE && gcr_folder_item_move(folder, from, new_parent, new_name) < 0)
		gcr_folder_item_remove(folder, from);
}

int gcr_folder_rename(struct gcr_folder *folder, uint32_t parent, const char *name,
		      uint32_t new_parent, const char *new_name, unsigned int flags)
{
	struct removal removal = {.fd = -1, .item = GCR_FOLDER_NONE};
	bool same = parent == new_parent && !strcmp(name, new_name);
	bool was_open = false;
	int from_fd = -1;
	int to_fd = -1;
	uint32_t from;
	int result;

	if (flags & ~(unsigned int)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		return -EINVAL;
	result = gcr_folder_lock_names(folder);
	if (result < 0)
		return result;
	from_fd = open_directory(folder, parent);
	to_fd = from_fd < 0 ? -1 : open_directory(folder, new_parent);
	if (from_fd < 0 || to_fd < 0)
		result = from_fd < 0 ? from_fd : to_fd;
	if (!result && parent != new_parent)
		result = check_depth(folder, from_fd, name, new_parent);
	if (!result && parent != new_parent && flags & RENAME_EXCHANGE)
		result = check_depth(folder, to_fd, new_name, parent);
	if (!result && !(flags & RENAME_EXCHANGE) && !same) {
		removal_init(folder, &removal, new_parent, to_fd, new_name);
		was_open = is_open(folder, &removal);
	}
	if (!result && renameat2(from_fd, name, to_fd, new_name, flags) < 0)
		result = -errno;
	if (!result && !same) {
		from = gcr_folder_item_find(folder, parent, name);
		if (!(flags & RENAME_EXCHANGE))
			removal_done(folder, &removal);
		rename_items(folder, from, parent, new_parent, name, new_name, flags);
	}
	if (from_fd >= 0)
		close(from_fd);
	if (to_fd >= 0)
		close(to_fd);
	pthread_mutex_unlock(&folder->lock);
	if (!result)
		removal_finish(folder, &removal, was_open);
	else if (removal.fd >= 0)
		close(removal.fd);
	return result;
}

int gcr_folder_list(struct gcr_folder *folder, uint32_t item,
		    int (*add)(void *data, const char *name, ino_t ino, mode_t mode), void *data)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = 0;
	int fd;

	pthread_mutex_lock(&folder->lock);
	fd = gcr_folder_open_item(folder, item, O_RDONLY | O_DIRECTORY);
	pthread_mutex_unlock(&folder->lock);
	if (fd < 0)
		return fd;
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	while (!result && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
		    is_shown(DTTOIF(entry->d_type)))
			result = add(data, entry->d_name, entry->d_ino, DTTOIF(entry->d_type));
	return result;
}

/* ---- attributes ---- */

int gcr_folder_stat(struct gcr_folder *folder, uint32_t item, struct stat *ret_stat)
{
	struct gcr_folder_inode *inode;
	int result = 0;
	int fd = -1;

	pthread_mutex_lock(&folder->lock);
	inode = item < folder->items_count ? folder->items[item].inode : NULL;
	if (!inode)
		fd = gcr_folder_open_item(folder, item, O_PATH);
	if (!inode && fd < 0)
		result = fd;
	else
		result = gcr_folder_stat_fd(folder, inode ? inode->fd : fd, ret_stat);
	pthread_mutex_unlock(&folder->lock);
	if (fd >= 0)
		close(fd);
	return result;
}

/* By a descriptor, also of what has no name any more. */
static int set_by_fd(const struct gcr_folder_attributes *attributes, int fd)
{
	int result = 0;

	if ((attributes->uid != (uid_t)-1 || attributes->gid != (gid_t)-1) &&
	    fchown(fd, attributes->uid, attributes->gid) < 0)
		return -errno;
	if (attributes->has_mode)
		result = change_mode(fd, attributes->mode);
	if (result < 0)
		return result;
	return futimens(fd, attributes->times) < 0 ? -errno : 0;
}

/* The kernel has no write under way meanwhile, but for asynchronous ones. */
static int set_of_open(const struct gcr_folder_attributes *attributes,
		       struct gcr_folder_inode *inode)
{
	struct stat before, after;
	int result;

	if (!attributes->is_by_root)
		return set_by_fd(attributes, inode->fd);
	if (fstat(inode->fd, &before) < 0)
		return -errno;
	result = set_by_fd(attributes, inode->fd);
	if (fstat(inode->fd, &after) < 0 || before.st_uid != after.st_uid ||
	    before.st_gid != after.st_gid || before.st_mode != after.st_mode)
		atomic_fetch_add(&inode->changes_of_rights, 1);
	return result;
}

/* By its name: it need not be possible to open it. */
static int set_by_name(const struct gcr_folder_attributes *attributes, int parent_fd,
		       const char *name)
{
	struct stat stat;

	if (fstatat(parent_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!is_shown(stat.st_mode))
		return -ENOENT;
	if ((attributes->uid != (uid_t)-1 || attributes->gid != (gid_t)-1) &&
	    fchownat(parent_fd, name, attributes->uid, attributes->gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (attributes->has_mode &&
	    fchmodat(parent_fd, name, mode_of(attributes->mode, stat.st_mode), 0) < 0)
		return -errno;
	return utimensat(parent_fd, name, attributes->times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* With its owner, all that it takes counts for another user. Lock: folder. */
static int set_root(struct gcr_folder *folder, const struct gcr_folder_attributes *attributes)
{
	int result = set_by_fd(attributes, folder->root_fd);
	struct stat stat;

	if (!fstat(folder->root_fd, &stat)) {
		atomic_store(&folder->owner, owner_of(folder, &stat));
		if (folder->room)
			gcr_room_set_owner(folder->room, owner_of(folder, &stat));
	}
	return result;
}

static int set_locked(struct gcr_folder *folder, uint32_t item,
		      const struct gcr_folder_attributes *attributes)
{
	struct gcr_folder_inode *inode = item < folder->items_count ? folder->items[item].inode
								    : NULL;
	_cleanup_close_ int parent_fd = -1;
	int result;

	if (inode)
		return set_of_open(attributes, inode);
	if (item == GCR_FOLDER_ROOT)
		return set_root(folder, attributes);
	result = gcr_folder_item_check(folder, item);
	if (result < 0)
		return result;
	parent_fd = open_directory(folder, folder->items[item].parent);
	if (parent_fd < 0)
		return parent_fd;
	return set_by_name(attributes, parent_fd, folder->items[item].name);
}

int gcr_folder_set(struct gcr_folder *folder, uint32_t item,
		   const struct gcr_folder_attributes *attributes)
{
	int result = gcr_folder_lock_names(folder);

	if (result < 0)
		return result;
	result = set_locked(folder, item, attributes);
	pthread_mutex_unlock(&folder->lock);
	return result;
}

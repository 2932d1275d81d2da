/* SPDX-License-Identifier: MIT */
/*
 * Folders: creation and end, verbs that block users, names and attributes. System calls on names
 * are made with the folder's lock held: such calls are short, and no name changes between two of
 * them.
 */
#include "fs/store/folder_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/lock.h"

#define NUMBER_MASK ((1u << GCR_FOLDER_NUMBER_BITS) - 1)

#define KNOWN_BUCKETS 4096 /* a power of two */

/* The number of a folder that is gone, and of which the kernel still knows items. */
struct gcr_folder_known {
	struct gcr_folder_known *next; /* in the same bucket */
	uint32_t number;
	uint64_t lookups; /* that the kernel has yet to forget */
};

static struct {
	pthread_mutex_t lock;
	struct gcr_folder *list;
	uint32_t last_number;
	struct gcr_folder_known *known[KNOWN_BUCKETS];
} folders = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- creation and end ---- */

static void folder_free(struct gcr_folder *folder)
{
	gcr_folder_items_finish(folder);
	gcr_folder_packed_finish(folder);
	if (folder->root_fd >= 0)
		close(folder->root_fd);
	pthread_cond_destroy(&folder->is_settled);
	pthread_mutex_destroy(&folder->lock);
	pthread_mutex_destroy(&folder->touch_lock);
	free(folder->known);
	free(folder);
}

GCR_DEFINE_CLEANUP(struct gcr_folder *, folder_free);

/* The folder of this number, without a reference; NULL: none. The caller holds folders.lock. */
static struct gcr_folder *find_locked(uint32_t number)
{
	struct gcr_folder *folder = folders.list;

	while (folder && folder->number != number)
		folder = folder->next;
	return folder;
}

/* The link to the number's entry, or to the end of its bucket. The caller holds folders.lock. */
static struct gcr_folder_known **find_known_locked(uint32_t number)
{
	struct gcr_folder_known **link = &folders.known[number % KNOWN_BUCKETS];

	while (*link && (*link)->number != number)
		link = &(*link)->next;
	return link;
}

/*
 * Give the folder a number that no folder has, and under which the kernel knows no item of a folder
 * that is gone. -ENFILE: there is no such number. The caller holds folders.lock.
 */
static int number_locked(struct gcr_folder *folder)
{
	uint32_t number = folders.last_number;

	do {
		number = (number + 1) & NUMBER_MASK;
		if (number == folders.last_number)
			return -ENFILE;
	} while (find_locked(number) || *find_known_locked(number));
	folders.last_number = folder->number = number;
	return 0;
}

void gcr_folder_set_last_number(uint32_t number)
{
	pthread_mutex_lock(&folders.lock);
	folders.last_number = number & NUMBER_MASK;
	pthread_mutex_unlock(&folders.lock);
}

/*
 * The user for whom the folder counts: the owner of its directory or, if that is root (as in
 * dumps), the owner of the place.
 */
static uid_t owner_of(const struct gcr_folder *folder, const struct stat *stat)
{
	return stat->st_uid ? stat->st_uid : folder->root_owner;
}

int gcr_folder_create(const struct gcr_folder_config *config, struct gcr_folder **ret_folder)
{
	_cleanup_(folder_free_cleanup) struct gcr_folder *folder = calloc(1, sizeof(*folder));
	struct stat stat;
	int result;

	if (!folder)
		return -ENOMEM;
	atomic_init(&folder->references, 1);
	pthread_mutex_init(&folder->lock, NULL);
	pthread_mutex_init(&folder->touch_lock, NULL);
	pthread_cond_init(&folder->is_settled, NULL);
	folder->store = config->store;
	folder->adopter = config->adopter;
	folder->touch = config->touch;
	folder->data = config->data;
	folder->gives_away = !geteuid();
	folder->tables_fd = -1;
	folder->root_fd = fcntl(config->root_fd, F_DUPFD_CLOEXEC, 0);
	if (folder->root_fd < 0 || fstat(folder->root_fd, &stat) < 0)
		return -errno;
	folder->root_owner = config->owner;
	atomic_init(&folder->owner, owner_of(folder, &stat));
	folder->known = calloc(1, sizeof(*folder->known));
	if (!folder->known || gcr_folder_items_init(folder) < 0)
		return -ENOMEM;
	pthread_mutex_lock(&folders.lock);
	result = number_locked(folder);
	if (!result) {
		folder->next = folders.list;
		folders.list = folder;
	}
	pthread_mutex_unlock(&folders.lock);
	if (result < 0)
		return result;
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
	if (folder->lookups) {
		struct gcr_folder_known *known = TAKE_PTR(folder->known);

		*known = (struct gcr_folder_known){.number = folder->number,
						   .lookups = folder->lookups};
		*find_known_locked(folder->number) = known;
	}
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

/* May the folder be changed? -ESTALE: it is retired; -EBUSY: a verb. Lock: folder. */
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

/* Prepare the first change: the account is not made while a verb is under way. */
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

uid_t gcr_folder_owner(const struct gcr_folder *folder)
{
	return atomic_load(&folder->owner);
}

/*
 * The account, or NULL. The pending change delays gcr_folder_take_room() until
 * gcr_folder_end_change().
 */
static struct gcr_room *use_room(struct gcr_folder *folder)
{
	struct gcr_room *room;

	pthread_mutex_lock(&folder->lock);
	folder->changes++;
	room = folder->room;
	pthread_mutex_unlock(&folder->lock);
	return room;
}

uint64_t gcr_folder_resident_bytes(struct gcr_folder *folder)
{
	const struct gcr_room *room = use_room(folder);
	uint64_t bytes = room ? gcr_room_resident_bytes(room) : 0;

	gcr_folder_end_change(folder);
	return bytes;
}

int gcr_folder_take_growth(struct gcr_folder *folder, uint64_t bytes)
{
	struct gcr_room *room = use_room(folder);
	int result = room ? gcr_room_take(room, atomic_load(&folder->owner), bytes) : 0;

	gcr_folder_end_change(folder);
	return result;
}

void gcr_folder_recount(struct gcr_folder *folder, ino_t ino, uint64_t bytes)
{
	struct gcr_folder_inode *inode;
	GCR_LOCK_SCOPE(&folder->lock);

	inode = gcr_folder_inode_find(folder, ino);
	/* No user changes the file during a verb, so its change_lock is not needed. */
	if (inode)
		inode->counted_bytes = bytes + gcr_folder_packed_bytes(inode->packed);
}

void gcr_folder_settle_growth(struct gcr_folder *folder, uint64_t taken_bytes,
			      uint64_t before_bytes, uint64_t after_bytes)
{
	struct gcr_room *room = use_room(folder);

	if (room) {
		gcr_room_settle(room, taken_bytes, before_bytes, after_bytes);
		gcr_room_trim(room);
	}
	gcr_folder_end_change(folder);
}

/* ---- names ---- */

int gcr_folder_open_item(struct gcr_folder *folder, uint32_t item, int flags)
{
	char path[PATH_MAX];
	int result = folder->is_retired ? -ESTALE : gcr_folder_item_path(folder, item, path, NULL);

	return result < 0 ? result : gcr_beneath_open_path(folder->root_fd, path, flags);
}

int gcr_folder_open_directory(struct gcr_folder *folder, uint32_t item)
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
	_cleanup_close_ int parent_fd = gcr_folder_open_directory(folder, parent);
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
 * Subtracts lookups of items of a folder that is gone; its number is free after the last. The
 * caller holds folders.lock.
 */
static void forget_known_locked(uint32_t number, uint64_t count)
{
	struct gcr_folder_known **link = find_known_locked(number);
	struct gcr_folder_known *known = *link;

	if (!known)
		return;
	known->lookups -= count < known->lookups ? count : known->lookups;
	if (known->lookups)
		return;
	*link = known->next;
	free(known);
}

void gcr_folder_forget_of(uint32_t number, uint32_t item, uint64_t count)
{
	struct gcr_folder *folder;

	pthread_mutex_lock(&folders.lock);
	folder = find_locked(number);
	if (folder)
		gcr_folder_ref(folder);
	else
		forget_known_locked(number, count);
	pthread_mutex_unlock(&folders.lock);
	if (folder)
		gcr_folder_forget(folder, item, count);
	gcr_folder_unref(folder);
}

/*
 * The mode without set-id bits. No file gets these bits: a write, a truncation and a chown(2) would
 * have to clear them again, and the mount is nosuid, so that they are never needed. Directories may
 * have S_ISGID, by which they pass on their group.
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
	/* Sets the full mode: the umask has reduced the one given to open(2) or mkdir(2). */
	return change_mode(fd, mode);
}

static int mkdir_locked(struct gcr_folder *folder, uint32_t parent, const char *name, mode_t mode,
			uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry)
{
	_cleanup_close_ int parent_fd = gcr_folder_open_directory(folder, parent);
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
		folder->directories_made += !result;
		if (result < 0)
			gcr_folder_remove_entry(folder);
	}
	pthread_mutex_unlock(&folder->lock);
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
	result = gcr_beneath_list_fd(fd, &dir);
	if (result < 0)
		return result;
	while (!result && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
		    is_shown(DTTOIF(entry->d_type)))
			result = add(data, entry->d_name, entry->d_ino, DTTOIF(entry->d_type));
	return result;
}

/* ---- attributes ---- */

int gcr_folder_stat(struct gcr_folder *folder, uint32_t item, struct stat *ret_stat)
{
	const struct gcr_folder_item *place;
	_cleanup_close_ int fd = -1;

	GCR_LOCK_SCOPE(&folder->lock);
	place = item < folder->items_count ? &folder->items[item] : NULL;
	if (place && place->inode)
		return gcr_folder_stat_fd(folder, place->inode->fd, ret_stat);
	if (place && place->removed) {
		*ret_stat = *place->removed;
		return 0;
	}
	fd = gcr_folder_open_item(folder, item, O_PATH);
	return fd < 0 ? fd : gcr_folder_stat_fd(folder, fd, ret_stat);
}

/* Sets attributes by a descriptor, so that this works for a file without a name, too. -errno. */
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

/*
 * Sets attributes of an open inode, and counts root's changes of owner or mode: after one, earlier
 * opens are checked again. The kernel has no writes under way at this time, except asynchronous
 * ones.
 */
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

/* Sets attributes by name: the daemon need not be able to open the file. -errno. */
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

static void set_time(const struct timespec *wanted, struct timespec *time)
{
	if (wanted->tv_nsec == UTIME_NOW)
		clock_gettime(CLOCK_REALTIME, time);
	else if (wanted->tv_nsec != UTIME_OMIT)
		*time = *wanted;
}

/* Change the kept attributes of a removed file or directory that is not open. */
static void set_removed(const struct gcr_folder_attributes *attributes, struct stat *stat)
{
	if (attributes->uid != (uid_t)-1)
		stat->st_uid = attributes->uid;
	if (attributes->gid != (gid_t)-1)
		stat->st_gid = attributes->gid;
	if (attributes->has_mode)
		stat->st_mode = (stat->st_mode & S_IFMT) | mode_of(attributes->mode, stat->st_mode);
	set_time(&attributes->times[0], &stat->st_atim);
	set_time(&attributes->times[1], &stat->st_mtim);
	clock_gettime(CLOCK_REALTIME, &stat->st_ctim);
}

/* After a change of the root's owner, the whole folder counts for the new owner. Lock: folder. */
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
	const struct gcr_folder_item *place = item < folder->items_count ? &folder->items[item]
									 : NULL;
	_cleanup_close_ int parent_fd = -1;
	int result;

	if (place && place->inode)
		return set_of_open(attributes, place->inode);
	if (place && place->removed) {
		set_removed(attributes, place->removed);
		return 0;
	}
	if (item == GCR_FOLDER_ROOT)
		return set_root(folder, attributes);
	result = gcr_folder_item_check(folder, item);
	if (result < 0)
		return result;
	parent_fd = gcr_folder_open_directory(folder, folder->items[item].parent);
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

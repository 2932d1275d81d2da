/* SPDX-License-Identifier: MIT */
/*
 * Subtrees: creation and end, names and attributes. System calls on names are made with the
 * subtree's lock held: such calls are short, and no name changes between two of them.
 */
#include "fs/store/subtree_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/lock.h"

#define NUMBER_MASK ((1u << GCR_SUBTREE_NUMBER_BITS) - 1)

#define KNOWN_BUCKETS 4096 /* a power of two */

/* The number of a subtree that is gone, and of which the kernel still knows items. */
struct gcr_subtree_known {
	struct gcr_subtree_known *next; /* in the same bucket */
	uint32_t number;
	uint64_t lookups; /* that the kernel has yet to forget */
};

static struct {
	pthread_mutex_t lock;
	struct gcr_subtree *list;
	uint32_t last_number;
	struct gcr_subtree_known *known[KNOWN_BUCKETS];
} subtrees = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- creation and end ---- */

static void subtree_free(struct gcr_subtree *subtree)
{
	gcr_subtree_items_finish(subtree);
	gcr_subtree_packed_finish(subtree);
	if (subtree->root_fd >= 0)
		close(subtree->root_fd);
	pthread_cond_destroy(&subtree->has_no_change);
	pthread_mutex_destroy(&subtree->lock);
	pthread_mutex_destroy(&subtree->touch_lock);
	free(subtree->known);
	free(subtree);
}

GCR_DEFINE_CLEANUP(struct gcr_subtree *, subtree_free);

/* The subtree of this number, without a reference; NULL: none. The caller holds subtrees.lock. */
static struct gcr_subtree *find_locked(uint32_t number)
{
	struct gcr_subtree *subtree = subtrees.list;

	while (subtree && subtree->number != number)
		subtree = subtree->next;
	return subtree;
}

/* The link to the number's entry, or to the end of its bucket. The caller holds subtrees.lock. */
static struct gcr_subtree_known **find_known_locked(uint32_t number)
{
	struct gcr_subtree_known **link = &subtrees.known[number % KNOWN_BUCKETS];

	while (*link && (*link)->number != number)
		link = &(*link)->next;
	return link;
}

/*
 * Give the subtree a number that no subtree has, and under which the kernel knows no item of a
 * subtree that is gone. -ENFILE: there is no such number. The caller holds subtrees.lock.
 */
static int number_locked(struct gcr_subtree *subtree)
{
	uint32_t number = subtrees.last_number;

	do {
		number = (number + 1) & NUMBER_MASK;
		if (number == subtrees.last_number)
			return -ENFILE;
	} while (find_locked(number) || *find_known_locked(number));
	subtrees.last_number = subtree->number = number;
	return 0;
}

void gcr_subtree_set_last_number(uint32_t number)
{
	pthread_mutex_lock(&subtrees.lock);
	subtrees.last_number = number & NUMBER_MASK;
	pthread_mutex_unlock(&subtrees.lock);
}

/*
 * The user for whom the subtree counts: the owner of its directory or, if that is root (as in
 * dumps), the owner of the place.
 */
static uid_t owner_of(const struct gcr_subtree *subtree, const struct stat *stat)
{
	return stat->st_uid ? stat->st_uid : subtree->root_owner;
}

int gcr_subtree_create(const struct gcr_subtree_config *config, struct gcr_subtree **ret_subtree)
{
	_cleanup_(subtree_free_cleanup) struct gcr_subtree *subtree = calloc(1, sizeof(*subtree));
	struct stat stat;
	int result;

	if (!subtree)
		return -ENOMEM;
	atomic_init(&subtree->references, 1);
	pthread_mutex_init(&subtree->lock, NULL);
	pthread_mutex_init(&subtree->touch_lock, NULL);
	pthread_cond_init(&subtree->has_no_change, NULL);
	subtree->store = config->store;
	subtree->adopter = config->adopter;
	subtree->touch = config->touch;
	subtree->data = config->data;
	subtree->gives_away = !geteuid();
	subtree->tables_fd = -1;
	subtree->root_fd = fcntl(config->root_fd, F_DUPFD_CLOEXEC, 0);
	if (subtree->root_fd < 0 || fstat(subtree->root_fd, &stat) < 0)
		return -errno;
	subtree->root_owner = config->owner;
	subtree->pid = config->pid;
	subtree->start_ticks = config->start_ticks;
	atomic_init(&subtree->owner, owner_of(subtree, &stat));
	subtree->known = calloc(1, sizeof(*subtree->known));
	if (!subtree->known || gcr_subtree_items_init(subtree) < 0)
		return -ENOMEM;
	pthread_mutex_lock(&subtrees.lock);
	result = number_locked(subtree);
	if (!result) {
		subtree->next = subtrees.list;
		subtrees.list = subtree;
	}
	pthread_mutex_unlock(&subtrees.lock);
	if (result < 0)
		return result;
	*ret_subtree = TAKE_PTR(subtree);
	return 0;
}

struct gcr_subtree *gcr_subtree_ref(struct gcr_subtree *subtree)
{
	atomic_fetch_add(&subtree->references, 1);
	return subtree;
}

void gcr_subtree_unref(struct gcr_subtree *subtree)
{
	struct gcr_subtree **link = &subtrees.list;

	if (!subtree)
		return;
	pthread_mutex_lock(&subtrees.lock);
	if (atomic_fetch_sub(&subtree->references, 1) != 1) {
		pthread_mutex_unlock(&subtrees.lock);
		return;
	}
	while (*link != subtree)
		link = &(*link)->next;
	*link = subtree->next;
	if (subtree->lookups) {
		struct gcr_subtree_known *known = TAKE_PTR(subtree->known);

		*known = (struct gcr_subtree_known){.number = subtree->number,
						    .lookups = subtree->lookups};
		*find_known_locked(subtree->number) = known;
	}
	pthread_mutex_unlock(&subtrees.lock);
	subtree_free(subtree);
}

uint32_t gcr_subtree_number(const struct gcr_subtree *subtree)
{
	return subtree->number;
}

pid_t gcr_subtree_process(const struct gcr_subtree *subtree, uint64_t *ret_start_ticks)
{
	*ret_start_ticks = subtree->start_ticks;
	return subtree->pid;
}

int gcr_subtree_find(uint32_t number, struct gcr_subtree **ret_subtree)
{
	struct gcr_subtree *subtree;

	pthread_mutex_lock(&subtrees.lock);
	subtree = find_locked(number);
	if (subtree)
		*ret_subtree = gcr_subtree_ref(subtree);
	pthread_mutex_unlock(&subtrees.lock);
	return subtree ? 0 : -ESTALE;
}

/* ---- memory ---- */

int gcr_subtree_add_entry(struct gcr_subtree *subtree, uid_t uid)
{
	return subtree->room ? gcr_room_add_entry(subtree->room, uid) : 0;
}

void gcr_subtree_remove_entry(struct gcr_subtree *subtree)
{
	if (subtree->room)
		gcr_room_remove_entry(subtree->room);
}

void gcr_subtree_retire(struct gcr_subtree *subtree)
{
	pthread_mutex_lock(&subtree->lock);
	subtree->is_retired = true;
	if (subtree->room)
		gcr_room_close(subtree->room);
	while (subtree->changes)
		pthread_cond_wait(&subtree->has_no_change, &subtree->lock);
	pthread_mutex_unlock(&subtree->lock);
}

struct gcr_room *gcr_subtree_take_room(struct gcr_subtree *subtree)
{
	struct gcr_room *room;

	pthread_mutex_lock(&subtree->lock);
	while (subtree->changes)
		pthread_cond_wait(&subtree->has_no_change, &subtree->lock);
	room = TAKE_PTR(subtree->room);
	pthread_mutex_unlock(&subtree->lock);
	return room;
}

uid_t gcr_subtree_owner(const struct gcr_subtree *subtree)
{
	return atomic_load(&subtree->owner);
}

/*
 * The account, or NULL. The pending change delays gcr_subtree_take_room() until
 * gcr_subtree_end_change().
 */
static struct gcr_room *use_room(struct gcr_subtree *subtree)
{
	struct gcr_room *room;

	pthread_mutex_lock(&subtree->lock);
	subtree->changes++;
	room = subtree->room;
	pthread_mutex_unlock(&subtree->lock);
	return room;
}

uint64_t gcr_subtree_resident_bytes(struct gcr_subtree *subtree)
{
	const struct gcr_room *room = use_room(subtree);
	uint64_t bytes = room ? gcr_room_resident_bytes(room) : 0;

	gcr_subtree_end_change(subtree);
	return bytes;
}

int gcr_subtree_take_growth(struct gcr_subtree *subtree, uint64_t bytes)
{
	struct gcr_room *room = use_room(subtree);
	int result = room ? gcr_room_take(room, atomic_load(&subtree->owner), bytes) : 0;

	gcr_subtree_end_change(subtree);
	return result;
}

void gcr_subtree_recount(struct gcr_subtree *subtree, ino_t ino, uint64_t bytes)
{
	struct gcr_subtree_inode *inode;
	GCR_LOCK_SCOPE(&subtree->lock);

	inode = gcr_subtree_inode_find(subtree, ino);
	/* No user changes the file during a verb, so its change_lock is not needed. */
	if (inode)
		inode->counted_bytes = bytes + gcr_subtree_packed_bytes(inode->packed);
}

void gcr_subtree_finish_growth(struct gcr_subtree *subtree, uint64_t taken_bytes,
			       uint64_t before_bytes, uint64_t after_bytes)
{
	struct gcr_room *room = use_room(subtree);

	if (room) {
		gcr_room_recount(room, taken_bytes, before_bytes, after_bytes);
		gcr_room_trim(room);
	}
	gcr_subtree_end_change(subtree);
}

/* ---- names ---- */

int gcr_subtree_open_item(struct gcr_subtree *subtree, uint32_t item, int flags)
{
	char path[PATH_MAX];
	int result = subtree->is_retired ? -ESTALE
					 : gcr_subtree_item_path(subtree, item, path, NULL);

	return result < 0 ? result : gcr_beneath_open_path(subtree->root_fd, path, flags);
}

int gcr_subtree_open_directory(struct gcr_subtree *subtree, uint32_t item)
{
	return gcr_subtree_open_item(subtree, item, O_PATH | O_DIRECTORY);
}

static bool is_shown(mode_t mode)
{
	return S_ISREG(mode) || S_ISDIR(mode);
}

int gcr_subtree_make_entry(struct gcr_subtree *subtree, uint32_t parent, const char *name, int fd,
			   struct gcr_subtree_entry *ret_entry)
{
	struct gcr_subtree_entry entry;
	int result;

	result = gcr_subtree_stat_fd(subtree, fd, &entry.stat);
	if (result < 0)
		return result;
	if (!is_shown(entry.stat.st_mode))
		return -ENOENT;
	result = gcr_subtree_item_get(subtree, parent, name, &entry.item);
	if (result < 0)
		return result;
	entry.generation = subtree->items[entry.item].generation;
	*ret_entry = entry;
	return 0;
}

static int lookup_locked(struct gcr_subtree *subtree, uint32_t parent, const char *name,
			 struct gcr_subtree_entry *ret_entry)
{
	_cleanup_close_ int parent_fd = gcr_subtree_open_directory(subtree, parent);
	_cleanup_close_ int fd = -1;

	if (parent_fd < 0)
		return parent_fd;
	fd = openat(parent_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : gcr_subtree_make_entry(subtree, parent, name, fd, ret_entry);
}

int gcr_subtree_lookup(struct gcr_subtree *subtree, uint32_t parent, const char *name,
		       struct gcr_subtree_entry *ret_entry)
{
	int result;

	pthread_mutex_lock(&subtree->lock);
	result = lookup_locked(subtree, parent, name, ret_entry);
	pthread_mutex_unlock(&subtree->lock);
	return result;
}

void gcr_subtree_forget(struct gcr_subtree *subtree, uint32_t item, uint64_t count)
{
	pthread_mutex_lock(&subtree->lock);
	gcr_subtree_item_forget(subtree, item, count);
	pthread_mutex_unlock(&subtree->lock);
}

/*
 * Subtracts lookups of items of a subtree that is gone; its number is free after the last. The
 * caller holds subtrees.lock.
 */
static void forget_known_locked(uint32_t number, uint64_t count)
{
	struct gcr_subtree_known **link = find_known_locked(number);
	struct gcr_subtree_known *known = *link;

	if (!known)
		return;
	known->lookups -= count < known->lookups ? count : known->lookups;
	if (known->lookups)
		return;
	*link = known->next;
	free(known);
}

void gcr_subtree_forget_of(uint32_t number, uint32_t item, uint64_t count)
{
	struct gcr_subtree *subtree;

	pthread_mutex_lock(&subtrees.lock);
	subtree = find_locked(number);
	if (subtree)
		gcr_subtree_ref(subtree);
	else
		forget_known_locked(number, count);
	pthread_mutex_unlock(&subtrees.lock);
	if (subtree)
		gcr_subtree_forget(subtree, item, count);
	gcr_subtree_unref(subtree);
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

int gcr_subtree_give(const struct gcr_subtree *subtree, int parent_fd, int fd, mode_t mode,
		     uid_t uid, gid_t gid)
{
	struct stat parent;

	if (fstat(parent_fd, &parent) < 0)
		return -errno;
	if (parent.st_mode & S_ISGID)
		gid = parent.st_gid;
	if (subtree->gives_away && fchown(fd, uid, gid) < 0)
		return -errno;
	/* Sets the full mode: the umask has reduced the one given to open(2) or mkdir(2). */
	return change_mode(fd, mode);
}

static int mkdir_locked(struct gcr_subtree *subtree, uint32_t parent, const char *name, mode_t mode,
			uid_t uid, gid_t gid, struct gcr_subtree_entry *ret_entry)
{
	_cleanup_close_ int parent_fd = gcr_subtree_open_directory(subtree, parent);
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	struct stat stat;
	unsigned int depth;
	int result;

	if (parent_fd < 0)
		return parent_fd;
	result = gcr_subtree_item_path(subtree, parent, path, &depth);
	if (!result && depth >= GCR_STORE_DEPTH_MAX)
		result = -ENAMETOOLONG;
	if (result < 0)
		return result;
	if (mkdirat(parent_fd, name, 0700) < 0)
		return -errno;
	fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	result = fd < 0 || fstat(parent_fd, &stat) < 0 ? -errno : 0;
	if (!result)
		result = gcr_subtree_give(subtree, parent_fd, fd, mode | (stat.st_mode & S_ISGID),
					  uid, gid);
	if (!result)
		result = gcr_subtree_make_entry(subtree, parent, name, fd, ret_entry);
	if (result < 0)
		unlinkat(parent_fd, name, AT_REMOVEDIR);
	return result;
}

int gcr_subtree_mkdir(struct gcr_subtree *subtree, uint32_t parent, const char *name, mode_t mode,
		      uid_t uid, gid_t gid, struct gcr_subtree_entry *ret_entry)
{
	int result = gcr_subtree_lock_names(subtree);

	if (result < 0)
		return result;
	result = gcr_subtree_add_entry(subtree, uid);
	if (!result) {
		result = mkdir_locked(subtree, parent, name, mode, uid, gid, ret_entry);
		subtree->directories_made += !result;
		if (result < 0)
			gcr_subtree_remove_entry(subtree);
	}
	pthread_mutex_unlock(&subtree->lock);
	return result;
}

int gcr_subtree_list(struct gcr_subtree *subtree, uint32_t item,
		     int (*add)(void *data, const char *name, ino_t ino, mode_t mode), void *data)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = 0;
	int fd;

	pthread_mutex_lock(&subtree->lock);
	fd = gcr_subtree_open_item(subtree, item, O_RDONLY | O_DIRECTORY);
	pthread_mutex_unlock(&subtree->lock);
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

int gcr_subtree_stat(struct gcr_subtree *subtree, uint32_t item, struct stat *ret_stat)
{
	const struct gcr_subtree_item *place;
	_cleanup_close_ int fd = -1;

	GCR_LOCK_SCOPE(&subtree->lock);
	place = item < subtree->items_count ? &subtree->items[item] : NULL;
	if (place && place->inode)
		return gcr_subtree_stat_fd(subtree, place->inode->fd, ret_stat);
	if (place && place->removed) {
		*ret_stat = *place->removed;
		return 0;
	}
	fd = gcr_subtree_open_item(subtree, item, O_PATH);
	return fd < 0 ? fd : gcr_subtree_stat_fd(subtree, fd, ret_stat);
}

/* Sets attributes by a descriptor, so that this works for a file without a name, too. -errno. */
static int set_by_fd(const struct gcr_subtree_attributes *attributes, int fd)
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
static int set_of_open(const struct gcr_subtree_attributes *attributes,
		       struct gcr_subtree_inode *inode)
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
static int set_by_name(const struct gcr_subtree_attributes *attributes, int parent_fd,
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
static void set_removed(const struct gcr_subtree_attributes *attributes, struct stat *stat)
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

/*
 * Sets attributes of the root. After a change of its owner the whole subtree counts for the new
 * owner. -errno. Lock: subtree.
 */
static int set_root(struct gcr_subtree *subtree, const struct gcr_subtree_attributes *attributes)
{
	int result = set_by_fd(attributes, subtree->root_fd);
	struct stat stat;

	if (!fstat(subtree->root_fd, &stat)) {
		atomic_store(&subtree->owner, owner_of(subtree, &stat));
		if (subtree->room)
			gcr_room_set_owner(subtree->room, owner_of(subtree, &stat));
	}
	return result;
}

static int set_locked(struct gcr_subtree *subtree, uint32_t item,
		      const struct gcr_subtree_attributes *attributes)
{
	const struct gcr_subtree_item *place = item < subtree->items_count ? &subtree->items[item]
									   : NULL;
	_cleanup_close_ int parent_fd = -1;
	int result;

	if (place && place->inode)
		return set_of_open(attributes, place->inode);
	if (place && place->removed) {
		set_removed(attributes, place->removed);
		return 0;
	}
	if (item == GCR_SUBTREE_ROOT)
		return set_root(subtree, attributes);
	result = gcr_subtree_item_check(subtree, item);
	if (result < 0)
		return result;
	parent_fd = gcr_subtree_open_directory(subtree, subtree->items[item].parent);
	if (parent_fd < 0)
		return parent_fd;
	return set_by_name(attributes, parent_fd, subtree->items[item].name);
}

int gcr_subtree_set(struct gcr_subtree *subtree, uint32_t item,
		    const struct gcr_subtree_attributes *attributes)
{
	int result = gcr_subtree_lock_names(subtree);

	if (result < 0)
		return result;
	result = set_locked(subtree, item, attributes);
	pthread_mutex_unlock(&subtree->lock);
	return result;
}

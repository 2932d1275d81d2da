/* SPDX-License-Identifier: MIT */
/*
 * The directory on a disk. Its path is checked once, and then used by descriptors. spill->lock is
 * held while files and directories of users are created and removed, so that none is removed while
 * another thread is about to use it; count_lock guards the sums, and is a leaf.
 */
#include "fs/pack/spill.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/pack/spill_private.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/lock.h"
#include "lib/pack_file.h"

struct gcr_spill {
	/* Fixed for life. */
	int store_fd;
	int path_fd; /* of DIR; -1: none; then the next three are unset, too */
	int home_fd; /* of the store's directory in DIR */
	char *path;  /* DIR, with symbolic links resolved */
	char *home;
	char *left; /* an earlier daemon's directory of this store; or NULL */
	uint64_t limit_bytes;

	pthread_mutex_t lock; /* see above */

	pthread_mutex_t count_lock; /* guards the fields below */
	uint64_t used_bytes;
};

/* ---- checks of owners ---- */

/* Opens a directory, by its path or by a name in @parent_fd; NULL: see errno. */
static DIR *open_list(int parent_fd, const char *name)
{
	int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = NULL;

	if (fd >= 0)
		gcr_beneath_list_fd(fd, &dir);
	return dir;
}

static int open_directory(int parent_fd, const char *name)
{
	int fd = openat(parent_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/*
 * Checks that a file we created is ours and inaccessible to others. Some file systems assign all
 * files to one user and let everybody read them. -EPERM.
 */
static int check_private(int fd)
{
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return -errno;
	return stat.st_uid == geteuid() && !(stat.st_mode & 077) ? 0 : -EPERM;
}

/*
 * For a directory on the way to DIR: can no other user replace the next component? The owner of /
 * can in any case; in a user namespace that owner is an unknown user.
 */
static bool is_safe_way(const struct stat *stat, const struct stat *root)
{
	bool is_ours = !stat->st_uid || stat->st_uid == geteuid() || stat->st_uid == root->st_uid;

	return is_ours && (!(stat->st_mode & 022) || stat->st_mode & S_ISVTX);
}

/*
 * Opens the directory @path one component after the other, so that the directory checked is the one
 * used. @given: the path in the option, for messages. Returns a descriptor, the caller's, or
 * -errno; -EPERM: another user could replace a component. Sets @error.
 */
static int walk(const char *path, const char *given, struct gcr_error *error)
{
	_cleanup_close_ int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_free_ char *copy = strdup(path);
	struct stat root;
	struct stat stat;
	char *rest = NULL;

	if (!copy)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (fd < 0 || fstat(fd, &root) < 0)
		return gcr_error_set(error, errno, "spill=%s: /: %s", given, strerror(errno));
	stat = root;
	for (char *name = strtok_r(copy, "/", &rest); name; name = strtok_r(NULL, "/", &rest)) {
		int next;

		if (!is_safe_way(&stat, &root))
			return gcr_error_set(error, EPERM,
					     "spill=%s: %.*s belongs to somebody else, or others "
					     "can write to it",
					     given, (int)(name - copy), path);
		next = open_directory(fd, name);
		if (next < 0)
			return gcr_error_set(error, -next, "spill=%s: %s", given, strerror(-next));
		close(fd);
		fd = next;
		if (fstat(fd, &stat) < 0)
			return gcr_error_set(error, errno, "spill=%s: %s", given, strerror(errno));
	}
	if (stat.st_uid != geteuid() || stat.st_mode & 022)
		return gcr_error_set(error, EPERM,
				     "spill=%s: it belongs to somebody else, or others can write "
				     "to it",
				     given);
	return TAKE_FD(fd);
}

/*
 * Opens DIR. A missing directory is not created, for the disk may not be mounted. -errno; sets
 * @error.
 */
static int open_path(struct gcr_spill *spill, const char *given, struct gcr_error *error)
{
	_cleanup_close_ int fd = -1;
	struct statfs statfs;

	spill->path = realpath(given, NULL);
	if (!spill->path)
		return gcr_error_set(error, errno, "spill=%s: %s%s", given, strerror(errno),
				     errno == ENOENT ? ": the directory has to be there" : "");
	fd = walk(spill->path, given, error);
	if (fd < 0)
		return fd;
	spill->path_fd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (spill->path_fd < 0)
		return gcr_error_set(error, errno, "spill=%s: %s", given, strerror(errno));
	if (!fstatfs(fd, &statfs) && (statfs.f_type == TMPFS_MAGIC || statfs.f_type == RAMFS_MAGIC))
		gcr_log(LOG_WARNING, 0, "spill=%s is in memory, and gains none", given);
	return 0;
}

/* ---- links in the store ---- */

/* Visits a link to a segment. True: stop the iteration. */
typedef bool use_link(const char *target, const struct gcr_spill_place *place, const void *data);

static bool read_target(int fd, const char *name, char ret_target[PATH_MAX])
{
	ssize_t length = readlinkat(fd, name, ret_target, PATH_MAX - 1);

	if (length < 0)
		return false;
	ret_target[length] = '\0';
	return true;
}

/* Calls @use for the segments on a disk until it returns true. Returns true if it did for one. */
static bool each_link(int store_fd, use_link *use, const void *data)
{
	_cleanup_closedir_ DIR *users = open_list(store_fd, GCR_PACKS_NAME);
	const struct dirent *user;
	bool is_enough = false;

	while (users && !is_enough && (user = readdir(users))) {
		_cleanup_closedir_ DIR *segments = NULL;
		const struct dirent *segment;

		if (gcr_spill_parse_number(user->d_name) < 0)
			continue;
		segments = open_list(dirfd(users), user->d_name);
		while (segments && !is_enough && (segment = readdir(segments))) {
			struct gcr_spill_place place;
			char target[PATH_MAX];

			is_enough = gcr_spill_parse_number(segment->d_name) >= 0 &&
				    read_target(dirfd(segments), segment->d_name, target) &&
				    gcr_spill_find_place(target, &place) &&
				    use(target, &place, data);
		}
	}
	return is_enough;
}

static bool is_any(const char *target, const struct gcr_spill_place *place, const void *data)
{
	return true;
}

/*
 * Is the link's target in a store's directory in DIR that does not exist? Then another disk is
 * mounted at DIR now.
 */
static bool is_lost(const char *target, const struct gcr_spill_place *place, const void *data)
{
	const struct gcr_spill *spill = data;
	char name[GCR_SPILL_NAME_LENGTH + 1];
	size_t length = strlen(spill->path);
	struct stat stat;

	length -= spill->path[length - 1] == '/';
	if (place->home - 1 != length || strncmp(target, spill->path, length) != 0)
		return false;
	memcpy(name, target + place->home, GCR_SPILL_NAME_LENGTH);
	name[GCR_SPILL_NAME_LENGTH] = '\0';
	return fstatat(spill->path_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0;
}

/*
 * Does the link in the store name this file of its directory? The beginning of the path may differ:
 * the disk may have been mounted elsewhere.
 */
static bool is_named(int store_fd, const char *home, const char *uid, const char *file)
{
	char name[sizeof(GCR_PACKS_NAME) + 2 * GCR_SPILL_NUMBER_BYTES];
	char end[1 + GCR_SPILL_NAME_LENGTH + GCR_SPILL_NUMBER_BYTES + GCR_SPILL_FILE_BYTES];
	char target[PATH_MAX];
	size_t end_length;
	size_t length;

	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%s/%" PRIu32, uid,
		 (uint32_t)gcr_spill_parse_file_name(file));
	/* In doubt keep the file. */
	if (!read_target(store_fd, name, target))
		return errno != ENOENT && errno != ENOTDIR && errno != EINVAL;
	snprintf(end, sizeof(end), "/%s/%s/%s", home, uid, file);
	end_length = strlen(end);
	length = strlen(target);
	return length >= end_length && !strcmp(target + length - end_length, end);
}

/* ---- removal ---- */

/* Removes a user's files that no link of the store names; all of them if @store_fd is -1. */
static void tidy_user(int store_fd, const char *home, int home_fd, const char *uid)
{
	_cleanup_closedir_ DIR *files = open_list(home_fd, uid);
	const struct dirent *file;

	while (files && (file = readdir(files))) {
		struct stat stat;

		if (gcr_spill_parse_file_name(file->d_name) < 0 ||
		    fstatat(dirfd(files), file->d_name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(stat.st_mode) || stat.st_uid != geteuid())
			continue;
		if (store_fd < 0 || !is_named(store_fd, home, uid, file->d_name))
			unlinkat(dirfd(files), file->d_name, 0);
	}
}

/*
 * Removes the files of all users as tidy_user() does, and empty directories; other files stay.
 * @path is a path, or a name in @parent_fd. False: something is left.
 */
static bool tidy(int store_fd, int parent_fd, const char *path)
{
	_cleanup_closedir_ DIR *users = open_list(parent_fd, path);
	const char *slash = strrchr(path, '/');
	const struct dirent *user;
	struct stat stat;

	if (!users)
		return errno == ENOENT;
	if (fstat(dirfd(users), &stat) < 0 || stat.st_uid != geteuid())
		return false;
	while ((user = readdir(users))) {
		if (gcr_spill_parse_number(user->d_name) < 0)
			continue;
		tidy_user(store_fd, slash ? slash + 1 : path, dirfd(users), user->d_name);
		unlinkat(dirfd(users), user->d_name, AT_REMOVEDIR);
	}
	return !unlinkat(parent_fd, path, AT_REMOVEDIR);
}

/* Removes directories of this machine's earlier boots, whose stores no longer exist. */
static void remove_orphans(const struct gcr_spill *spill, const struct gcr_spill_identity *identity)
{
	_cleanup_closedir_ DIR *dir = open_list(spill->path_fd, ".");
	const struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		struct stat stat;

		if (!gcr_spill_is_name(entry->d_name) ||
		    !gcr_spill_is_of_machine(entry->d_name, identity) ||
		    gcr_spill_is_of_boot(entry->d_name, identity))
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISDIR(stat.st_mode) || stat.st_uid != geteuid())
			continue;
		gcr_log(LOG_NOTICE, 0, "%s/%s is of a store that is gone, and is removed",
			spill->path, entry->d_name);
		tidy(-1, dirfd(dir), entry->d_name);
	}
}

/* ---- life ---- */

#define LINK	 GCR_PACKS_NAME "/" GCR_SPILL_NAME
#define NEW_LINK GCR_PACKS_NAME "/." GCR_SPILL_NAME

/*
 * The path of the store's directory, from the link in the store; the caller frees it. NULL: none.
 */
static char *read_link(int store_fd)
{
	char target[PATH_MAX];

	if (!read_target(store_fd, LINK, target) || *target != '/')
		return NULL;
	return gcr_spill_is_name(strrchr(target, '/') + 1) ? strdup(target) : NULL;
}

static int write_link(const struct gcr_spill *spill)
{
	int result;

	/* An unchanged link is kept: the store may be full. */
	if (spill->left && !strcmp(spill->left, spill->home))
		return 0;
	if (mkdirat(spill->store_fd, GCR_PACKS_NAME, 0700) < 0 && errno != EEXIST)
		return -errno;
	if (!symlinkat(spill->home, spill->store_fd, NEW_LINK) &&
	    !renameat(spill->store_fd, NEW_LINK, spill->store_fd, LINK))
		return 0;
	result = -errno;
	unlinkat(spill->store_fd, NEW_LINK, 0);
	unlinkat(spill->store_fd, GCR_PACKS_NAME, AT_REMOVEDIR);
	return result;
}

static const char *home_name(const struct gcr_spill *spill)
{
	return strrchr(spill->home, '/') + 1;
}

static int set_home(struct gcr_spill *spill, const struct gcr_spill_identity *identity)
{
	char name[GCR_SPILL_NAME_LENGTH + 1];
	const char *before = spill->left ? strrchr(spill->left, '/') + 1 : NULL;
	int result = 0;

	if (before && gcr_spill_is_of_boot(before, identity))
		memcpy(name, before, sizeof(name));
	else
		result = gcr_spill_make_name(identity, name);
	if (result < 0)
		return result;
	if (asprintf(&spill->home, "%s/%s", strcmp(spill->path, "/") ? spill->path : "", name) <
	    0) {
		spill->home = NULL;
		return -ENOMEM;
	}
	return 0;
}

/* Opens the store's directory, which shows whether it is writable and inaccessible to others. */
static int open_home(struct gcr_spill *spill)
{
	const char *name = home_name(spill);
	int result = 0;
	int fd;

	if (mkdirat(spill->path_fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(spill->path_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	spill->home_fd = fd;
	result = check_private(fd);
	if (!result)
		result = write_link(spill);
	if (result < 0)
		unlinkat(spill->path_fd, name, AT_REMOVEDIR);
	return result;
}

static int set_limit(struct gcr_spill *spill, const struct gcr_spill_options *options)
{
	struct statvfs disk;

	spill->limit_bytes = options->limit_bytes;
	if (!options->limit_percent)
		return 0;
	if (fstatvfs(spill->path_fd, &disk) < 0)
		return -errno;
	spill->limit_bytes =
		(uint64_t)disk.f_blocks * (uint64_t)disk.f_frsize / 100 * options->limit_percent;
	return 0;
}

static int turn_on(struct gcr_spill *spill, const struct gcr_spill_options *options,
		   struct gcr_error *error)
{
	struct gcr_spill_identity identity;
	int result = open_path(spill, options->path, error);

	if (result < 0)
		return result;
	if (each_link(spill->store_fd, is_lost, spill))
		return gcr_error_set(error, ENODEV,
				     "spill=%s: packed VRAM of this store was put there, and is "
				     "not there now: is the disk mounted?",
				     options->path);
	result = gcr_spill_identify(&identity);
	if (!result)
		result = set_limit(spill, options);
	if (!result)
		result = set_home(spill, &identity);
	if (!result) {
		remove_orphans(spill, &identity);
		tidy(spill->store_fd, spill->path_fd, home_name(spill));
		result = open_home(spill);
	}
	if (result == -EPERM)
		return gcr_error_set(error, EPERM,
				     "spill=%s: nothing can be made there that others cannot "
				     "read: it needs a file system with owners and modes",
				     options->path);
	return result < 0 ? gcr_error_set(error, -result, "spill=%s: %s", options->path,
					  strerror(-result))
			  : 0;
}

static void turn_off(struct gcr_spill *spill)
{
	if (spill->home_fd >= 0)
		close(TAKE_FD(spill->home_fd));
	if (spill->path_fd >= 0)
		close(TAKE_FD(spill->path_fd));
	free(TAKE_PTR(spill->home));
	free(TAKE_PTR(spill->path));
}

static void spill_free(struct gcr_spill *spill)
{
	turn_off(spill);
	free(spill->left);
	pthread_mutex_destroy(&spill->lock);
	pthread_mutex_destroy(&spill->count_lock);
	free(spill);
}

int gcr_spill_open(int store_fd, const struct gcr_spill_options *options,
		   struct gcr_spill **ret_spill, struct gcr_error *error)
{
	struct gcr_spill *spill = calloc(1, sizeof(*spill));
	struct gcr_error why = {0};
	bool is_left;
	int result = 0;

	if (!spill)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_init(&spill->lock, NULL);
	pthread_mutex_init(&spill->count_lock, NULL);
	spill->store_fd = store_fd;
	spill->path_fd = -1;
	spill->home_fd = -1;
	spill->limit_bytes = UINT64_MAX;
	/* Left by a daemon that was killed. */
	unlinkat(store_fd, NEW_LINK, 0);
	spill->left = read_link(store_fd);
	is_left = spill->left && !tidy(store_fd, AT_FDCWD, spill->left);
	if (options->path)
		result = turn_on(spill, options, &why);
	if (is_left && spill->home && strcmp(spill->left, spill->home) != 0)
		gcr_log(LOG_NOTICE, 0, "packed VRAM in %s stays there until it is not needed",
			spill->left);
	if (result < 0 && each_link(store_fd, is_any, NULL)) {
		/* Segments that are in memory can be thawed without the disk. */
		gcr_log(LOG_WARNING, 0, "%s; until the next start nothing more goes there",
			why.words);
		turn_off(spill);
		result = 0;
	}
	if (result < 0) {
		spill_free(spill);
		return gcr_error_set(error, -result, "%s", why.words);
	}
	*ret_spill = spill;
	return 0;
}

/* Does any user have segments? In doubt: yes. */
static bool has_users(int store_fd)
{
	_cleanup_closedir_ DIR *dir = open_list(store_fd, GCR_PACKS_NAME);
	const struct dirent *entry;

	if (!dir)
		return errno != ENOENT;
	while ((entry = readdir(dir)))
		if (gcr_spill_parse_number(entry->d_name) >= 0)
			return true;
	return false;
}

void gcr_spill_close(struct gcr_spill *spill)
{
	const char *left = NULL;

	if (!spill)
		return;
	/* Removes unfinished copies and empty directories. */
	if (spill->home && !tidy(spill->store_fd, spill->path_fd, home_name(spill)))
		left = spill->home;
	if (spill->left && !tidy(spill->store_fd, AT_FDCWD, spill->left))
		left = spill->left;
	if (!has_users(spill->store_fd)) {
		if (left)
			gcr_log(LOG_WARNING, 0, "%s cannot be removed, and is left", left);
		unlinkat(spill->store_fd, LINK, 0);
		unlinkat(spill->store_fd, GCR_PACKS_NAME, AT_REMOVEDIR);
	}
	spill_free(spill);
}

bool gcr_spill_is_on(const struct gcr_spill *spill)
{
	return spill && spill->home;
}

/* ---- the account ---- */

int gcr_spill_take(struct gcr_spill *spill, uint64_t bytes, struct gcr_error *error)
{
	struct statvfs disk;
	uint64_t room;

	/*
	 * Charge the limit before the disk is queried, so that concurrent callers do not get the
	 * same bytes.
	 */
	pthread_mutex_lock(&spill->count_lock);
	room = spill->used_bytes < spill->limit_bytes ? spill->limit_bytes - spill->used_bytes : 0;
	if (bytes <= room)
		spill->used_bytes += bytes;
	pthread_mutex_unlock(&spill->count_lock);
	if (bytes > room)
		return gcr_error_set(error, ENOSPC,
				     "spill_size: %" PRIu64 " MiB more are needed, %" PRIu64
				     " of its %" PRIu64 " MiB are free",
				     bytes >> 20, room >> 20, spill->limit_bytes >> 20);
	room = UINT64_MAX;
	if (!fstatvfs(spill->home_fd, &disk))
		room = (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
	if (bytes <= room)
		return 0;
	gcr_spill_give(spill, bytes);
	return gcr_error_set(error, ENOSPC,
			     "%s is full: %" PRIu64 " MiB more are needed, %" PRIu64
			     " MiB are free",
			     spill->path, bytes >> 20, room >> 20);
}

int gcr_spill_room(struct gcr_spill *spill, uint64_t *ret_bytes)
{
	struct statvfs disk;
	uint64_t bytes;

	if (!gcr_spill_is_on(spill))
		return -EOPNOTSUPP;
	if (fstatvfs(spill->home_fd, &disk) < 0)
		return -errno;
	GCR_LOCK_SCOPE(&spill->count_lock);
	bytes = spill->used_bytes + (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
	*ret_bytes = bytes < spill->limit_bytes ? bytes : spill->limit_bytes;
	return 0;
}

void gcr_spill_take_there(struct gcr_spill *spill, uint64_t bytes)
{
	if (!spill)
		return;
	GCR_LOCK_SCOPE(&spill->count_lock);
	spill->used_bytes += bytes;
}

void gcr_spill_give(struct gcr_spill *spill, uint64_t bytes)
{
	if (!spill)
		return;
	GCR_LOCK_SCOPE(&spill->count_lock);
	spill->used_bytes -= bytes;
}

/* ---- files ---- */

/* Opens a user's directory in ours, creating it if necessary. -errno. */
static int make_user(const struct gcr_spill *spill, const char *name)
{
	_cleanup_close_ int fd = -1;
	int result;

	if (mkdirat(spill->home_fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = open_directory(spill->home_fd, name);
	result = fd < 0 ? fd : check_private(fd);
	return result < 0 ? result : TAKE_FD(fd);
}

static int create_file(const struct gcr_spill *spill, const char *user, const char *name)
{
	_cleanup_close_ int user_fd = make_user(spill, user);
	int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	_cleanup_close_ int fd = user_fd < 0 ? user_fd : openat(user_fd, name, flags, 0600);
	int result = user_fd < 0 ? user_fd : fd < 0 ? -errno : 0;

	if (!result) {
		result = check_private(fd);
		if (result < 0)
			unlinkat(user_fd, name, 0);
	}
	if (!result)
		return TAKE_FD(fd);
	unlinkat(spill->home_fd, user, AT_REMOVEDIR);
	return result;
}

int gcr_spill_create_file(struct gcr_spill *spill, uid_t uid, uint32_t number, char **ret_path)
{
	char user[GCR_SPILL_NUMBER_BYTES];
	char name[GCR_SPILL_FILE_BYTES];
	_cleanup_free_ char *path = NULL;
	int result = gcr_spill_make_file_name(number, name);

	if (result < 0)
		return result;
	snprintf(user, sizeof(user), "%" PRIu32, (uint32_t)uid);
	if (asprintf(&path, "%s/%s/%s", spill->home, user, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	GCR_LOCK_SCOPE(&spill->lock);
	result = create_file(spill, user, name);
	if (result >= 0)
		*ret_path = TAKE_PTR(path);
	return result;
}

/*
 * Opens an existing file that is one of our segments; changes nothing. -EPROTO: the file is none.
 */
static int open_file(int user_fd, const char *name, int flags)
{
	_cleanup_close_ int fd = openat(user_fd, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	struct stat stat;

	if (fd < 0 || fstat(fd, &stat) < 0)
		return -errno;
	if (!S_ISREG(stat.st_mode) || stat.st_uid != geteuid() ||
	    stat.st_size != GCR_PACK_SEGMENT_BYTES)
		return -EPROTO;
	return TAKE_FD(fd);
}

/* Opens the store's directory that the path contains; ours is open already. -errno. */
static int open_home_of(const struct gcr_spill *spill, const char *path,
			const struct gcr_spill_place *place)
{
	_cleanup_free_ char *home = strndup(path, place->user - 1);

	if (!home)
		return -ENOMEM;
	if (gcr_spill_is_on(spill) && !strcmp(home, spill->home))
		return open_directory(spill->home_fd, ".");
	return open_directory(AT_FDCWD, home);
}

static int open_user_of(int home_fd, const char *path, const struct gcr_spill_place *place)
{
	_cleanup_free_ char *user = strndup(path + place->user, place->file - place->user - 1);

	return user ? open_directory(home_fd, user) : -ENOMEM;
}

/*
 * Opens the file of @path in the store's directory @home_fd, for reading only if the file cannot be
 * written. Closes @home_fd; a negative @home_fd is returned as the error.
 */
static int open_in(int home_fd, const char *path, const struct gcr_spill_place *place)
{
	_cleanup_close_ int own_fd = home_fd;
	_cleanup_close_ int user_fd = home_fd < 0 ? home_fd : open_user_of(home_fd, path, place);
	int fd;

	if (user_fd < 0)
		return user_fd;
	fd = open_file(user_fd, path + place->file, O_RDWR);
	if (fd == -EROFS || fd == -EACCES || fd == -EPERM)
		fd = open_file(user_fd, path + place->file, O_RDONLY);
	return fd;
}

int gcr_spill_open_file(const struct gcr_spill *spill, const char *path)
{
	struct gcr_spill_place place;

	if (!gcr_spill_find_place(path, &place))
		return -EPROTO;
	return open_in(open_home_of(spill, path, &place), path, &place);
}

int gcr_spill_find_file(const struct gcr_spill *spill, const char *path, char **ret_path)
{
	_cleanup_free_ char *found = NULL;
	struct gcr_spill_place place;
	int fd;

	if (!gcr_spill_find_place(path, &place))
		return -EPROTO;
	if (!gcr_spill_is_on(spill) ||
	    strncmp(path + place.home, home_name(spill), GCR_SPILL_NAME_LENGTH) != 0)
		return -ENOENT;
	if (asprintf(&found, "%s/%s", spill->home, path + place.user) < 0) {
		found = NULL;
		return -ENOMEM;
	}
	fd = open_in(open_directory(spill->home_fd, "."), path, &place);
	if (fd >= 0)
		*ret_path = TAKE_PTR(found);
	return fd;
}

static int remove_file(const struct gcr_spill *spill, const char *path,
		       const struct gcr_spill_place *place)
{
	_cleanup_free_ char *user = strndup(path + place->user, place->file - place->user - 1);
	_cleanup_free_ char *home = strndup(path, place->user - 1);
	_cleanup_close_ int home_fd = open_home_of(spill, path, place);
	_cleanup_close_ int user_fd = -1;
	int result;

	if (!user || !home)
		return -ENOMEM;
	if (home_fd < 0)
		return home_fd;
	user_fd = open_directory(home_fd, user);
	if (user_fd < 0)
		return user_fd;
	result = unlinkat(user_fd, path + place->file, 0) < 0 ? -errno : 0;
	unlinkat(home_fd, user, AT_REMOVEDIR);
	if (!gcr_spill_is_on(spill) || strcmp(home, spill->home) != 0)
		rmdir(home);
	return result;
}

int gcr_spill_remove_file(struct gcr_spill *spill, const char *path)
{
	struct gcr_spill_place place;
	int result;

	if (!gcr_spill_find_place(path, &place))
		return -EPROTO;
	if (spill)
		pthread_mutex_lock(&spill->lock);
	result = remove_file(spill, path, &place);
	if (spill)
		pthread_mutex_unlock(&spill->lock);
	return result;
}

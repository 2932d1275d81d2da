/* SPDX-License-Identifier: MIT */
/*
 * The directory on a disk. spill->lock is held while files and directories of it come and go, so
 * that none is removed under who is about to use it; count_lock guards the sums, and is a leaf.
 */
#include "fs/spill.h"

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
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fs/log.h"
#include "lib/cleanup.h"
#include "lib/lock.h"
#include "lib/pack_file.h"

#define PREFIX	      "gpucrfs-"
/*
 * Of the identifier of a machine, and of a boot: hexadecimal digits. Half of them are enough to
 * tell, and a link of at most 127 bytes takes no page of the store, which may be full.
 */
#define ID_DIGITS     32
#define ID_LENGTH     16
#define RANDOM_LENGTH 16
#define NAME_LENGTH   (sizeof(PREFIX) - 1 + 2 * (ID_LENGTH + 1) + RANDOM_LENGTH)
#define NUMBER_BYTES  16
/* <number>-<random>: a number may come again, after a restart, a path never does. */
#define FILE_BYTES    (NUMBER_BYTES + 1 + RANDOM_LENGTH)

struct gcr_spill {
	/* fixed for life */
	int store_fd;
	char *path; /* DIR; NULL: there is none */
	char *home; /* the store's directory in it */
	char *left; /* where an earlier daemon's were, if that is elsewhere; or NULL */
	uint64_t limit_bytes;

	pthread_mutex_t lock; /* see above */

	pthread_mutex_t count_lock; /* guards what follows */
	uint64_t used_bytes;
};

/* ---- names ---- */

static bool is_hex(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (!strchr("0123456789abcdef", text[i]) || !text[i])
			return false;
	return true;
}

/* Those of this machine and this boot, as they stand in a name. */
struct identity {
	char machine[ID_LENGTH + 1];
	char boot[ID_LENGTH + 1];
	bool has_machine;
};

static bool is_name(const char *name)
{
	const char *machine = name + sizeof(PREFIX) - 1;
	const char *boot = machine + ID_LENGTH + 1;
	const char *random = boot + ID_LENGTH + 1;

	return strlen(name) == NAME_LENGTH && !strncmp(name, PREFIX, sizeof(PREFIX) - 1) &&
	       is_hex(machine, ID_LENGTH) && machine[ID_LENGTH] == '-' && is_hex(boot, ID_LENGTH) &&
	       boot[ID_LENGTH] == '-' && is_hex(random, RANDOM_LENGTH);
}

static bool is_of_machine(const char *name, const struct identity *identity)
{
	return identity->has_machine &&
	       !strncmp(name + sizeof(PREFIX) - 1, identity->machine, ID_LENGTH);
}

static bool is_of_boot(const char *name, const struct identity *identity)
{
	return !strncmp(name + sizeof(PREFIX) + ID_LENGTH, identity->boot, ID_LENGTH);
}

/* The first digits of an identifier, with or without hyphens. -EPROTO: it is none. */
static int read_id(const char *path, char ret_id[ID_LENGTH + 1])
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t count = 0;
	ssize_t length;
	char text[64];

	if (fd < 0)
		return -errno;
	length = read(fd, text, sizeof(text));
	if (length < 0)
		return -errno;
	for (ssize_t i = 0; i < length && text[i] != '\n'; i++) {
		if (text[i] == '-')
			continue;
		if (!is_hex(&text[i], 1) || count == ID_DIGITS)
			return -EPROTO;
		if (count < ID_LENGTH)
			ret_id[count] = text[i];
		count++;
	}
	ret_id[ID_LENGTH] = '\0';
	return count == ID_DIGITS ? 0 : -EPROTO;
}

/* Without a machine's identifier nothing is taken for its own. */
static int identify(struct identity *ret_identity)
{
	*ret_identity = (struct identity){0};
	ret_identity->has_machine = !read_id("/etc/machine-id", ret_identity->machine);
	if (!ret_identity->has_machine)
		memset(ret_identity->machine, '0', ID_LENGTH);
	return read_id("/proc/sys/kernel/random/boot_id", ret_identity->boot);
}

static int make_name(const struct identity *identity, char ret_name[NAME_LENGTH + 1])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(ret_name, NAME_LENGTH + 1, PREFIX "%s-%s-%016" PRIx64, identity->machine,
		 identity->boot, random);
	return 0;
}

static int make_file_name(uint32_t number, char ret_name[FILE_BYTES])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(ret_name, FILE_BYTES, "%" PRIu32 "-%016" PRIx64, number, random);
	return 0;
}

/* -1: it is no number as we write them. */
static int64_t parse_number(const char *name)
{
	char again[NUMBER_BYTES];
	unsigned long long number;

	if (*name < '0' || *name > '9' || strlen(name) > 10)
		return -1;
	number = strtoull(name, NULL, 10);
	snprintf(again, sizeof(again), "%" PRIu32, (uint32_t)number);
	return number <= UINT32_MAX && !strcmp(again, name) ? (int64_t)number : -1;
}

/* Of a segment's file. -1: it is no such name. */
static int64_t parse_file_name(const char *name)
{
	const char *hyphen = strchr(name, '-');
	char number[NUMBER_BYTES];

	if (!hyphen || hyphen - name >= NUMBER_BYTES || strlen(hyphen + 1) != RANDOM_LENGTH ||
	    !is_hex(hyphen + 1, RANDOM_LENGTH))
		return -1;
	memcpy(number, name, (size_t)(hyphen - name));
	number[hyphen - name] = '\0';
	return parse_number(number);
}

/* .../<directory of a store>/<uid>/<file>: where the parts of it begin. */
struct place {
	size_t home;
	size_t user;
	size_t file;
};

static bool find_place(const char *path, struct place *ret_place)
{
	size_t at[3];
	size_t end = strlen(path);
	char name[NAME_LENGTH + 1];

	if (*path != '/')
		return false;
	for (size_t i = 3; i-- > 0; end--) {
		while (end && path[end - 1] != '/')
			end--;
		if (!end)
			return false;
		at[i] = end;
	}
	if (at[1] - at[0] != NAME_LENGTH + 1)
		return false;
	memcpy(name, path + at[0], NAME_LENGTH);
	name[NAME_LENGTH] = '\0';
	*ret_place = (struct place){.home = at[0], .user = at[1], .file = at[2]};
	return is_name(name);
}

bool gcr_spill_is_path(const char *path, uid_t uid, uint32_t number)
{
	char user[NUMBER_BYTES + 1];
	struct place place;
	int length = snprintf(user, sizeof(user), "%" PRIu32 "/", (uint32_t)uid);

	return find_place(path, &place) && place.file - place.user == (size_t)length &&
	       !strncmp(path + place.user, user, (size_t)length) &&
	       parse_file_name(path + place.file) == number;
}

/* ---- directories ---- */

static DIR *open_list(int parent_fd, const char *name)
{
	int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !dir)
		close(fd);
	return dir;
}

/*
 * Does the link in the store name this segment of its directory? It may say so by another path: the
 * disk may have been mounted elsewhere.
 */
static bool is_named(int store_fd, const char *home, const char *uid, const char *file)
{
	char name[sizeof(GCR_PACKS_NAME) + 2 * NUMBER_BYTES];
	char end[1 + NAME_LENGTH + NUMBER_BYTES + FILE_BYTES];
	char target[PATH_MAX];
	ssize_t length;
	size_t end_length;

	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%s/%" PRIu32, uid,
		 (uint32_t)parse_file_name(file));
	length = readlinkat(store_fd, name, target, sizeof(target) - 1);
	/* In doubt it stays. */
	if (length < 0)
		return errno != ENOENT && errno != ENOTDIR && errno != EINVAL;
	target[length] = '\0';
	snprintf(end, sizeof(end), "%s/%s/%s", strrchr(home, '/'), uid, file);
	end_length = strlen(end);
	return (size_t)length >= end_length && !strcmp(target + length - end_length, end);
}

/*
 * Files of segments that no link of the store names, or all (@store_fd is -1), and directories with
 * nothing in them. What else there is stays.
 */
static void tidy(int store_fd, const char *home)
{
	_cleanup_closedir_ DIR *users = open_list(AT_FDCWD, home);
	const struct dirent *user;

	while (users && (user = readdir(users))) {
		_cleanup_closedir_ DIR *segments = NULL;
		const struct dirent *segment;

		if (parse_number(user->d_name) < 0)
			continue;
		segments = open_list(dirfd(users), user->d_name);
		while (segments && (segment = readdir(segments))) {
			struct stat stat;

			if (parse_file_name(segment->d_name) < 0 ||
			    fstatat(dirfd(segments), segment->d_name, &stat, AT_SYMLINK_NOFOLLOW) <
				    0 ||
			    !S_ISREG(stat.st_mode))
				continue;
			if (store_fd < 0 ||
			    !is_named(store_fd, home, user->d_name, segment->d_name))
				unlinkat(dirfd(segments), segment->d_name, 0);
		}
		unlinkat(dirfd(users), user->d_name, AT_REMOVEDIR);
	}
	rmdir(home);
}

/* Of this machine, from before it was started: the stores that had links to them are gone. */
static void remove_orphans(const struct gcr_spill *spill, const struct identity *identity)
{
	_cleanup_closedir_ DIR *dir = open_list(AT_FDCWD, spill->path);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		_cleanup_free_ char *path = NULL;
		struct stat stat;

		if (!is_name(entry->d_name) || !is_of_machine(entry->d_name, identity) ||
		    is_of_boot(entry->d_name, identity))
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISDIR(stat.st_mode) || stat.st_uid != geteuid())
			continue;
		if (asprintf(&path, "%s/%s", spill->path, entry->d_name) < 0) {
			path = NULL;
			continue;
		}
		gcr_log(LOG_NOTICE, 0, "%s is of a store that is gone, and is removed", path);
		tidy(-1, path);
	}
}

/* Nobody but us may have anything to say in it. */
static int check_directory(const char *path, struct gcr_error *error)
{
	_cleanup_close_ int fd = -1;
	struct statfs statfs;
	struct stat stat;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "spill=%s: it cannot be made: %s", path,
				     strerror(errno));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &stat) < 0)
		return gcr_error_set(error, errno, "spill=%s: %s", path, strerror(errno));
	if (stat.st_uid != geteuid() || stat.st_mode & 022)
		return gcr_error_set(error, EPERM,
				     "spill=%s: it belongs to somebody else, or others can write "
				     "to it",
				     path);
	if (!fstatfs(fd, &statfs) && (statfs.f_type == TMPFS_MAGIC || statfs.f_type == RAMFS_MAGIC))
		gcr_log(LOG_WARNING, 0, "spill=%s is in memory, and gains none", path);
	return 0;
}

/* ---- life ---- */

/* Where the store's segments are, as the link in it says: for the caller to free; NULL. */
static char *read_link(int store_fd)
{
	char target[PATH_MAX];
	ssize_t length =
		readlinkat(store_fd, GCR_PACKS_NAME "/" GCR_SPILL_NAME, target, sizeof(target) - 1);
	const char *name;

	if (length < 0)
		return NULL;
	target[length] = '\0';
	name = strrchr(target, '/');
	return *target == '/' && is_name(name + 1) ? strdup(target) : NULL;
}

static int write_link(const struct gcr_spill *spill)
{
	const char *name = GCR_PACKS_NAME "/." GCR_SPILL_NAME;

	/* The store may be full. */
	if (spill->left && !strcmp(spill->left, spill->home))
		return 0;
	if (mkdirat(spill->store_fd, GCR_PACKS_NAME, 0700) < 0 && errno != EEXIST)
		return -errno;
	if (unlinkat(spill->store_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	if (symlinkat(spill->home, spill->store_fd, name) < 0 ||
	    renameat(spill->store_fd, name, spill->store_fd, GCR_PACKS_NAME "/" GCR_SPILL_NAME) < 0)
		return -errno;
	return 0;
}

static int set_home(struct gcr_spill *spill, const struct identity *identity)
{
	char name[NAME_LENGTH + 1];
	const char *before = spill->left ? strrchr(spill->left, '/') + 1 : NULL;
	int result = 0;

	if (before && is_of_boot(before, identity))
		memcpy(name, before, sizeof(name));
	else
		result = make_name(identity, name);
	if (result < 0)
		return result;
	if (asprintf(&spill->home, "%s/%s", strcmp(spill->path, "/") ? spill->path : "", name) <
	    0) {
		spill->home = NULL;
		return -ENOMEM;
	}
	return 0;
}

static int set_limit(struct gcr_spill *spill, const struct gcr_spill_options *options)
{
	struct statvfs statvfs_;

	spill->limit_bytes = options->limit_bytes;
	if (!options->limit_percent)
		return 0;
	if (statvfs(spill->path, &statvfs_) < 0)
		return -errno;
	spill->limit_bytes = (uint64_t)statvfs_.f_blocks * (uint64_t)statvfs_.f_frsize / 100 *
			     options->limit_percent;
	return 0;
}

static int turn_on(struct gcr_spill *spill, const struct gcr_spill_options *options,
		   struct gcr_error *error)
{
	struct identity identity;
	int result;

	spill->path = strdup(options->path);
	if (!spill->path)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = check_directory(spill->path, error);
	if (result < 0)
		return result;
	result = identify(&identity);
	if (!result)
		result = set_limit(spill, options);
	if (!result)
		result = set_home(spill, &identity);
	if (!result) {
		remove_orphans(spill, &identity);
		tidy(spill->store_fd, spill->home);
		/* It is seen now whether it can be written to. */
		if (mkdir(spill->home, 0700) < 0 && errno != EEXIST)
			result = -errno;
	}
	if (!result)
		result = write_link(spill);
	return result < 0 ? gcr_error_set(error, -result, "spill=%s: %s", spill->path,
					  strerror(-result))
			  : 0;
}

static void spill_free(struct gcr_spill *spill)
{
	free(spill->path);
	free(spill->home);
	free(spill->left);
	pthread_mutex_destroy(&spill->lock);
	pthread_mutex_destroy(&spill->count_lock);
	free(spill);
}

int gcr_spill_open(int store_fd, const struct gcr_spill_options *options,
		   struct gcr_spill **ret_spill, struct gcr_error *error)
{
	struct gcr_spill *spill = calloc(1, sizeof(*spill));
	int result = 0;

	if (!spill)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_init(&spill->lock, NULL);
	pthread_mutex_init(&spill->count_lock, NULL);
	spill->store_fd = store_fd;
	spill->limit_bytes = UINT64_MAX;
	spill->left = read_link(store_fd);
	if (spill->left)
		tidy(store_fd, spill->left);
	if (options->path)
		result = turn_on(spill, options, error);
	if (result < 0) {
		spill_free(spill);
		return result;
	}
	*ret_spill = spill;
	return 0;
}

/* Does a user have segments yet? In doubt: yes. */
static bool has_users(int store_fd)
{
	_cleanup_closedir_ DIR *dir = open_list(store_fd, GCR_PACKS_NAME);
	const struct dirent *entry;

	if (!dir)
		return errno != ENOENT;
	while ((entry = readdir(dir)))
		if (parse_number(entry->d_name) >= 0)
			return true;
	return false;
}

void gcr_spill_close(struct gcr_spill *spill)
{
	if (!spill)
		return;
	/* A copy that nobody has finished, and what is empty. */
	if (spill->home)
		tidy(spill->store_fd, spill->home);
	if (spill->left)
		tidy(spill->store_fd, spill->left);
	if (!has_users(spill->store_fd)) {
		unlinkat(spill->store_fd, GCR_PACKS_NAME "/" GCR_SPILL_NAME, 0);
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

	/* Those of the limit first: so the others that ask meanwhile do not get them, too. */
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
	if (!statvfs(spill->path, &disk))
		room = (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
	if (bytes <= room)
		return 0;
	gcr_spill_give(spill, bytes);
	return gcr_error_set(error, ENOSPC,
			     "%s is full: %" PRIu64 " MiB more are needed, %" PRIu64
			     " MiB are free",
			     spill->path, bytes >> 20, room >> 20);
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

int gcr_spill_create_file(struct gcr_spill *spill, uid_t uid, uint32_t number, char **ret_path)
{
	_cleanup_free_ char *directory = NULL;
	_cleanup_free_ char *path = NULL;
	char name[FILE_BYTES];
	int result = make_file_name(number, name);
	int fd;

	if (result < 0)
		return result;
	if (asprintf(&directory, "%s/%" PRIu32, spill->home, (uint32_t)uid) < 0) {
		directory = NULL;
		return -ENOMEM;
	}
	if (asprintf(&path, "%s/%s", directory, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	GCR_LOCK_SCOPE(&spill->lock);
	if ((mkdir(spill->home, 0700) < 0 && errno != EEXIST) ||
	    (mkdir(directory, 0700) < 0 && errno != EEXIST))
		return -errno;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	*ret_path = TAKE_PTR(path);
	return fd;
}

void gcr_spill_remove_file(struct gcr_spill *spill, const char *path)
{
	_cleanup_free_ char *copy = strdup(path);
	char *slash;

	if (spill)
		pthread_mutex_lock(&spill->lock);
	unlink(path);
	/* The user's directory, and the store's. */
	for (int i = 0; i < 2 && copy; i++) {
		slash = strrchr(copy, '/');
		*slash = '\0';
		rmdir(copy);
	}
	if (spill)
		pthread_mutex_unlock(&spill->lock);
}

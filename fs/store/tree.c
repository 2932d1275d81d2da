/* SPDX-License-Identifier: MIT */
/*
 * Trees of files in the store, some of them made by users of the mount: removing them and summing
 * them up. No symbolic link is followed, and nothing outside the tree is reached. If a directory's
 * mode keeps a daemon without privileges out, the mode is changed, and restored if the directory is
 * not to be removed.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/beneath.h"
#include "lib/clock.h"

/* Above `snapshot` are its parent directory and the store. */
#define LEVELS_MAX (GCR_STORE_DEPTH_MAX + 2)

/*
 * Sets the mode of a directory; @fd may have O_PATH. A directory of the daemon's own user may have
 * a mode that excludes that user.
 */
static int set_mode(int fd, mode_t mode)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd); /* fchmod(2) does not accept O_PATH */
	return chmod(path, mode & 07777) < 0 ? -errno : 0;
}

/* Give the owner all rights. Errors are found when the directory is opened. */
static void unlock(int fd, mode_t *ret_mode)
{
	struct stat stat;

	*ret_mode = S_IRWXU;
	if (fstat(fd, &stat) < 0)
		return;
	*ret_mode = stat.st_mode;
	if ((stat.st_mode & S_IRWXU) != S_IRWXU)
		set_mode(fd, stat.st_mode | S_IRWXU);
}

static void lock_again(int fd, mode_t mode)
{
	if ((mode & S_IRWXU) != S_IRWXU)
		set_mode(fd, mode);
}

/* Open a directory after giving its owner all rights; *ret_mode is the mode before that. */
static int open_unlocked(int parent_fd, const char *name, mode_t *ret_mode)
{
	_cleanup_close_ int fd = gcr_beneath_open_path(parent_fd, name, O_PATH | O_DIRECTORY);
	int result;

	if (fd < 0)
		return fd;
	unlock(fd, ret_mode);
	result = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (result >= 0)
		return result;
	result = -errno;
	lock_again(fd, *ret_mode);
	return result;
}

static DIR *open_directory(int parent_fd, const char *name, mode_t *ret_mode, int *ret_error)
{
	_cleanup_close_ int fd = open_unlocked(parent_fd, name, ret_mode);
	DIR *dir = NULL;

	*ret_error = fd < 0 ? fd : gcr_beneath_list(fd, ".", &dir);
	if (fd >= 0 && !dir)
		lock_again(fd, *ret_mode);
	return dir;
}

int gcr_store_open_directory(int parent_fd, const char *name)
{
	mode_t mode;
	int fd = open_unlocked(parent_fd, name, &mode);

	if (fd >= 0)
		lock_again(fd, mode);
	return fd;
}

static bool is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/* The data of gcr_store_remove_some(). */
struct removing {
	int64_t until_usec;
	gcr_store_visit *visit;
	void *data;
};

static int remove_some_below(const struct removing *removing, int parent_fd, const char *name,
			     int levels);

static int remove_entry(const struct removing *removing, int directory_fd, const char *name,
			int levels)
{
	struct stat stat;
	int result = 0;

	if (fstatat(directory_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISDIR(stat.st_mode))
		return remove_some_below(removing, directory_fd, name, levels);
	if (S_ISREG(stat.st_mode) && removing->visit)
		result = removing->visit(removing->data, directory_fd, name, &stat);
	else if (unlinkat(directory_fd, name, 0) < 0 && errno != ENOENT)
		result = -errno;
	return result;
}

static int remove_some_below(const struct removing *removing, int parent_fd, const char *name,
			     int levels)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	mode_t mode;
	int result = levels ? 0 : -ENOTEMPTY;

	if (!unlinkat(parent_fd, name, AT_REMOVEDIR) || errno == ENOENT)
		return 0;
	if (errno != ENOTEMPTY)
		return -errno;
	dir = levels ? open_directory(parent_fd, name, &mode, &result) : NULL;
	while (dir && !result && (entry = readdir(dir))) {
		if (is_dots(entry->d_name))
			continue;
		result = remove_entry(removing, dirfd(dir), entry->d_name, levels - 1);
		if (!result && gcr_clock_usec() >= removing->until_usec)
			result = -EAGAIN;
	}
	if (!result && unlinkat(parent_fd, name, AT_REMOVEDIR) < 0)
		result = -errno;
	return result;
}

int gcr_store_remove_some(int parent_fd, const char *name, int64_t until_usec,
			  gcr_store_visit *visit, void *data)
{
	const struct removing removing = {until_usec, visit, data};

	return remove_entry(&removing, parent_fd, name, LEVELS_MAX);
}

int gcr_store_remove_directory(int parent_fd, const char *name)
{
	return gcr_store_remove_some(parent_fd, name, INT64_MAX, NULL, NULL);
}

static void note_time(const struct statx_timestamp *made, struct gcr_tree_sum *sum)
{
	if (made->tv_sec < sum->last_made.tv_sec ||
	    (made->tv_sec == sum->last_made.tv_sec && made->tv_nsec <= sum->last_made.tv_nsec))
		return;
	sum->last_made.tv_sec = made->tv_sec;
	sum->last_made.tv_nsec = made->tv_nsec;
}

static int add_up(DIR *dir, int levels, struct gcr_tree_sum *sum)
{
	const struct dirent *entry;
	int result = 0;

	while (!result && (entry = readdir(dir))) {
		_cleanup_closedir_ DIR *below = NULL;
		struct statx stat;
		mode_t mode;

		if (is_dots(entry->d_name))
			continue;
		if (statx(dirfd(dir), entry->d_name, AT_SYMLINK_NOFOLLOW,
			  STATX_BASIC_STATS | STATX_BTIME, &stat) < 0) {
			result = errno == ENOENT ? 0 : -errno;
			continue;
		}
		sum->bytes += stat.stx_blocks * 512;
		sum->entries++;
		if (stat.stx_mask & STATX_BTIME)
			note_time(&stat.stx_btime, sum);
		if (!S_ISDIR(stat.stx_mode))
			continue;
		below = levels ? open_directory(dirfd(dir), entry->d_name, &mode, &result) : NULL;
		if (!levels)
			result = -ELOOP;
		if (!below)
			continue;
		result = add_up(below, levels - 1, sum);
		lock_again(dirfd(below), mode);
	}
	return result;
}

int gcr_store_sum_tree(int directory_fd, struct gcr_tree_sum *ret_sum)
{
	_cleanup_closedir_ DIR *dir = NULL;
	struct gcr_tree_sum sum = {0};
	mode_t mode;
	int result;

	unlock(directory_fd, &mode);
	result = gcr_beneath_list(directory_fd, ".", &dir);
	if (!result)
		result = add_up(dir, LEVELS_MAX, &sum);
	lock_again(directory_fd, mode);
	if (!result)
		*ret_sum = sum;
	return result;
}

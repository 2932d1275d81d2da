/* SPDX-License-Identifier: MIT */
/*
 * Trees of files in the store, some of them made by users of the mount: removing them and summing
 * them up. No symbolic link is followed, and nothing outside is reached.
 */
#include "fs/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/beneath.h"

/* Above `snapshot` are its own directory and the store. */
#define LEVELS_MAX (GCR_STORE_DEPTH_MAX + 2)

static DIR *open_directory(int parent_fd, const char *name, int *ret_error)
{
	_cleanup_close_ int fd = gcr_beneath_open(parent_fd, name, O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	*ret_error = dir ? 0 : fd < 0 ? fd : -errno;
	if (dir)
		TAKE_FD(fd);
	return dir;
}

static bool is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

static int remove_below(int parent_fd, const char *name, int levels)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = 0;

	if (!unlinkat(parent_fd, name, AT_REMOVEDIR) || errno == ENOENT)
		return 0;
	if (errno == ENOTDIR)
		return unlinkat(parent_fd, name, 0) < 0 ? -errno : 0;
	if (errno != ENOTEMPTY || !levels)
		return -errno;
	dir = open_directory(parent_fd, name, &result);
	if (!dir)
		return result;
	while (!result && (entry = readdir(dir)))
		if (!is_dots(entry->d_name))
			result = remove_below(dirfd(dir), entry->d_name, levels - 1);
	if (!result && unlinkat(parent_fd, name, AT_REMOVEDIR) < 0)
		result = -errno;
	return result;
}

int gcr_store_remove_directory(int parent_fd, const char *name)
{
	return remove_below(parent_fd, name, LEVELS_MAX);
}

static int add_bytes(DIR *dir, int levels, uint64_t *bytes)
{
	const struct dirent *entry;
	int result = 0;

	while (!result && (entry = readdir(dir))) {
		_cleanup_closedir_ DIR *below = NULL;
		struct stat stat;

		if (is_dots(entry->d_name))
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) < 0) {
			result = errno == ENOENT ? 0 : -errno;
			continue;
		}
		*bytes += (uint64_t)stat.st_blocks * 512;
		if (!S_ISDIR(stat.st_mode))
			continue;
		below = levels ? open_directory(dirfd(dir), entry->d_name, &result) : NULL;
		if (below)
			result = add_bytes(below, levels - 1, bytes);
		else if (!levels)
			result = -ELOOP;
	}
	return result;
}

int gcr_store_tree_bytes(int directory_fd, uint64_t *ret_bytes)
{
	_cleanup_close_ int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	uint64_t bytes = 0;
	int result;

	if (!dir)
		return -errno;
	TAKE_FD(fd);
	result = add_bytes(dir, LEVELS_MAX, &bytes);
	if (!result)
		*ret_bytes = bytes;
	return result;
}

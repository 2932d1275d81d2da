/* SPDX-License-Identifier: MIT */
/*
 * Opening, reading and replacing files in a directory (see beneath.h). Files are written on a
 * memory file system, or are copies of such files: so there is no fsync.
 */
#include "lib/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/full_io.h"

#define NAME_ROOM 64 /* of a temporary file's name, with its NUL */

static bool is_one_name(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

int gcr_beneath_open(int directory_fd, const char *name, int flags)
{
	/* O_NONBLOCK: opening a named pipe would wait for its other end. */
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};
	int fd;

	if (!is_one_name(name))
		return -EINVAL;
	fd = (int)syscall(SYS_openat2, directory_fd, name, &how, sizeof(how));
	/*
	 * openat2(2) is missing before Linux 5.6, and filters of system calls that do not know it
	 * return EPERM: for a single name openat(2) is equivalent.
	 */
	if (fd < 0 && (errno == ENOSYS || errno == EPERM))
		fd = openat(directory_fd, name, (int)how.flags);
	return fd < 0 ? -errno : fd;
}

/* Opens @name in @fd, which must be on the same file system. -errno. */
static int step(int fd, const char *name, int flags)
{
	_cleanup_close_ int next = openat(fd, name, flags);
	struct stat before, after;

	if (next < 0 || fstat(fd, &before) < 0 || fstat(next, &after) < 0)
		return -errno;
	return after.st_dev == before.st_dev ? TAKE_FD(next) : -EXDEV;
}

/* Opens a path name by name, if openat2(2) is not available. */
static int walk(int directory_fd, const char *path, int flags)
{
	_cleanup_close_ int fd = openat(directory_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	char name[NAME_MAX + 1];
	const char *end;

	if (fd < 0)
		return -errno;
	if (!strcmp(path, "."))
		return step(fd, path, flags);
	while ((end = strchr(path, '/'))) {
		size_t length = (size_t)(end - path);
		int next;

		if (length > NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, path, length);
		name[length] = '\0';
		next = is_one_name(name)
			       ? step(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
			       : -EINVAL;
		if (next < 0)
			return next;
		close(fd);
		fd = next;
		path = end + 1;
	}
	return is_one_name(path) ? step(fd, path, flags) : -EINVAL;
}

int gcr_beneath_open_path(int directory_fd, const char *path, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};
	int fd;

	if (!(flags & O_PATH)) /* O_PATH excludes these flags */
		how.flags |= O_NOCTTY | O_NONBLOCK;
	fd = (int)syscall(SYS_openat2, directory_fd, path, &how, sizeof(how));
	if (fd < 0 && (errno == ENOSYS || errno == EPERM))
		return walk(directory_fd, path, (int)how.flags);
	return fd < 0 ? -errno : fd;
}

int gcr_beneath_list_fd(int fd, DIR **ret_directory)
{
	DIR *directory = fdopendir(fd);
	int result = directory ? 0 : -errno;

	if (directory)
		*ret_directory = directory;
	else
		close(fd);
	return result;
}

int gcr_beneath_list(int directory_fd, const char *name, DIR **ret_directory)
{
	const int flags = O_RDONLY | O_DIRECTORY;
	int fd;

	if (strcmp(name, ".") != 0)
		fd = gcr_beneath_open(directory_fd, name, flags);
	else if ((fd = openat(directory_fd, name, flags | O_CLOEXEC)) < 0)
		fd = -errno;
	return fd < 0 ? fd : gcr_beneath_list_fd(fd, ret_directory);
}

int gcr_beneath_open_file(int directory_fd, const char *name, struct gcr_error *error)
{
	_cleanup_close_ int fd = gcr_beneath_open(directory_fd, name, O_RDONLY);
	struct stat stat;

	if (fd == -ENOENT)
		return gcr_error_set(error, ENOENT, "it is missing");
	if (fd == -ELOOP)
		return gcr_error_set(error, ELOOP, "it is a symbolic link");
	if (fd == -ENXIO) /* a socket */
		return gcr_error_set(error, EPROTO, "it is not a regular file");
	if (fd < 0)
		return gcr_error_set(error, -fd, "it cannot be opened: %s", strerror(-fd));
	if (fstat(fd, &stat) < 0)
		return gcr_error_set(error, errno, "it cannot be read: %s", strerror(errno));
	if (!S_ISREG(stat.st_mode))
		return gcr_error_set(error, EPROTO, "it is not a regular file");
	return TAKE_FD(fd);
}

int gcr_beneath_read(int directory_fd, const char *name, size_t bytes_max, void **ret_bytes,
		     size_t *ret_size, struct gcr_error *error)
{
	_cleanup_close_ int fd = gcr_beneath_open_file(directory_fd, name, error);
	_cleanup_free_ char *bytes = NULL;
	struct stat stat;
	ssize_t got;
	size_t size;

	if (fd < 0)
		return fd;
	if (fstat(fd, &stat) < 0)
		return gcr_error_set(error, errno, "it cannot be read: %s", strerror(errno));
	if ((uint64_t)stat.st_size > bytes_max)
		return gcr_error_set(error, EFBIG, "it is larger than %zu bytes", bytes_max);
	size = (size_t)stat.st_size;
	bytes = malloc(size + 1);
	if (!bytes)
		return gcr_error_set(error, ENOMEM, "out of memory");
	/* Fewer than @size if the file is truncated meanwhile. */
	got = gcr_pread_all(fd, bytes, size, 0);
	if (got < 0)
		return gcr_error_set(error, (int)-got, "it cannot be read: %s",
				     strerror((int)-got));
	bytes[got] = '\0';
	*ret_bytes = TAKE_PTR(bytes);
	*ret_size = (size_t)got;
	return 0;
}

int gcr_beneath_replace(int directory_fd, const char *name, const struct iovec *parts, size_t count,
			struct gcr_error *error)
{
	_cleanup_close_ int fd = -1;
	char temporary[NAME_ROOM];
	int result = 0;

	if (!is_one_name(name) || strlen(name) + sizeof("..new") > sizeof(temporary))
		return gcr_error_set(error, EINVAL, "%s is no name of a file", name);
	snprintf(temporary, sizeof(temporary), ".%s.new", name);
	/* left by a writer that ended before the rename */
	if (unlinkat(directory_fd, temporary, 0) < 0 && errno != ENOENT)
		result = -errno;
	if (!result) {
		fd = openat(directory_fd, temporary,
			    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		result = fd < 0 ? -errno : 0;
	}
	if (result < 0)
		return gcr_error_set(error, -result, "%s cannot be made: %s", temporary,
				     strerror(-result));
	for (size_t i = 0; i < count && !result; i++)
		result = gcr_write_all(fd, parts[i].iov_base, parts[i].iov_len);
	if (!result && renameat(directory_fd, temporary, directory_fd, name) < 0)
		result = -errno;
	if (result < 0) {
		unlinkat(directory_fd, temporary, 0);
		return gcr_error_set(error, -result, "%s cannot be written: %s", name,
				     strerror(-result));
	}
	return 0;
}

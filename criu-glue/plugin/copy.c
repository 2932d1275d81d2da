// SPDX-License-Identifier: MIT
/*
 * Snapshots in the directory of CRIU's images: copying them in and out, finding and removing them.
 * The files there may have been made by any user: no symbolic link is followed, and no file (FIFO,
 * device) is waited for.
 */
#include "criu-glue/plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/procfs.h"

#define BUFFER_BYTES   (1u << 20) /* the largest read request of FUSE */
#define MANIFEST_BYTES (64u << 20)

struct copy {
	const struct gcr_copy_owner *owner;
	struct gcr_error *error;
	char *buffer;
};

static int fail(struct copy *copy, int number, const char *name, const char *words)
{
	return gcr_error_set(copy->error, number, "%s: %s", name, words);
}

static int check_owner(struct copy *copy, const char *name, const struct stat *status)
{
	if (!copy->owner->is_checked)
		return 0;
	if (status->st_uid != copy->owner->uid)
		return gcr_error_set(copy->error, EPERM,
				     "%s belongs to user %u, and CRIU's images to user %u", name,
				     status->st_uid, copy->owner->uid);
	if (status->st_mode & (S_IWGRP | S_IWOTH))
		return gcr_error_set(copy->error, EPERM,
				     "%s can be written by others than its owner (mode %03o)", name,
				     status->st_mode & 0777);
	return 0;
}

static int write_whole(int fd, const char *bytes, size_t count, off_t at)
{
	while (count) {
		ssize_t written = pwrite(fd, bytes, count, at);

		if (written < 0)
			return -errno;
		if (!written)
			return -EIO;
		bytes += written;
		count -= (size_t)written;
		at += written;
	}
	return 0;
}

/* Copies the source's bytes from @at to @end. -ESTALE: the source has become shorter. */
static int copy_range(struct copy *copy, int from, int to, off_t at, off_t end)
{
	bool by_kernel = true;

	while (at < end) {
		size_t count = (size_t)(end - at);
		ssize_t done = -1;

		if (by_kernel) {
			off_t in = at;
			off_t out = at;

			done = copy_file_range(from, &in, to, &out, count, 0);
			if (done < 0 && errno != EXDEV && errno != ENOSYS && errno != EINVAL &&
			    errno != EOPNOTSUPP && errno != EPERM)
				return -errno;
			by_kernel = done > 0; /* 0: the kernel cannot tell where the file ends */
		}
		if (done <= 0) {
			int r;

			done = pread(from, copy->buffer,
				     count < BUFFER_BYTES ? count : BUFFER_BYTES, at);
			if (done <= 0)
				return done ? -errno : -ESTALE;
			r = write_whole(to, copy->buffer, (size_t)done, at);
			if (r < 0)
				return r;
		}
		at += done;
	}
	return 0;
}

static int copy_data(struct copy *copy, int from, int to, off_t bytes)
{
	off_t at = 0;
	int r = 0;

	if (ftruncate(to, bytes) < 0)
		return -errno;
	while (!r && at < bytes) {
		off_t data = lseek(from, at, SEEK_DATA);
		off_t hole;

		if (data < 0 && errno == ENXIO) /* a hole up to the end */
			break;
		if (data < 0) /* the file system does not support SEEK_DATA */
			data = at;
		hole = lseek(from, data, SEEK_HOLE);
		if (hole <= data || hole > bytes)
			hole = bytes;
		if (data >= bytes)
			break;
		r = copy_range(copy, from, to, data, hole);
		at = hole;
	}
	return r;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int copy_file(struct copy *copy, int from_directory, int to_directory, const char *name)
{
	_cleanup_close_ int from = gcr_beneath_open_file(from_directory, name, copy->error);
	_cleanup_close_ int to = -1;
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}};
	struct stat before;
	struct stat after;
	int r;

	if (from < 0) {
		gcr_error_prefix(copy->error, "%s", name);
		return from;
	}
	if (fstat(from, &before) < 0)
		return fail(copy, errno, name, strerror(errno));
	r = check_owner(copy, name, &before);
	if (r < 0)
		return r;
	to = openat(to_directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (to < 0)
		return gcr_error_set(copy->error, errno, "the copy of %s cannot be made: %s", name,
				     strerror(errno));
	r = copy_data(copy, from, to, before.st_size);
	if (!r && (fstat(from, &after) < 0 || !is_same(&before, &after)))
		r = -ESTALE;
	times[1] = before.st_mtim;
	if (!r && futimens(to, times) < 0)
		r = -errno;
	/* Some file systems report a lack of space only now. */
	if (close(TAKE_FD(to)) < 0 && !r)
		r = -errno;
	if (r == -ESTALE)
		return fail(copy, ESTALE, name, "it has changed while it was copied");
	return r < 0 ? gcr_error_set(copy->error, -r, "copying %s: %s", name, strerror(-r)) : 0;
}

/* Names of the snapshot's files: gpu0-7f0000000000, gpu0-unmapped-1, managed-7f0000000000. */
static bool is_memory_name(const char *name)
{
	return (!strncmp(name, "gpu", 3) || !strncmp(name, "managed-", 8)) &&
	       !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")];
}

static int copy_memory(struct copy *copy, int from_fd, int to_fd)
{
	_cleanup_close_ int from = gcr_beneath_open(from_fd, "vram", O_RDONLY | O_DIRECTORY);
	_cleanup_close_ int to = -1;
	_cleanup_closedir_ DIR *directory = NULL;
	struct dirent *entry;
	struct stat status;
	int r = 0;

	if (from == -ENOENT) /* the driver has moved the contents into the program's own memory */
		return 0;
	if (from < 0)
		return fail(copy, -from, "vram", strerror(-from));
	if (fstat(from, &status) < 0)
		return fail(copy, errno, "vram", strerror(errno));
	r = check_owner(copy, "vram", &status);
	if (r < 0)
		return r;
	if (mkdirat(to_fd, "vram", 0700) < 0 && errno != EEXIST)
		return fail(copy, errno, "vram", strerror(errno));
	to = gcr_beneath_open(to_fd, "vram", O_RDONLY | O_DIRECTORY);
	directory = fdopendir(from);
	if (to < 0 || !directory)
		return fail(copy, to < 0 ? -to : errno, "vram", strerror(to < 0 ? -to : errno));
	from = -1; /* closedir() closes it */
	for (errno = 0; !r && (entry = readdir(directory)); errno = 0)
		if (is_memory_name(entry->d_name))
			r = copy_file(copy, dirfd(directory), to, entry->d_name);
	if (!r && errno)
		r = fail(copy, errno, "vram", strerror(errno));
	return r;
}

static int read_manifest(struct copy *copy, int fd, void **ret_bytes, size_t *ret_size)
{
	int r = gcr_beneath_read(fd, "manifest", MANIFEST_BYTES, ret_bytes, ret_size, copy->error);

	if (r < 0)
		gcr_error_prefix(copy->error, "manifest");
	return r;
}

int gcr_snapshot_copy(int from_fd, int to_fd, const struct gcr_copy_owner *owner,
		      struct gcr_error *error)
{
	_cleanup_free_ char *buffer = malloc(BUFFER_BYTES);
	struct copy copy = {.owner = owner, .error = error, .buffer = buffer};
	_cleanup_free_ void *before = NULL;
	_cleanup_free_ void *after = NULL;
	size_t before_bytes;
	size_t after_bytes;
	struct stat status;
	int r;

	if (!buffer)
		return gcr_error_set(error, ENOMEM, "no memory");
	if (fstat(from_fd, &status) < 0)
		return gcr_error_set(error, errno, "%s", strerror(errno));
	r = check_owner(&copy, "its directory", &status);
	if (r < 0)
		return r;
	r = read_manifest(&copy, from_fd, &before, &before_bytes);
	if (r < 0)
		return r;
	r = copy_memory(&copy, from_fd, to_fd);
	if (r < 0)
		return r;
	if (!faccessat(from_fd, "digests", F_OK, AT_SYMLINK_NOFOLLOW)) {
		r = copy_file(&copy, from_fd, to_fd, "digests");
		if (r < 0)
			return r;
	}
	r = read_manifest(&copy, from_fd, &after, &after_bytes);
	if (r < 0)
		return r;
	if (before_bytes != after_bytes || memcmp(before, after, after_bytes) != 0)
		return fail(&copy, ESTALE, "manifest", "it has changed while files were copied");
	return copy_file(&copy, from_fd, to_fd, "manifest");
}

/* The number at the end of @name; -1: not a name of ours. */
static long number_of(const char *name)
{
	const char *digits = name + strlen(GCR_IMAGES_PREFIX);
	char *end;
	long number;

	if (strncmp(name, GCR_IMAGES_PREFIX, strlen(GCR_IMAGES_PREFIX)) != 0 || *digits < '1' ||
	    *digits > '9' || strlen(digits) > 9)
		return -1;
	number = strtol(digits, &end, 10);
	return *end ? -1 : number;
}

int gcr_images_each(int images_fd, int (*visit)(long number, void *data), void *data,
		    struct gcr_error *error)
{
	_cleanup_closedir_ DIR *directory = NULL;
	_cleanup_free_ long *numbers = NULL;
	size_t count = 0;
	struct dirent *entry;
	int r = gcr_beneath_list(images_fd, ".", &directory);

	if (r < 0)
		return gcr_error_set(error, -r, "the directory of the images: %s", strerror(-r));
	/* Collects all names first, since @visit may remove them. */
	for (errno = 0; (entry = readdir(directory)); errno = 0) {
		long number = number_of(entry->d_name);
		long *more;

		if (number < 0)
			continue;
		more = reallocarray(numbers, count + 1, sizeof(*numbers));
		if (!more)
			return gcr_error_set(error, ENOMEM, "no memory");
		numbers = more;
		numbers[count++] = number;
	}
	if (errno)
		return gcr_error_set(error, errno, "the directory of the images: %s",
				     strerror(errno));
	for (size_t i = 0; !r && i < count; i++)
		r = visit(numbers[i], data);
	return r;
}

/* Removes everything in a directory, down to @depth levels of subdirectories. */
static int empty(int parent_fd, const char *name, unsigned int depth)
{
	_cleanup_closedir_ DIR *directory = NULL;
	struct dirent *entry;
	int r = gcr_beneath_list(parent_fd, name, &directory);

	if (r < 0)
		return r;
	for (errno = 0; !r && (entry = readdir(directory)); errno = 0) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (!unlinkat(dirfd(directory), entry->d_name, 0))
			continue;
		if (errno != EISDIR || !depth)
			return -errno;
		r = empty(dirfd(directory), entry->d_name, depth - 1);
		if (!r && unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR) < 0)
			r = -errno;
	}
	return r ? r : -errno;
}

int gcr_images_remove(int images_fd, long number, struct gcr_error *error)
{
	char name[32];
	int r;

	snprintf(name, sizeof(name), GCR_IMAGES_PREFIX "%ld", number);
	r = empty(images_fd, name, 1);
	if (!r && unlinkat(images_fd, name, AT_REMOVEDIR) < 0)
		r = -errno;
	if (r < 0 && r != -ENOENT)
		return gcr_error_set(error, -r, "%s among the images cannot be removed: %s", name,
				     strerror(-r));
	return 0;
}

int gcr_own_pid(pid_t pid, pid_t *ret_own_pid, struct gcr_error *error)
{
	struct gcr_proc_status status;
	int r = gcr_proc_status(pid, &status);

	if (r < 0 || !status.ns_pids_count)
		return gcr_error_set(error, r < 0 ? -r : EIO, "process %d: %s", (int)pid,
				     r < 0 ? strerror(-r) : "it has no pid");
	*ret_own_pid = status.ns_pids[status.ns_pids_count - 1];
	return 0;
}

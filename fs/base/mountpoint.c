/* SPDX-License-Identifier: MIT */
/* State of the protected mountpoint: one per daemon, used by its main thread only. */
#include "fs/base/mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

#define STATE_NAME	"mountpoint"
#define STATE_BYTES_MAX (64u << 10)
#define RECORDS_NAME	"processes"

/* The attributes of a directory before it was protected. */
struct bare {
	dev_t device;
	ino_t inode;
	mode_t mode;
	bool is_immutable;
	char *path;
};

static struct {
	int fd; /* -1: no directory is protected */
	struct bare bare;
} held = {.fd = -1};

/*
 * Reads the inode flags (chattr(1)) of a directory. False, with flags 0: the file system has none.
 */
static bool get_flags(int fd, int *ret_flags)
{
	*ret_flags = 0;
	return ioctl(fd, FS_IOC_GETFLAGS, ret_flags) == 0;
}

static bool set_immutable(int fd, bool is_immutable)
{
	int flags;

	if (!get_flags(fd, &flags))
		return false;
	flags = is_immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
	return ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
}

static int open_bare(const char *path, struct bare *ret_bare)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat stat;
	int flags;

	if (fd < 0 || fstat(fd, &stat) < 0) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	get_flags(fd, &flags);
	*ret_bare = (struct bare){
		.device = stat.st_dev,
		.inode = stat.st_ino,
		.mode = stat.st_mode & 07777,
		.is_immutable = flags & FS_IMMUTABLE_FL,
	};
	return fd;
}

/*
 * Reads the state file; the caller frees ret_bare->path. False: there is no such file, or it is
 * invalid.
 */
static bool read_state(int runtime_fd, struct bare *ret_bare)
{
	_cleanup_free_ void *bytes = NULL;
	_cleanup_free_ char *text = NULL;
	struct gcr_error unused;
	uint64_t device, inode;
	unsigned int mode;
	int immutable, length = 0;
	size_t size;

	if (gcr_beneath_read(runtime_fd, STATE_NAME, STATE_BYTES_MAX, &bytes, &size, &unused) < 0)
		return false;
	text = strndup(bytes, size);
	if (!text ||
	    sscanf(text, "%" SCNu64 " %" SCNu64 " %o %d %n", &device, &inode, &mode, &immutable,
		   &length) != 4 ||
	    !length || text[length] != '/')
		return false;
	*ret_bare = (struct bare){
		.device = (dev_t)device,
		.inode = (ino_t)inode,
		.mode = (mode_t)mode & 07777,
		.is_immutable = immutable,
		.path = strdup(text + length),
	};
	return ret_bare->path != NULL;
}

static int write_state(int runtime_fd, const struct bare *bare)
{
	_cleanup_free_ char *text = NULL;
	struct iovec part;
	struct gcr_error unused;
	int length = asprintf(&text, "%" PRIu64 " %" PRIu64 " %o %d %s", (uint64_t)bare->device,
			      (uint64_t)bare->inode, (unsigned int)bare->mode, bare->is_immutable,
			      bare->path);

	if (length < 0) {
		text = NULL;
		return -ENOMEM;
	}
	part = (struct iovec){.iov_base = text, .iov_len = (size_t)length};
	return gcr_beneath_replace(runtime_fd, STATE_NAME, &part, 1, &unused);
}

static bool is_same(const struct bare *a, const struct bare *b)
{
	return a->device == b->device && a->inode == b->inode;
}

static void put_back(int fd, const struct bare *bare)
{
	struct stat stat;

	if (!bare->is_immutable)
		set_immutable(fd, false);
	if (fstat(fd, &stat) == 0 && (stat.st_mode & 07777) != bare->mode &&
	    fchmod(fd, bare->mode) < 0)
		gcr_log(LOG_WARNING, 0, "%s: its mode was %o and cannot be put back: %s",
			bare->path, (unsigned int)bare->mode, strerror(errno));
}

void gcr_mountpoint_reopen(const char *runtime_directory, const char *path)
{
	_cleanup_close_ int runtime_fd =
		open(runtime_directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct bare bare = {0};
	struct stat stat;

	/* Root can read the directory as it is. */
	if (runtime_fd < 0 || !geteuid() || !read_state(runtime_fd, &bare))
		return;
	if (!strcmp(bare.path, path) && lstat(path, &stat) == 0 && S_ISDIR(stat.st_mode) &&
	    stat.st_dev == bare.device && stat.st_ino == bare.inode && chmod(path, bare.mode) < 0)
		gcr_log(LOG_WARNING, 0, "%s: %s", path, strerror(errno));
	free(bare.path);
}

bool gcr_mountpoint_is_awaited(const char *runtime_directory)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;

	if (asprintf(&path, "%s/" RECORDS_NAME, runtime_directory) < 0) {
		path = NULL;
		return false;
	}
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			return true;
	return false;
}

/* Restores another directory that an earlier daemon has left protected. */
static void put_back_other(const struct bare *left)
{
	struct bare now;
	int fd = open_bare(left->path, &now);

	if (fd < 0)
		return;
	if (is_same(&now, left))
		put_back(fd, left);
	close(fd);
}

void gcr_mountpoint_protect(struct gcr_daemon *daemon)
{
	struct bare left = {0};
	bool has_left = read_state(daemon->runtime_fd, &left);
	bool is_known = false;

	held.fd = open_bare(daemon->options.mountpoint, &held.bare);
	if (held.fd >= 0)
		held.bare.path = strdup(daemon->options.mountpoint);
	if (has_left && held.fd >= 0 && is_same(&held.bare, &left)) {
		held.bare.mode = left.mode;
		held.bare.is_immutable = left.is_immutable;
		/* Then the file is as it should be. A new one might find no room. */
		is_known = held.bare.path && !strcmp(held.bare.path, left.path);
	} else if (has_left) {
		put_back_other(&left);
	}
	free(left.path);
	if (held.fd < 0)
		return;
	if (!held.bare.path || (!is_known && write_state(daemon->runtime_fd, &held.bare) < 0)) {
		gcr_log(LOG_WARNING, 0, "%s cannot be protected", daemon->options.mountpoint);
		free(held.bare.path);
		close(held.fd);
		held.fd = -1;
		return;
	}
	if (!geteuid() && !set_immutable(held.fd, true))
		fchmod(held.fd, 0);
}

void gcr_mountpoint_mounted(void)
{
	/* fusermount3 requires that the user can write to the directory. */
	if (held.fd >= 0 && geteuid())
		fchmod(held.fd, 0);
}

dev_t gcr_mountpoint_device(const struct gcr_daemon *daemon)
{
	struct statx mount;

	return statx(AT_FDCWD, daemon->options.mountpoint, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0,
		     &mount) < 0
		       ? 0
		       : makedev(mount.stx_dev_major, mount.stx_dev_minor);
}

void gcr_mountpoint_release(struct gcr_daemon *daemon)
{
	if (held.fd < 0)
		return;
	put_back(held.fd, &held.bare);
	unlinkat(daemon->runtime_fd, STATE_NAME, 0);
	close(held.fd);
	free(held.bare.path);
	held.fd = -1;
}

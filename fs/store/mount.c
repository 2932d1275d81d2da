/* SPDX-License-Identifier: MIT */
/*
 * The location of the store: a tmpfs of its own below the runtime directory or, without the
 * privilege to mount one, a directory of /dev/shm. A store that an earlier daemon has left is taken
 * over.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "fs/base/log.h"
#include "lib/lock.h"

#define SHARED_MEMORY "/dev/shm"
#define MOUNT_FLAGS   (MS_NOSUID | MS_NODEV | MS_NOEXEC)

/*
 * 2 MiB pages for every file, no page written to a disk, and inode numbers that are not used again
 * after 2^32 files: tables of packed files are named after them. tmpfs has noswap since Linux 6.4,
 * inode64 since 5.9, and huge= only if the kernel was built with huge pages.
 */
static const char *const mount_options[] = {"inode64,huge=always,noswap",
					    "inode64,noswap",
					    "inode64,huge=always",
					    "inode64",
					    "huge=always",
					    ""};

/*
 * Rooms count names. A limit of the mount could be used up by one user whose room still allows
 * more.
 */
#define NO_INODE_LIMIT "nr_inodes=0"

static bool is_tmpfs(int fd)
{
	struct statfs statfs;

	return !fstatfs(fd, &statfs) && statfs.f_type == TMPFS_MAGIC;
}

static bool has_swap(void)
{
	_cleanup_fclose_ FILE *file = fopen("/proc/swaps", "re");
	int lines = 0;
	int byte;

	while (file && (byte = fgetc(file)) != EOF)
		lines += byte == '\n';
	return lines > 1; /* the first line is a heading */
}

static void warn_of_swap(const struct gcr_daemon *daemon, const char *where)
{
	if (!daemon->options.allow_swap && has_swap())
		gcr_log(LOG_WARNING, 0,
			"%s cannot be kept out of swap: contents of VRAM may get to a disk", where);
}

static int open_directory(int parent_fd, const char *name)
{
	int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/*
 * Checks that only the daemon has access to the directory, and that the directory is in a tmpfs.
 * Errors, with a message.
 */
static int check_directory(int fd, const char *path, struct gcr_error *error)
{
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	if (stat.st_uid != geteuid() || (stat.st_mode & 07777) != 0700)
		return gcr_error_set(error, EPERM,
				     "%s belongs to somebody else or is open to others", path);
	if (!is_tmpfs(fd))
		return gcr_error_set(error, EINVAL, "%s is not in memory (no tmpfs)", path);
	return 0;
}

/*
 * Is the daemon's mount namespace that of process 1? Then its mounts outlive the daemon. Returns
 * @otherwise if that is not known.
 */
static bool in_first_namespace(bool otherwise)
{
	struct stat ours;
	struct stat first;

	if (stat("/proc/self/ns/mnt", &ours) < 0 || stat("/proc/1/ns/mnt", &first) < 0)
		return otherwise;
	return ours.st_dev == first.st_dev && ours.st_ino == first.st_ino;
}

/* Returns 1: none of the tmpfs is written to swap; 0: pages may be swapped; or -errno. */
static int mount_tmpfs(bool may_swap, const char *path, uint64_t bytes)
{
	int result = -EPERM;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(mount_options); i++) {
		bool noswap = strstr(mount_options[i], "noswap");
		char options[112];

		if (noswap && may_swap)
			continue;
		snprintf(options, sizeof(options),
			 "mode=0700," NO_INODE_LIMIT ",size=%" PRIu64 "%s%s", bytes,
			 *mount_options[i] ? "," : "", mount_options[i]);
		if (!mount("gpucrfs", path, "tmpfs", MOUNT_FLAGS, options))
			return noswap;
		result = -errno;
	}
	return result;
}

/*
 * Sets the size of the store's mount, and removes its inode limit: the size may differ from that of
 * the last start, and an earlier daemon's store may have an inode limit. Failures are logged;
 * -errno: the size is not known.
 */
static int resize(struct gcr_store *store, uint64_t bytes)
{
	struct statfs statfs;
	char options[48];

	snprintf(options, sizeof(options), "size=%" PRIu64, bytes);
	if (mount(NULL, store->mountpoint, NULL, MS_REMOUNT | MOUNT_FLAGS, options) < 0)
		gcr_log(LOG_WARNING, 0, "the store cannot be made %" PRIu64 " MiB large now: %s",
			bytes >> 20, strerror(errno));
	if (mount(NULL, store->mountpoint, NULL, MS_REMOUNT | MOUNT_FLAGS, NO_INODE_LIMIT) < 0)
		gcr_log(LOG_WARNING, 0, "the store's inodes stay limited: %s", strerror(errno));
	if (fstatfs(store->fd, &statfs) < 0)
		return -errno;
	store->size_bytes = (uint64_t)statfs.f_blocks * (uint64_t)statfs.f_bsize;
	return 0;
}

/*
 * Attach the store with a mount of its own, for root. Returns 1 if this root, or this kernel,
 * cannot mount a tmpfs.
 */
static int attach_mount(struct gcr_daemon *daemon, struct gcr_store *store, struct gcr_error *error)
{
	uint64_t bytes = daemon->options.store_bytes;
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	struct stat runtime;
	struct stat stat;
	int result = 0;

	if (asprintf(&path, "%s/store", daemon->options.runtime_directory) < 0) {
		path = NULL;
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	if (mkdirat(daemon->runtime_fd, "store", 0700) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "cannot make %s: %s", path, strerror(errno));
	fd = open_directory(daemon->runtime_fd, "store");
	if (fd < 0)
		return gcr_error_set(error, -fd, "cannot open %s: %s", path, strerror(-fd));
	if (fstat(daemon->runtime_fd, &runtime) < 0 || fstat(fd, &stat) < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	if (runtime.st_dev == stat.st_dev) {
		result = mount_tmpfs(daemon->options.allow_swap, path, bytes);
		if (!result)
			warn_of_swap(daemon, "the store");
		if (result < 0) {
			unlinkat(daemon->runtime_fd, "store", AT_REMOVEDIR);
			if (result == -EPERM || result == -EACCES || result == -ENODEV)
				return 1;
			return gcr_error_set(error, -result, "cannot mount a tmpfs on %s: %s", path,
					     strerror(-result));
		}
		close(fd);
		fd = open_directory(daemon->runtime_fd, "store");
		if (fd < 0)
			return gcr_error_set(error, -fd, "cannot open %s: %s", path, strerror(-fd));
	}
	result = check_directory(fd, path, error);
	if (result < 0)
		return result;
	store->survives_restart = in_first_namespace(false);
	store->may_swap = daemon->options.allow_swap;
	store->fd = TAKE_FD(fd);
	store->mountpoint = strdup(path);
	store->path = TAKE_PTR(path);
	if (!store->mountpoint)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = resize(store, bytes);
	return result < 0 ? gcr_error_set(error, -result, "the store: %s", strerror(-result)) : 0;
}

/* One store for each runtime directory: FNV-1a of its path. */
static uint64_t hash(const char *text)
{
	uint64_t value = UINT64_C(0xcbf29ce484222325);

	for (; *text; text++)
		value = (value ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return value;
}

/*
 * Is /dev/shm that of process 1? A mount namespace may have a private one, which disappears with
 * the namespace. True also if that is not known.
 */
static bool is_everybodys(int fd)
{
	struct stat ours;
	struct stat first;

	return fstat(fd, &ours) < 0 || stat("/proc/1/root" SHARED_MEMORY, &first) < 0 ||
	       ours.st_dev == first.st_dev;
}

static int attach_directory(struct gcr_daemon *daemon, struct gcr_store *store,
			    struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	struct statfs statfs;
	int result;

	if (asprintf(&path, SHARED_MEMORY "/gpucrfs-%u-%016" PRIx64, (unsigned int)geteuid(),
		     hash(daemon->options.runtime_directory)) < 0) {
		path = NULL;
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "cannot make %s: %s", path, strerror(errno));
	fd = open_directory(AT_FDCWD, path);
	if (fd < 0)
		return gcr_error_set(error, -fd, "cannot open %s: %s", path, strerror(-fd));
	result = check_directory(fd, path, error);
	if (result < 0)
		return result;
	if (fstatfs(fd, &statfs) < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	store->size_bytes = daemon->options.store_bytes;
	if (statfs.f_blocks && /* 0: no limit */
	    (uint64_t)statfs.f_blocks * (uint64_t)statfs.f_bsize < store->size_bytes)
		store->size_bytes = (uint64_t)statfs.f_blocks * (uint64_t)statfs.f_bsize;
	warn_of_swap(daemon, path);
	store->survives_restart = is_everybodys(fd);
	store->path = TAKE_PTR(path);
	store->fd = TAKE_FD(fd);
	return 0;
}

int gcr_store_attach(struct gcr_daemon *daemon, struct gcr_store *store, struct gcr_error *error)
{
	int result = geteuid() == 0 ? attach_mount(daemon, store, error) : 1;

	return result == 1 ? attach_directory(daemon, store, error) : result;
}

dev_t gcr_store_mount_device(const struct gcr_store *store)
{
	struct stat stat;

	return store->mountpoint && fstat(store->fd, &stat) == 0 ? stat.st_dev : 0;
}

/* The mount point's name is used by one thread at a time, briefly. */
static pthread_mutex_t apart_lock = PTHREAD_MUTEX_INITIALIZER;

int gcr_store_mount_apart(struct gcr_store *store, uint64_t bytes, int *ret_fd)
{
	_cleanup_free_ char *path = NULL;
	int result;
	int fd;
	GCR_LOCK_SCOPE(&apart_lock);

	if (asprintf(&path, "%s-transit", store->mountpoint) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	result = mount_tmpfs(store->may_swap, path, bytes);
	fd = result < 0 ? result : open_directory(AT_FDCWD, path);
	if (result >= 0 && umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
		gcr_log(LOG_WARNING, 0, "%s cannot be unmounted: %s", path, strerror(errno));
	/*
	 * Fails, and the directory stays, if a daemon that was killed here has left a mount on it.
	 */
	rmdir(path);
	if (fd < 0)
		return fd;
	*ret_fd = fd;
	return 0;
}

void gcr_store_detach(struct gcr_store *store)
{
	close(TAKE_FD(store->fd));
	if (store->mountpoint && umount2(store->mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
		gcr_log(LOG_WARNING, 0, "%s cannot be unmounted: %s", store->mountpoint,
			strerror(errno));
	if (rmdir(store->path) < 0)
		gcr_log(LOG_WARNING, 0, "%s cannot be removed: %s", store->path, strerror(errno));
}

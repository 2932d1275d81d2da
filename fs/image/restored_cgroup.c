/* SPDX-License-Identifier: MIT */
/* Makes and removes cgroups of restored trees. Keeps no state, holds no lock. */
#include "fs/image/restored_cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_cgroup.h"

#define PARENT	    "gpucrfs"
#define PREFIX	    "gpucr" /* followed by a number, if any, and '-' */
#define NAME_LENGTH 200	    /* limit of the given part; a file name may have 255 */
#define NUMBERS	    100
#define YOUNG_SEC   60
#define PATH_BYTES  32 /* of a path by a descriptor */

#define LOOK_USEC   (5 * GCR_USEC_PER_MSEC)
#define MOMENT_USEC (200 * GCR_USEC_PER_MSEC)

static int make_directory(const char *path)
{
	return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

/*
 * The path of a cgroup. Every name of a place is valid for a cgroup, except for newlines. The
 * number comes before the name, so that no name, whatever it is, leads to the path of another
 * place.
 */
static char *path_of(const char *point, const char *name, int number)
{
	char digits[16] = "";
	char *path;

	if (number > 1)
		snprintf(digits, sizeof(digits), "%d", number);
	if (asprintf(&path, "%s/" PARENT "/" PREFIX "%s-%.*s", point, digits, NAME_LENGTH, name) <
	    0)
		return NULL;
	for (char *c = path + strlen(point); *c; c++)
		if (*c == '\n')
			*c = '_';
	return path;
}

/* Is the cgroup so young that it may belong to another daemon which is about to use it? */
static bool is_young(const struct stat *stat)
{
	return time(NULL) - stat->st_mtim.tv_sec < YOUNG_SEC;
}

/*
 * Makes the cgroup @path; an unused one of that name is removed first. -EBUSY: the cgroup exists
 * and is in use, or may be.
 */
static int make_named(const char *path)
{
	struct stat status;

	if (mkdir(path, 0755) == 0)
		return 0;
	if (errno != EEXIST)
		return -errno;
	if (stat(path, &status) == 0 && is_young(&status))
		return -EBUSY;
	/* A cgroup that is left over may have settings: remove it and make a new one. */
	if (rmdir(path) < 0 && errno != ENOENT)
		return -errno;
	return mkdir(path, 0755) == 0 ? 0 : errno == EEXIST ? -EBUSY : -errno;
}

static int open_procs(const char *directory, uint64_t *ret_inode, int *ret_fd)
{
	_cleanup_close_ int directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat status;
	int fd;

	if (directory_fd < 0 || fstat(directory_fd, &status) < 0)
		return -errno;
	fd = openat(directory_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (ret_inode)
		*ret_inode = status.st_ino;
	*ret_fd = fd;
	return 0;
}

static int make_below(const char *point, const char *name, char **ret_directory,
		      uint64_t *ret_inode, int *ret_procs_fd)
{
	_cleanup_free_ char *parent = NULL;
	int r;

	if (asprintf(&parent, "%s/" PARENT, point) < 0) {
		parent = NULL;
		return -ENOMEM;
	}
	r = make_directory(parent);
	if (r < 0)
		return r;
	for (int number = 1; number <= NUMBERS; number++) {
		_cleanup_free_ char *path = path_of(point, name, number);

		if (!path)
			return -ENOMEM;
		r = make_named(path);
		if (r == -EBUSY)
			continue;
		if (r < 0)
			return r;
		r = open_procs(path, ret_inode, ret_procs_fd);
		if (r < 0)
			rmdir(path);
		else
			*ret_directory = TAKE_PTR(path);
		return r;
	}
	return r;
}

int gcr_restored_cgroup_make(const char *name, char **ret_directory, uint64_t *ret_inode,
			     int *ret_procs_fd, struct gcr_error *error)
{
	_cleanup_free_ char *point = NULL;
	int r = gcr_proc_cgroup_mount(&point);

	/*
	 * Removes cgroups that were too young for the sweep at start, or that a child process
	 * outlived.
	 */
	gcr_restored_cgroup_sweep();
	if (r == -ENOENT)
		return gcr_error_set(error, EOPNOTSUPP,
				     "no cgroup of its own for the restored processes: no cgroup2 "
				     "is mounted");
	if (r == 0)
		r = make_below(point, name, ret_directory, ret_inode, ret_procs_fd);
	if (r == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (r < 0)
		return gcr_error_set(error, -r,
				     "no cgroup of its own for the restored processes: %s/" PARENT
				     ": %s",
				     point ? point : "/proc/self/mountinfo", strerror(-r));
	return 0;
}

/*
 * Opens the cgroup @directory, if it has this inode number (0: any). *ret_path, of PATH_BYTES,
 * leads to this cgroup as long as it is open. -ENOENT: the cgroup no longer exists.
 */
static int open_cgroup(const char *directory, uint64_t inode, int *ret_fd, char *ret_path)
{
	_cleanup_close_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat status;

	if (fd < 0 || fstat(fd, &status) < 0)
		return errno == ENODEV ? -ENOENT : -errno;
	if (inode && status.st_ino != inode)
		return -ENOENT;
	snprintf(ret_path, PATH_BYTES, "/proc/self/fd/%d", fd);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static FILE *open_file(const char *directory, const char *name, const char *mode)
{
	char *path = NULL;
	FILE *file;
	int number;

	if (asprintf(&path, "%s/%s", directory, name) < 0) {
		errno = ENOMEM;
		return NULL;
	}
	file = fopen(path, mode);
	number = errno;
	free(path);
	errno = number;
	return file;
}

/* As gcr_restored_cgroup_is_used(), whatever cgroup that is. */
static bool is_used(const char *directory)
{
	_cleanup_fclose_ FILE *file = open_file(directory, "cgroup.events", "re");
	char line[64];

	/* If its state cannot be read, the cgroup counts as used. */
	if (!file)
		return errno != ENOENT && errno != ENODEV;
	while (fgets(line, sizeof(line), file))
		if (!strcmp(line, "populated 1\n"))
			return true;
	return false;
}

bool gcr_restored_cgroup_is_used(const char *directory, uint64_t inode)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_BYTES];
	int result = open_cgroup(directory, inode, &fd, path);

	return result ? result != -ENOENT : is_used(path);
}

static bool has_process(const char *directory, pid_t pid)
{
	_cleanup_fclose_ FILE *file = open_file(directory, "cgroup.procs", "re");
	char line[32];

	while (file && fgets(line, sizeof(line), file))
		if (atoi(line) == pid)
			return true;
	return false;
}

/*
 * Kills process @pid if it is in the cgroup now. The process is opened before that is looked up:
 * the pid that was listed before may be another process's.
 */
static void kill_one(const char *directory, pid_t pid)
{
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (pidfd >= 0 && has_process(directory, pid))
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

/* Kills the processes one by one: kernels before 5.14 have no cgroup.kill. */
static void kill_each(const char *directory)
{
	_cleanup_fclose_ FILE *file = open_file(directory, "cgroup.procs", "re");
	char line[32];

	while (file && fgets(line, sizeof(line), file)) {
		pid_t pid = atoi(line);

		/* 0 stands for a process outside our pid namespace. */
		if (pid > 1)
			kill_one(directory, pid);
	}
}

int gcr_restored_cgroup_kill(const char *directory, uint64_t inode, int64_t timeout_usec)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	_cleanup_close_ int fd = -1;
	char path[PATH_BYTES];
	bool has_kill;
	FILE *file;
	int r = open_cgroup(directory, inode, &fd, path);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	file = open_file(path, "cgroup.kill", "we");
	has_kill = file && fputs("1", file) >= 0;
	if (file && fclose(file))
		has_kill = false;
	while (is_used(path)) {
		if (!has_kill)
			kill_each(path);
		if (gcr_clock_usec() >= until_usec)
			return -ETIMEDOUT;
		usleep(LOOK_USEC);
	}
	return 0;
}

int gcr_restored_cgroup_remove(const char *directory, uint64_t inode)
{
	int64_t until_usec = gcr_clock_usec() + MOMENT_USEC;
	struct stat status;

	if (inode && (stat(directory, &status) < 0 || status.st_ino != inode))
		return 0;
	while (rmdir(directory) < 0) {
		if (errno == ENOENT)
			return 0;
		if (errno != EBUSY || gcr_clock_usec() >= until_usec)
			return -errno;
		usleep(LOOK_USEC);
	}
	return 0;
}

void gcr_restored_cgroup_sweep(void)
{
	_cleanup_free_ char *point = NULL;
	_cleanup_free_ char *parent = NULL;
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	struct stat status;

	if (gcr_proc_cgroup_mount(&point) < 0)
		return;
	if (asprintf(&parent, "%s/" PARENT, point) < 0) {
		parent = NULL;
		return;
	}
	dir = opendir(parent);
	/* The kernel refuses to remove a cgroup that has processes. */
	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, PREFIX, strlen(PREFIX)) &&
		    !fstatat(dirfd(dir), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) &&
		    !is_young(&status))
			unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
}

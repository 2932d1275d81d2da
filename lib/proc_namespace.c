/* SPDX-License-Identifier: MIT */
#include "lib/proc_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

/* Of <linux/pidfd.h>, for older headers. */
#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif
#ifndef PIDFD_GET_USER_NAMESPACE
#define PIDFD_GET_USER_NAMESPACE _IO(0xFF, 9)
#endif

int gcr_proc_open_user_namespace_at_once(pid_t pid, int *ret_fd)
{
	_cleanup_close_ int pidfd = -1;
	int fd;

	if (pid <= 0)
		return -ESRCH;
	pidfd = (int)syscall(SYS_pidfd_open, pid, PIDFD_THREAD);
	if (pidfd < 0)
		return -errno;
	fd = ioctl(pidfd, PIDFD_GET_USER_NAMESPACE, 0);
	if (fd < 0)
		return gcr_proc_error(errno);
	*ret_fd = fd;
	return 0;
}

int gcr_proc_open_namespace(pid_t pid, const char *name, int *ret_fd)
{
	char path[GCR_PROC_PATH_BYTES];
	int fd;

	if (pid <= 0)
		return -ESRCH;
	if (gcr_proc_source() && !strcmp(name, "user") &&
	    !gcr_proc_open_user_namespace_at_once(pid, ret_fd))
		return 0;
	if (gcr_proc_source())
		return gcr_proc_source()->open_namespace(pid, name, ret_fd);
	snprintf(path, sizeof(path), "/proc/%d/ns/%.16s", (int)pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return gcr_proc_error(errno);
	*ret_fd = fd;
	return 0;
}

/* Is the pid namespace of @target the one of @above, or a descendant of it? 1, 0, -errno. */
static int is_at_or_below(const struct stat *above, pid_t target)
{
	_cleanup_close_ int namespace = -1;
	struct stat targets;
	int r = gcr_proc_open_namespace(target, "pid", &namespace);

	if (r < 0)
		return r;
	for (;;) {
		int parent;

		if (fstat(namespace, &targets) < 0)
			return -errno;
		if (targets.st_dev == above->st_dev && targets.st_ino == above->st_ino)
			return 1;
		parent = ioctl(namespace, NS_GET_PARENT);
		/*
		 * EPERM: no parent, or one outside our own namespace, where the caller's cannot be
		 */
		if (parent < 0)
			return errno == EPERM ? 0 : -errno;
		close(namespace);
		namespace = parent;
	}
}

int gcr_proc_namespace_reaches(pid_t caller, pid_t target)
{
	_cleanup_close_ int namespace = -1;
	struct gcr_proc_status its, targets;
	char path[GCR_PROC_PATH_BYTES];
	struct stat callers;
	int r;

	if (caller <= 0 || target <= 0)
		return -ESRCH;
	/* The status is readable for everybody, and reading it does not block on the process. */
	if (gcr_proc_status(caller, &its) == 0) {
		/*
		 * A caller with only one pid is in our own namespace. Every process that has a pid
		 * here is in that namespace or below it.
		 */
		if (its.ns_pids_count == 1) {
			gcr_proc_path(path, target, "stat");
			return access(path, F_OK) < 0 ? gcr_proc_error(errno) : 1;
		}
		/* A process in the caller's namespace, or below it, has at least as many pids. */
		if (gcr_proc_status(target, &targets) == 0 &&
		    targets.ns_pids_count < its.ns_pids_count)
			return 0;
	}
	r = gcr_proc_open_namespace(caller, "pid", &namespace);
	if (r < 0)
		return r;
	return fstat(namespace, &callers) < 0 ? -errno : is_at_or_below(&callers, target);
}

int gcr_proc_namespace_holds(int namespace_fd, pid_t target)
{
	struct stat namespace;

	if (target <= 0)
		return -ESRCH;
	return fstat(namespace_fd, &namespace) < 0 ? -errno : is_at_or_below(&namespace, target);
}

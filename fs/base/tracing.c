/* SPDX-License-Identifier: MIT */
/* Follows __ptrace_may_access() and cap_capable() of the kernel; keeps no state. */
#include "fs/base/tracing.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

/* Does the descriptor refer to our user namespace? -errno. */
static int is_our_namespace(int fd)
{
	struct stat ours, its;

	if (stat("/proc/self/ns/user", &ours) < 0 || fstat(fd, &its) < 0)
		return -errno;
	return ours.st_dev == its.st_dev && ours.st_ino == its.st_ino;
}

/*
 * Opens the user namespace of a process. 1: it is ours, and *ret_fd is unchanged; 0; -errno. Where
 * we may not look into other users' processes, one with our map of user ids is in ours.
 */
static int open_namespace(pid_t pid, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	int result = gcr_proc_open_namespace(pid, "user", &fd);

	if (result == -EACCES && gcr_proc_has_our_uid_map(pid) == 1)
		return 1;
	if (!result)
		result = is_our_namespace(fd);
	if (!result)
		*ret_fd = TAKE_FD(fd);
	return result;
}

static bool has_sys_ptrace(pid_t pid)
{
	struct gcr_proc_status status;

	return !gcr_proc_status(pid, &status) &&
	       status.effective_capabilities >> CAP_SYS_PTRACE & 1;
}

void gcr_tracer_take(pid_t pid, uid_t uid, gid_t gid, struct gcr_tracer *ret_tracer)
{
	int result;

	*ret_tracer = (struct gcr_tracer){.uid = uid, .gid = gid, .namespace_fd = -1};
	if (!uid)
		return;
	result = open_namespace(pid, &ret_tracer->namespace_fd);
	ret_tracer->result = result < 0 ? result : 0;
	ret_tracer->is_ours = result == 1;
	ret_tracer->may_trace = has_sys_ptrace(pid);
}

void gcr_tracer_finish(struct gcr_tracer *tracer)
{
	if (tracer->namespace_fd >= 0)
		close(tracer->namespace_fd);
	tracer->namespace_fd = -1;
}

/* Is the namespace of @fd the tracer's? -errno. */
static int is_tracers(const struct gcr_tracer *tracer, int fd)
{
	struct stat tracers, its;

	if (tracer->is_ours)
		return is_our_namespace(fd);
	if (fstat(tracer->namespace_fd, &tracers) < 0 || fstat(fd, &its) < 0)
		return -errno;
	return tracers.st_dev == its.st_dev && tracers.st_ino == its.st_ino;
}

/*
 * Has the tracer all rights in the user namespace of @fd, which is not the tracer's own? It has if
 * it is in a namespace above, and has made the one next below its own, or has CAP_SYS_PTRACE. 1, 0,
 * -errno.
 */
static int rules(const struct gcr_tracer *tracer, int fd)
{
	_cleanup_close_ int above = -1;

	for (;;) {
		uid_t owner;
		int parent, result;

		if (ioctl(fd, NS_GET_OWNER_UID, &owner) < 0)
			return -errno;
		parent = ioctl(fd, NS_GET_PARENT);
		/* EPERM: there is none, or it is above ours, where no tracer can be. */
		if (parent < 0)
			return errno == EPERM ? 0 : -errno;
		if (above >= 0)
			close(above);
		fd = above = parent;
		result = is_tracers(tracer, fd);
		if (result)
			return result < 0 ? result : tracer->may_trace || owner == tracer->uid;
	}
}

static int explain_group(pid_t pid, gid_t its, gid_t gid, struct gcr_error *error)
{
	return gcr_error_set(error, EPERM,
			     "process %d has group %u, and not your group %u: the kernel lets no "
			     "process of another group look into it (ptrace(2)); take its group, "
			     "by newgrp(1) for instance, or ask root",
			     (int)pid, (unsigned int)its, (unsigned int)gid);
}

static int explain_namespace(pid_t pid, int fd, struct gcr_error *error)
{
	struct stat stat = {0};

	if (fd >= 0)
		fstat(fd, &stat);
	if (!stat.st_ino)
		return gcr_error_set(error, EPERM,
				     "process %d is in the daemon's user namespace, and you are "
				     "not; act from there, or ask root",
				     (int)pid);
	return gcr_error_set(error, EPERM,
			     "process %d is in the user namespace user:[%llu], which is neither "
			     "yours nor made by you; act from there (nsenter(1)), or ask root",
			     (int)pid, (unsigned long long)stat.st_ino);
}

static int explain_unknown(pid_t pid, int result, struct gcr_error *error)
{
	if (result == -ESRCH)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)pid);
	if (gcr_proc_is_silent(result))
		return gcr_error_set(error, ETIMEDOUT, "process %d " GCR_PROC_SILENT_WORDS,
				     (int)pid);
	return gcr_error_set(error, EPERM, "the user namespace of process %d is unknown: %s",
			     (int)pid, strerror(-result));
}

/*
 * For two processes in one user namespace: have they the same group? Root of a namespace has all of
 * its processes.
 */
static int check_group(const struct gcr_tracer *tracer, pid_t pid, struct gcr_error *error)
{
	struct gcr_proc_status status;
	int result = gcr_proc_status(pid, &status);

	if (result < 0)
		return explain_unknown(pid, result, error);
	if ((status.has_one_user && status.real_gid == tracer->gid) || tracer->may_trace)
		return 0;
	if (!tracer->is_ours && gcr_proc_namespace_root(pid, "uid_map") == tracer->uid)
		return 0;
	return explain_group(pid, status.real_gid, tracer->gid, error);
}

static bool is_decided(uid_t uid, uid_t owner)
{
	return !uid || uid != owner || geteuid();
}

/* Compares the namespaces, with that of the process in @fd; -1: it is ours. */
static int check_namespace(const struct gcr_tracer *tracer, pid_t pid, int fd,
			   struct gcr_error *error)
{
	int result = fd < 0 ? tracer->is_ours : tracer->is_ours ? 0 : is_tracers(tracer, fd);

	if (result > 0)
		return check_group(tracer, pid, error);
	if (!result && fd >= 0)
		result = rules(tracer, fd);
	if (result < 0)
		return explain_unknown(pid, result, error);
	return result ? 0 : explain_namespace(pid, fd, error);
}

int gcr_tracer_check(const struct gcr_tracer *tracer, pid_t pid, uid_t owner,
		     struct gcr_error *error)
{
	_cleanup_close_ int fd = -1;
	int result;

	if (is_decided(tracer->uid, owner))
		return 0;
	if (gcr_proc_is_silent(tracer->result))
		return gcr_error_set(error, ETIMEDOUT,
				     "your process could not be looked at in time; try again");
	if (tracer->result < 0)
		return gcr_error_set(error, EPERM,
				     "the user namespace of your process is unknown: %s",
				     strerror(-tracer->result));
	result = open_namespace(pid, &fd);
	if (result < 0)
		return explain_unknown(pid, result, error);
	return check_namespace(tracer, pid, fd, error);
}

/* Have both the same map of user ids? False also if a map cannot be read. */
static bool have_one_map(pid_t left, pid_t right)
{
	_cleanup_free_ char *lefts = NULL, *rights = NULL;
	char path[GCR_PROC_PATH_BYTES];

	gcr_proc_path(path, left, "uid_map");
	if (gcr_file_read(path, &lefts, NULL) < 0)
		return false;
	gcr_proc_path(path, right, "uid_map");
	return !gcr_file_read(path, &rights, NULL) && !strcmp(lefts, rights);
}

int gcr_tracer_check_quickly(pid_t caller, uid_t uid, gid_t gid, pid_t pid, uid_t owner,
			     struct gcr_error *error)
{
	struct gcr_tracer tracer = {.uid = uid, .gid = gid, .namespace_fd = -1};

	if (is_decided(uid, owner))
		return 0;
	if (!have_one_map(caller, pid))
		return -EAGAIN;
	tracer.is_ours = gcr_proc_has_our_uid_map(caller) == 1;
	tracer.may_trace = has_sys_ptrace(caller);
	return check_group(&tracer, pid, error);
}

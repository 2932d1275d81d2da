/* SPDX-License-Identifier: MIT */
/*
 * Follows __ptrace_may_access() and cap_capable() of the kernel, but for has_gone_below(); keeps no
 * state.
 */
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

/* Which user namespace the descriptor refers to; -1: ours. */
static int identify(int fd, struct stat *ret_stat)
{
	return (fd < 0 ? stat("/proc/self/ns/user", ret_stat) : fstat(fd, ret_stat)) < 0 ? -errno
											 : 0;
}

/* Do both refer to one user namespace? -errno. */
static int is_same(int fd, int other_fd)
{
	struct stat one, other;
	int result = identify(fd, &one);

	if (!result)
		result = identify(other_fd, &other);
	return result < 0 ? result : one.st_dev == other.st_dev && one.st_ino == other.st_ino;
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
		result = is_same(fd, -1);
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

/*
 * Is the user namespace of @fd below the other one (-1: ours)? 1, and *ret_maker is the user who
 * has made the one that is next below that; 0; -errno.
 */
static int is_below(int fd, int above_fd, uid_t *ret_maker)
{
	_cleanup_close_ int parent_fd = -1;

	for (;;) {
		int parent, result;

		if (ioctl(fd, NS_GET_OWNER_UID, ret_maker) < 0)
			return -errno;
		parent = ioctl(fd, NS_GET_PARENT);
		/* EPERM: there is none, or it is above ours, where nobody is whom we serve. */
		if (parent < 0)
			return errno == EPERM ? 0 : -errno;
		if (parent_fd >= 0)
			close(parent_fd);
		fd = parent_fd = parent;
		result = is_same(fd, above_fd);
		if (result)
			return result;
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
 * Has the tracer the group of the process? If both are in one user namespace (@are_together), its
 * capability does instead, and root of a namespace has all of its processes.
 */
static int check_group(const struct gcr_tracer *tracer, pid_t pid, bool are_together,
		       struct gcr_error *error)
{
	struct gcr_proc_status status;
	int result = gcr_proc_status(pid, &status);

	if (result < 0)
		return explain_unknown(pid, result, error);
	if (status.has_one_user && status.real_gid == tracer->gid)
		return 0;
	if (are_together &&
	    (tracer->may_trace ||
	     (!tracer->is_ours && gcr_proc_namespace_root(pid, "uid_map") == tracer->uid)))
		return 0;
	return explain_group(pid, status.real_gid, tracer->gid, error);
}

static bool is_decided(uid_t uid, uid_t owner)
{
	return !uid || uid != owner || geteuid();
}

/*
 * Has the tracer, in a namespace above that of @fd, all rights there? It has if it has made the one
 * next below its own, or has CAP_SYS_PTRACE. 1, 0, -errno.
 */
static int rules(const struct gcr_tracer *tracer, int fd)
{
	uid_t maker;
	int result = fd < 0 ? 0 : is_below(fd, tracer->namespace_fd, &maker);

	return result <= 0 ? result : tracer->may_trace || maker == tracer->uid;
}

/*
 * Has the user gone into a namespace of his own making, below that of @fd (-1: ours)? The kernel
 * asks for more, but that keeps no user from his processes: he has others above. 1, 0, -errno.
 */
static int has_gone_below(const struct gcr_tracer *tracer, int fd)
{
	uid_t maker;
	int result = tracer->is_ours ? 0 : is_below(tracer->namespace_fd, fd, &maker);

	return result <= 0 ? result : maker == tracer->uid;
}

/* Compares the namespaces, with that of the process in @fd (-1: ours). */
static int check_namespace(const struct gcr_tracer *tracer, pid_t pid, int fd,
			   struct gcr_error *error)
{
	int result = is_same(tracer->namespace_fd, fd);

	if (result > 0)
		return check_group(tracer, pid, true, error);
	if (!result)
		result = has_gone_below(tracer, fd);
	if (result > 0)
		return check_group(tracer, pid, false, error);
	if (!result)
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

int gcr_tracer_check_quickly(pid_t caller, uid_t uid, gid_t gid, pid_t pid, uid_t owner,
			     struct gcr_error *error)
{
	struct gcr_tracer tracer = {.uid = uid, .gid = gid, .is_ours = true, .namespace_fd = -1};

	if (is_decided(uid, owner))
		return 0;
	if (gcr_proc_has_our_uid_map(caller) != 1 || gcr_proc_has_our_uid_map(pid) != 1)
		return -EAGAIN;
	tracer.may_trace = has_sys_ptrace(caller);
	return check_group(&tracer, pid, true, error);
}

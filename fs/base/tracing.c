/* SPDX-License-Identifier: MIT */
/*
 * Follows __ptrace_may_access() and cap_capable() of the kernel, but for go_outside(); keeps no
 * state.
 */
#include "fs/base/tracing.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/id_map.h"
#include "lib/proc_file.h"
#include "lib/proc_namespace.h"
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

/* Takes @fd. 1: it is our user namespace; 0: *ret_fd is the descriptor; -errno. */
static int keep_others(int fd, int *ret_fd)
{
	_cleanup_close_ int namespace_fd = fd;
	int result = is_same(namespace_fd, -1);

	if (!result)
		*ret_fd = TAKE_FD(namespace_fd);
	return result;
}

/*
 * Opens the user namespace of a process. 1: it is ours, and *ret_fd is unchanged; 0; -errno. Where
 * we may not look into other users' processes, one with our map of user ids is in ours. A silent
 * one with our map is not taken for one in ours: root can give that map to another namespace, and
 * a user can see to it that the look is not made. Kernels from 6.11 on need none.
 */
static int open_namespace(pid_t pid, int *ret_fd)
{
	int fd, result = gcr_proc_open_namespace(pid, "user", &fd);

	if (result == -EACCES && gcr_id_map_is_ours(pid) == 1)
		return 1;
	return result < 0 ? result : keep_others(fd, ret_fd);
}

/* The same, without a look. */
static int open_namespace_at_once(pid_t pid, int *ret_fd)
{
	int fd, result = gcr_proc_open_user_namespace_at_once(pid, &fd);

	return result < 0 ? result : keep_others(fd, ret_fd);
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
		/* EPERM: there is none, or it is above ours, where no caller of the daemon is. */
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
	if (are_together && (tracer->may_trace ||
			     (!tracer->is_ours && gcr_id_map_root(pid, "uid_map") == tracer->uid)))
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
 * Opens the namespace above the topmost one of those at and above @fd that user @uid has made. 1;
 * 0: he has made none of them; -errno.
 */
static int open_outside(int fd, uid_t uid, int *ret_fd)
{
	_cleanup_close_ int parent_fd = -1, outside_fd = -1;
	uid_t maker;

	for (int is_ours = 0; !is_ours;) {
		int parent;

		if (ioctl(fd, NS_GET_OWNER_UID, &maker) < 0)
			return -errno;
		parent = ioctl(fd, NS_GET_PARENT);
		if (parent < 0 && errno != EPERM)
			return -errno;
		if (parent < 0) /* as in is_below() */
			break;
		if (parent_fd >= 0)
			close(parent_fd);
		fd = parent_fd = parent;
		if (maker == uid && outside_fd >= 0)
			close(TAKE_FD(outside_fd));
		if (maker == uid && (outside_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
			return -errno;
		is_ours = is_same(fd, -1);
		if (is_ours < 0)
			return is_ours;
	}
	if (outside_fd < 0)
		return 0;
	*ret_fd = TAKE_FD(outside_fd);
	return 1;
}

/*
 * What the user is where he was before he went into namespaces of his own making. The kernel asks
 * for more, but that keeps no user from his processes: he has others outside, without the tracer's
 * capability. gcr_tracer_finish() must follow. 1; 0: the tracer is in no namespace of his making;
 * -errno.
 */
static int go_outside(const struct gcr_tracer *tracer, struct gcr_tracer *ret_outside)
{
	*ret_outside =
		(struct gcr_tracer){.uid = tracer->uid, .gid = tracer->gid, .namespace_fd = -1};
	return tracer->is_ours ? 0
			       : open_outside(tracer->namespace_fd, tracer->uid,
					      &ret_outside->namespace_fd);
}

/*
 * Compares the user namespaces, with that of the process in @fd (-1: ours). @is_tracers: with the
 * tracer's own; else root of the namespace counts for no more than its user.
 */
static int compare(const struct gcr_tracer *tracer, pid_t pid, int fd, bool is_tracers,
		   struct gcr_error *error)
{
	int result = is_same(tracer->namespace_fd, fd);

	if (result > 0)
		return check_group(tracer, pid, is_tracers, error);
	if (!result)
		result = rules(tracer, fd);
	if (result < 0)
		return explain_unknown(pid, result, error);
	return result ? 0 : explain_namespace(pid, fd, error);
}

/* The same from where the tracer is, and else from outside the namespaces of his making. */
static int check_namespace(const struct gcr_tracer *tracer, pid_t pid, int fd,
			   struct gcr_error *error)
{
	_cleanup_(gcr_tracer_finish) struct gcr_tracer outside;
	int result = go_outside(tracer, &outside);
	struct gcr_error unused;

	if (result < 0)
		return explain_unknown(pid, result, error);
	if (!result)
		return compare(tracer, pid, fd, true, error);
	return compare(tracer, pid, fd, true, &unused) ? compare(&outside, pid, fd, false, error)
						       : 0;
}

int gcr_tracer_check(const struct gcr_tracer *tracer, pid_t pid, uid_t owner,
		     struct gcr_error *error)
{
	_cleanup_close_ int fd = -1;
	int result;

	if (is_decided(tracer->uid, owner))
		return 0;
	if (tracer->result == -EBUSY)
		return gcr_error_set(error, ETIMEDOUT,
				     "your process was not looked at, since it or others of yours "
				     "do not let themselves be looked at; end these, or try again");
	if (tracer->result == -ETIMEDOUT)
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

bool gcr_tracer_equals(const struct gcr_tracer *tracer, const struct gcr_tracer *other)
{
	return !tracer->result && !other->result && tracer->uid == other->uid &&
	       tracer->gid == other->gid && tracer->may_trace == other->may_trace &&
	       is_same(tracer->namespace_fd, other->namespace_fd) == 1;
}

int gcr_tracer_check_at_once(pid_t caller, uid_t uid, gid_t gid, pid_t pid, uid_t owner,
			     struct gcr_error *error)
{
	_cleanup_(gcr_tracer_finish) struct gcr_tracer tracer = {
		.uid = uid, .gid = gid, .namespace_fd = -1};
	_cleanup_close_ int fd = -1;
	int is_ours;

	if (is_decided(uid, owner))
		return 0;
	is_ours = open_namespace_at_once(caller, &tracer.namespace_fd);
	if (is_ours < 0 || open_namespace_at_once(pid, &fd) < 0)
		return -EAGAIN;
	tracer.is_ours = is_ours;
	tracer.may_trace = has_sys_ptrace(caller);
	return check_namespace(&tracer, pid, fd, error);
}

int gcr_tracer_check_quickly(pid_t caller, uid_t uid, gid_t gid, pid_t pid, uid_t owner,
			     struct gcr_error *error)
{
	struct gcr_tracer tracer = {.uid = uid, .gid = gid, .is_ours = true, .namespace_fd = -1};

	if (is_decided(uid, owner))
		return 0;
	if (gcr_id_map_is_ours(caller) != 1 || gcr_id_map_is_ours(pid) != 1)
		return -EAGAIN;
	tracer.may_trace = has_sys_ptrace(caller);
	return check_group(&tracer, pid, true, error);
}

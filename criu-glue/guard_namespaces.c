/* SPDX-License-Identifier: MIT */
/*
 * The namespaces that CRIU enters at a dump. A process can get a user namespace, and in it a mount
 * namespace, after the daemon has looked at it. There CRIU would make directories as root where the
 * process's user says, and start programs with descriptors of root's, which this user can take. So
 * CRIU enters no namespace that belongs to another user namespace than its own: the dump fails.
 */
#include "criu-glue/guard.h"
#include "criu-glue/guard_dump.h"

#include <errno.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_our_user_namespace(int fd)
{
	struct stat ours, its;

	return stat("/proc/self/ns/user", &ours) == 0 && fstat(fd, &its) == 0 &&
	       ours.st_dev == its.st_dev && ours.st_ino == its.st_ino;
}

/*
 * Does the namespace belong to our user namespace, or to one above it? Users can make neither by
 * themselves. A set-user-ID program makes a mount namespace of ours for them (SECURITY.md).
 */
static bool is_ours(int fd)
{
	int type = ioctl(fd, NS_GET_NSTYPE), owner;
	bool is;

	if (type < 0)
		return false;
	if (type == CLONE_NEWUSER)
		return is_our_user_namespace(fd);
	owner = ioctl(fd, NS_GET_USERNS);
	/* The kernel does not show what is above. */
	if (owner < 0)
		return errno == EPERM;
	is = is_our_user_namespace(owner);
	close(owner);
	return is;
}

GCR_GUARD_EXPORT int setns(int fd, int type)
{
	if (gcr_guard_is_dump() && !is_ours(fd))
		return gcr_guard_refuse("the tree has a user namespace of its own");
	return (int)syscall(SYS_setns, fd, type);
}

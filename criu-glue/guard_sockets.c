/* SPDX-License-Identifier: MIT */
/*
 * The sockets of a restored program, in CRIU, and the process that gets the signals of a
 * descriptor. The kernel tells the other end of a unix socket with whose effective ids it was made,
 * listened to or connected: with CRIU's own, root's, a program of an ordinary user could pass for
 * root. With each message it can tell the real ids of the sender; a user can have put another
 * socket in the place of the one that waits for it. So the processes of the tree that CRIU makes
 * use sockets with the rights of the tree's owner. CRIU itself is unaffected.
 */
#include "criu-glue/guard.h"
#include "criu-glue/guard_dump.h"
#include "criu-glue/guard_rights.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* A system call and its arguments. */
struct call {
	long number;
	long arguments[4];
};

static int make(const struct call *call)
{
	return (int)syscall(call->number, call->arguments[0], call->arguments[1],
			    call->arguments[2], call->arguments[3]);
}

/*
 * Makes the call, in a process of the tree with the owner's rights. Returns the call's result; -1
 * also if these rights cannot be had.
 */
static int make_guarded(const struct call *call)
{
	struct gcr_guard_saved saved;
	int result;

	if (!gcr_guard_has_owner() || gcr_guard_is_criu())
		return make(call);
	if (gcr_guard_begin(&saved) < 0)
		return -1;
	result = make(call);
	gcr_guard_end(&saved);
	return result;
}

/* Is the address one of a unix socket, whether it has a name in the file system or not? */
static bool is_unix(const struct sockaddr *address, socklen_t bytes)
{
	return address && bytes >= sizeof(address->sa_family) && address->sa_family == AF_UNIX;
}

/*
 * Makes the call @number (bind, connect), guarded for a unix socket only. CRIU restores connections
 * of other kinds in a mode that only root may use.
 */
static int address_guarded(long number, int fd, const struct sockaddr *address, socklen_t bytes)
{
	const struct call call = {number, {fd, (long)address, (long)bytes}};

	return is_unix(address, bytes) ? make_guarded(&call) : make(&call);
}

int gcr_guard_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return address_guarded(SYS_bind, fd, address, bytes);
}

int gcr_guard_listen(int fd, int backlog)
{
	return make_guarded(&(struct call){SYS_listen, {fd, backlog}});
}

/* Is the socket a unix one whose other end has a name in the file system? */
static bool has_path(int fd)
{
	struct sockaddr_un name;
	socklen_t bytes = sizeof(name);

	return getpeername(fd, (struct sockaddr *)&name, &bytes) == 0 &&
	       is_unix((struct sockaddr *)&name, bytes) &&
	       bytes > offsetof(struct sockaddr_un, sun_path) && name.sun_path[0];
}

ssize_t gcr_guard_sendmsg(int fd, const struct msghdr *message, int flags)
{
	bool is_owners = gcr_guard_has_owner() && !gcr_guard_is_criu() && has_path(fd);
	struct gcr_guard_saved saved;
	ssize_t result;

	if (is_owners && gcr_guard_begin_real(&saved) < 0)
		return -1;
	result = syscall(SYS_sendmsg, fd, message, flags);
	if (is_owners)
		gcr_guard_end(&saved);
	return result;
}

GCR_GUARD_EXPORT int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return address_guarded(SYS_connect, fd, address, bytes);
}

GCR_GUARD_EXPORT int socket(int domain, int type, int protocol)
{
	return make_guarded(&(struct call){SYS_socket, {domain, type, protocol}});
}

GCR_GUARD_EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
	return make_guarded(&(struct call){SYS_socketpair, {domain, type, protocol, (long)fds}});
}

/* ---- who gets the signals of a descriptor ---- */

/*
 * Does this process have the owner's ids, so that it may get the signals of a descriptor? True if
 * there is no owner. The kernel sends the signals with the ids that the process has at this call,
 * and CRIU takes those from the images, where the program itself has put them.
 */
static bool may_own(void)
{
	uid_t real, effective, saved;

	return !gcr_guard_has_owner() ||
	       (getresuid(&real, &effective, &saved) == 0 && real == gcr_guard_owner() &&
		effective == gcr_guard_owner());
}

/*
 * Does this call let the kernel keep the process's present ids, to send it the signals of the
 * descriptor? A lease does, and O_ASYNC of a terminal. False in CRIU itself, and without an owner.
 */
static bool takes_ids(int command, long argument)
{
	return gcr_guard_has_owner() && !gcr_guard_is_criu() &&
	       (command == F_SETLEASE || (command == F_SETFL && argument & O_ASYNC));
}

/*
 * Makes the call with the owner's ids: a lease is then possible for the owner's own files only.
 * Returns the call's result; -1 also if these ids cannot be had.
 */
static int call_with_ids(int (*real)(int fd, int command, ...), int fd, int command, long argument)
{
	struct gcr_guard_saved saved;
	int result;

	if (gcr_guard_begin_real(&saved) < 0)
		return -1;
	result = real(fd, command, argument);
	gcr_guard_end(&saved);
	return result;
}

/*
 * The descriptor that has kept O_APPEND, against the flags that CRIU has set. CRIU reads the flags
 * once, and gives up if they are not these. -1: none.
 */
static int appending_fd = -1;

/*
 * Is @fd a regular file that is open for appending, in a restore? CRIU would clear that flag of a
 * file that root has named.
 */
static bool appends(int fd)
{
	long flags = syscall(SYS_fcntl, fd, F_GETFL);
	struct stat stat;

	return flags >= 0 && flags & O_APPEND && !gcr_guard_is_dump() && fstat(fd, &stat) == 0 &&
	       S_ISREG(stat.st_mode);
}

static int fcntl_guarded(int fd, int command, va_list *arguments)
{
	static int (*real)(int fd, int command, ...);
	long argument = va_arg(*arguments, long);
	int result;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fcntl64");
	if (!real) {
		errno = ENOSYS;
		return -1;
	}
	if ((command == F_SETOWN || command == F_SETOWN_EX) && !may_own()) {
		errno = EPERM;
		return -1;
	}
	if (command == F_SETFL) {
		bool keeps = !(argument & O_APPEND) && appends(fd);

		appending_fd = keeps ? fd : -1;
		argument |= keeps ? O_APPEND : 0;
	}
	result = takes_ids(command, argument) ? call_with_ids(real, fd, command, argument)
					      : real(fd, command, argument);
	if (command != F_GETFL || fd != appending_fd || result < 0)
		return result;
	appending_fd = -1;
	return result & ~O_APPEND;
}

#define DEFINE_FCNTL(function, name)                                           \
	int function(int fd, int command, ...) __asm__(name) GCR_GUARD_EXPORT; \
	int function(int fd, int command, ...)                                 \
	{                                                                      \
		va_list arguments;                                             \
		int result;                                                    \
                                                                               \
		va_start(arguments, command);                                  \
		result = fcntl_guarded(fd, command, &arguments);               \
		va_end(arguments);                                             \
		return result;                                                 \
	}

DEFINE_FCNTL(guard_fcntl, "fcntl")
DEFINE_FCNTL(guard_fcntl64, "fcntl64")

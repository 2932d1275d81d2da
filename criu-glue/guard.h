/* SPDX-License-Identifier: MIT */
/* What the files of libgpucr-criu-guard.so share. */
#ifndef GCR_CRIU_GLUE_GUARD_H
#define GCR_CRIU_GLUE_GUARD_H

#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/types.h>

#define GCR_GUARD_EXPORT __attribute__((visibility("default")))

/* openat(2) of the kernel, past the guard. */
int gcr_guard_open(int fd, const char *name, int flags, mode_t mode);

/* Writes a message to standard error, which is CRIU's log; -1, and EPERM in errno. */
int gcr_guard_refuse(const char *words);

/*
 * As bind(2) and listen(2). A process of a restored tree makes the call with the owner's rights:
 * bind(2) for a unix socket, listen(2) for any socket.
 */
int gcr_guard_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int gcr_guard_listen(int fd, int backlog);
/*
 * As sendmsg(2). A process of a restored tree sends with the owner's rights, real ids included, if
 * the other end is a unix socket with a path.
 */
ssize_t gcr_guard_sendmsg(int fd, const struct msghdr *message, int flags);

/*
 * Called before each ptrace(2) of CRIU, with its first two arguments. Once the threads of a
 * restored process @pid have their own rights, makes the process dumpable, if the daemon has listed
 * it. -1 and errno: the process cannot be made dumpable, and CRIU has to give up.
 */
int gcr_guard_trace(enum __ptrace_request request, pid_t pid);

#endif

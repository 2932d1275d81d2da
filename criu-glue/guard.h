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

/* As bind(2) and listen(2); in a process of the tree, a unix socket with the owner's rights. */
int gcr_guard_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int gcr_guard_listen(int fd, int backlog);
/* As sendmsg(2); in a process of the tree, to a unix socket with a path as the owner. */
ssize_t gcr_guard_sendmsg(int fd, const struct msghdr *message, int flags);

/*
 * To be called before CRIU's call of ptrace(2) of this kind. When all threads of a restored
 * tree have their own rights, makes the processes dumpable that are to be. -1 and errno: it cannot
 * be done, and CRIU has to give up.
 */
int gcr_guard_trace(enum __ptrace_request request, pid_t pid);

#endif

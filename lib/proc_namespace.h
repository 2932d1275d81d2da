/* SPDX-License-Identifier: MIT */
/* Namespaces of processes, and whether one pid namespace is above another. */
#ifndef GCR_PROC_NAMESPACE_H
#define GCR_PROC_NAMESPACE_H

#include <sys/types.h>

/*
 * Opens the namespace /proc/PID/ns/NAME ("pid", "user") of a process or thread. -ESRCH, -EACCES.
 * "user" does not ask the source of lib/proc_source.h where the function below succeeds.
 */
int gcr_proc_open_namespace(pid_t pid, const char *name, int *ret_fd);

/*
 * Opens the user namespace of a process or thread by a pidfd, which never waits for the process.
 * Any error says that gcr_proc_open_namespace() has to be asked: a kernel before 6.11, a main
 * thread that has ended while others go on, a process that we may not look into.
 */
int gcr_proc_open_user_namespace_at_once(pid_t pid, int *ret_fd);

/*
 * May a caller (task @caller) reach process @target by pid namespaces: is @target's namespace the
 * caller's or a descendant of it? 1, 0, -errno.
 */
int gcr_proc_namespace_reaches(pid_t caller, pid_t target);

/* The same for callers in the pid namespace that @namespace_fd refers to. */
int gcr_proc_namespace_holds(int namespace_fd, pid_t target);

#endif

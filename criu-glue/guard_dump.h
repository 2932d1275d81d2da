/* SPDX-License-Identifier: MIT */
/* The guard's part in CRIU's opening of a dumped program's files. */
#ifndef GCR_CRIU_GLUE_GUARD_DUMP_H
#define GCR_CRIU_GLUE_GUARD_DUMP_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Does this CRIU dump a tree? Then the daemon has named the root of the tree in the environment,
 * which is read at the start of the program.
 */
bool gcr_guard_is_dump(void);

/*
 * Is @pid the pid of that root? *ret_pidfd is CRIU's descriptor of the root's pidfd, and stays
 * CRIU's.
 */
bool gcr_guard_is_dump_root(pid_t pid, int *ret_pidfd);

/*
 * As openat(2) at a descriptor, without O_CREAT. EPERM, with a message to standard error: CRIU
 * would write to another file than its own memory in a process of the tree.
 */
int gcr_guard_dump_open(int fd, const char *name, int flags);

/* As linkat(2). EPERM, with a message: the directory of @to, or one above it, is not root's. */
int gcr_guard_dump_link(int from_fd, const char *from, int to_fd, const char *to, int flags);

#endif

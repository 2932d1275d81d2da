/* SPDX-License-Identifier: MIT */
/*
 * A process and all that it has made: children by the kernel's own lists of them
 * (/proc/PID/task/TID/children, of kernels with CONFIG_PROC_CHILDREN, which CRIU needs too).
 */
#ifndef GCR_LIB_PROC_TREE_H
#define GCR_LIB_PROC_TREE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/procfs.h"

/*
 * Calls @visit with every child of @pid, whichever of its threads is the parent, until it returns
 * non-zero, and returns that; else 0, -ESRCH, -EACCES, -EOPNOTSUPP: the kernel has no such lists.
 * While children end the kernel may leave out others (proc(5)), and what is listed may be gone or
 * another process by the time it is visited: gcr_proc_tree() makes sure.
 */
int gcr_proc_each_child(pid_t pid, int (*visit)(pid_t child, void *data), void *data);

struct gcr_proc_member {
	pid_t pid;
	pid_t parent; /* of the root: not of the tree */
	uint64_t start_ticks;
	char state; /* as in gcr_proc_stat: 'Z' and 'X' have ended, and nobody has waited for them
		     */
	char comm[GCR_COMM_BYTES];
};

#define GCR_PROC_TREE_MAX 4096u /* processes of a tree */

/*
 * @root and all its descendants, every one behind its parent, zombies too. What has been given to
 * another parent since its own ended (init, a subreaper) is in the tree only if that parent is.
 * The tree is walked until two walks find the same, so one that is stopped is found as it is; one
 * that runs may change the moment after. The list is for the caller to free. With words: -ESRCH no
 * such root, -EBUSY it changes all the time, -E2BIG more than GCR_PROC_TREE_MAX, -EACCES,
 * -EOPNOTSUPP, -ENOMEM.
 */
int gcr_proc_tree(pid_t root, struct gcr_proc_member **ret_members, size_t *ret_count,
		  struct gcr_error *error);

#endif

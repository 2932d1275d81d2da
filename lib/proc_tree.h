/* SPDX-License-Identifier: MIT */
/*
 * A process and all its descendants, by the kernel's lists of children
 * (/proc/PID/task/TID/children, of kernels with CONFIG_PROC_CHILDREN, which CRIU needs too).
 */
#ifndef GCR_LIB_PROC_TREE_H
#define GCR_LIB_PROC_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/procfs.h"

/*
 * Calls @visit for every child of @pid, whichever of its threads is the parent, until @visit
 * returns non-zero, and returns that value; else 0, -ESRCH, -EACCES, -EOPNOTSUPP: the kernel has no
 * such lists. While children end the kernel may skip others (proc(5)), and a listed child may have
 * ended, or its pid been reused, before it is visited: gcr_proc_tree() handles both.
 */
int gcr_proc_each_child(pid_t pid, int (*visit)(pid_t child, void *data), void *data);

struct gcr_proc_member {
	pid_t pid;
	pid_t parent; /* of the root: a process outside the tree */
	uint64_t start_ticks;
	/* As in gcr_proc_stat; 'Z' and 'X': the process has ended and has not been waited for. */
	char state;
	char comm[GCR_COMM_BYTES];
};

#define GCR_PROC_TREE_MAX 4096u /* processes of a tree */

/*
 * Lists @root and all its descendants, every process after its parent, zombies too. A process that
 * was given another parent when its own ended (init, a subreaper) is in the tree only if that
 * parent is. The tree is walked until two walks give the same result, so the list of a stopped tree
 * is exact; a running tree may change a moment later. The caller frees the list. Errors, with a
 * message: -ESRCH no such root, -EBUSY it changes all the time, -E2BIG more than GCR_PROC_TREE_MAX,
 * -ETIMEDOUT a process could not be looked at in time, -EACCES, -EOPNOTSUPP, -ENOMEM.
 */
int gcr_proc_tree(pid_t root, struct gcr_proc_member **ret_members, size_t *ret_count,
		  struct gcr_error *error);

/* Limits for a search that any user may trigger. */
struct gcr_proc_tree_limits {
	unsigned int members_max; /* processes of the tree, the root included */
	unsigned int walks_max;
	int64_t until_usec; /* the deadline of all walks (gcr_clock_usec()); INT64_MAX: none */
	/*
	 * The last whole walk is enough if no two give the same result: the list may then lack
	 * processes that began during it, and others that the kernel skipped.
	 */
	bool takes_changing;
};

/*
 * As gcr_proc_tree(), within @limits. -E2BIG: more than members_max; -EBUSY: walks_max walks did
 * not agree; -ETIMEDOUT also means that the deadline has passed.
 */
int gcr_proc_tree_within(pid_t root, const struct gcr_proc_tree_limits *limits,
			 struct gcr_proc_member **ret_members, size_t *ret_count,
			 struct gcr_error *error);

#endif

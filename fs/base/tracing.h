/* SPDX-License-Identifier: MIT */
/*
 * Would the kernel let a user's process look into another process of the same user id? ptrace(2)
 * compares the groups too, and asks for a capability in the process's user namespace (ptrace(2),
 * "Ptrace access mode checking"). From a user namespace that a user has made himself he has the
 * processes outside as before, those in other namespaces of his making too. Checks that are needed
 * only where root serves users: for a daemon of another user the kernel makes them.
 */
#ifndef GCR_FS_BASE_TRACING_H
#define GCR_FS_BASE_TRACING_H

#include <stdbool.h>
#include <sys/types.h>

#include "lib/error.h"

/* A process that asks; its thread waits for the answer when these facts are read. */
struct gcr_tracer {
	uid_t uid; /* for access to files, in our user namespace */
	gid_t gid;
	bool may_trace;	  /* it has CAP_SYS_PTRACE in its user namespace */
	int result;	  /* -errno: its user namespace could not be found out */
	bool is_ours;	  /* its user namespace is ours */
	int namespace_fd; /* else that namespace; -1: none */
};

/*
 * Reads the facts about a process (of root: none). Looks at the process, by the source of
 * lib/proc_source.h. gcr_tracer_finish() must follow.
 */
void gcr_tracer_take(pid_t pid, uid_t uid, gid_t gid, struct gcr_tracer *ret_tracer);
void gcr_tracer_finish(struct gcr_tracer *tracer);

/*
 * May the tracer have process @pid, whose owner (gcr_proc_owner()) is @owner? Decides nothing about
 * other users' processes, nor about root: 0. Looks at the process. No lock held. 0; with a message:
 * -EPERM, -ESRCH, -ETIMEDOUT (one of the two processes could not be looked at in time).
 */
int gcr_tracer_check(const struct gcr_tracer *tracer, pid_t pid, uid_t owner,
		     struct gcr_error *error);

/* Are the two the same in all that gcr_tracer_check() asks for? */
bool gcr_tracer_equals(const struct gcr_tracer *tracer, const struct gcr_tracer *other);

/*
 * gcr_tracer_check() of @caller, where the kernel tells both user namespaces without a look at the
 * processes (gcr_proc_open_user_namespace_at_once()). Never waits. -EAGAIN, without a message: it
 * does not tell them; else as above.
 */
int gcr_tracer_check_at_once(pid_t caller, uid_t uid, gid_t gid, pid_t pid, uid_t owner,
			     struct gcr_error *error);

/*
 * The same if both have our map of user ids, which counts as a sign that both are in our user
 * namespace: only root can make another one with that map. Looks at none of them. -EAGAIN, without
 * a message: a map is another one; else as above.
 */
int gcr_tracer_check_quickly(pid_t caller, uid_t uid, gid_t gid, pid_t pid, uid_t owner,
			     struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The two processes behind a write to a ctl file: the opener and the writer. A descriptor can be
 * passed on, for instance as standard error of a set-user-ID program, so an action is permitted
 * only if both of them may do it.
 */
#ifndef GCR_FS_BASE_CREDENTIALS_H
#define GCR_FS_BASE_CREDENTIALS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/tracing.h"

struct fuse_ctx;

/* The credentials of an opener or a writer at the time of the request. */
struct gcr_credentials {
	uid_t uid; /* for access to files, in our user namespace */
	gid_t gid;
	uid_t counted;	       /* the user whose quota is charged: see gcr_credentials_counted() */
	bool is_local;	       /* in our pid namespace */
	bool is_unknown;       /* the pid namespace could not be determined in time */
	int namespace_fd;      /* the pid namespace if it is another one; -1: ours, or unknown */
	uint64_t capabilities; /* the effective ones; none if the user namespace is not ours */
	struct gcr_tracer tracer; /* for processes of the same user */
};

/*
 * Reads the credentials of a request's caller. To be called before the request is answered: until
 * then the caller's thread is blocked, so its id cannot be reused. Properties that cannot be
 * determined count as not permitted. gcr_credentials_finish() must follow.
 */
void gcr_credentials_take(const struct fuse_ctx *caller, struct gcr_credentials *ret_credentials);
/* The same for files other than ctl: sets only uid, gid and counted, and looks at no process. */
void gcr_credentials_take_ids(const struct fuse_ctx *caller,
			      struct gcr_credentials *ret_credentials);
void gcr_credentials_finish(struct gcr_credentials *credentials);

/*
 * The id to charge for quotas and refusals: @uid, but GCR_QUOTA_OTHER_ROOT for a root that is not,
 * or not provably, in our pid and user namespaces.
 */
uid_t gcr_credentials_counted(pid_t pid, uid_t uid);
/*
 * The id for whose quota the memory of a process counts: its real user, even while the process is
 * root's for access because it is not dumpable, which it can become and end at any moment, or while
 * it acts as another user. Root as in gcr_credentials_counted(). GCR_QUOTA_OTHER_ROOT: the process
 * has ended.
 */
uid_t gcr_credentials_payer(pid_t pid);

/*
 * Is the process in another pid or user namespace than ours, or is that unknown? The uid of such a
 * process says little: root of a container can take any. Does not wait for the process.
 */
bool gcr_credentials_are_contained(pid_t pid);
/* The same for each request of a process that makes many: the answer may be a second old. */
bool gcr_credentials_seem_contained(pid_t pid);
/* The id to charge for @uid, as gcr_credentials_counted(), by that answer. */
uid_t gcr_credentials_seem_counted(pid_t pid, uid_t uid);

/* The opener and the writer of one write. */
struct gcr_parties {
	const struct gcr_credentials *opener;
	const struct gcr_credentials *writer;
};

/* Is each of them root or @owner? */
bool gcr_parties_own(const struct gcr_parties *parties, uid_t owner);
/*
 * The same for the owner of a place (the directory of a dumped process tree); a container's root
 * does not count as root.
 */
bool gcr_parties_own_place(const struct gcr_parties *parties, uid_t owner);
/*
 * May each of them trace the process @pid, which belongs to @owner? Returns as gcr_tracer_check(),
 * for the first of the two that may not.
 */
int gcr_parties_check_tracing(const struct gcr_parties *parties, pid_t pid, uid_t owner,
			      struct gcr_error *error);
/* Were both pid namespaces determined in time? If not, gcr_parties_reach() may be wrongly false. */
bool gcr_parties_are_known(const struct gcr_parties *parties);
/* Is the process in the pid namespace of each of them, or below? */
bool gcr_parties_reach(const struct gcr_parties *parties, pid_t pid);

/* The rights of a verb written by these parties; valid after both processes have ended. */
struct gcr_rights {
	uid_t uid; /* root's if both are root, else the uid of the party that is not root */
	gid_t gid;
	uid_t counted;	       /* the user whose quota is charged */
	bool is_local;	       /* both are in our pid namespace */
	uint64_t capabilities; /* those that both parties have */
};

struct gcr_rights gcr_parties_rights(const struct gcr_parties *parties);

/*
 * May a caller with @rights (NULL: the daemon), permitted to cancel a verb on one process, cancel a
 * verb on @count processes that was started with @starters rights? The other processes may belong
 * to other users, so only root and the user who started the verb may cancel a verb on several.
 */
bool gcr_rights_may_cancel(const struct gcr_rights *rights, const struct gcr_rights *starters,
			   size_t count);

/* Is this root outside any container, with the CAP_SYS_ADMIN that CRIU needs? */
bool gcr_rights_are_roots(const struct gcr_rights *rights);

/*
 * open(2) with no more than these rights and no supplementary groups; @path belongs to our mount
 * namespace. The caller owns the descriptor. -errno; -ETIMEDOUT if the file system does not answer
 * within 10 s.
 */
int gcr_rights_open(const struct gcr_rights *rights, const char *path, int flags, mode_t mode);

#endif

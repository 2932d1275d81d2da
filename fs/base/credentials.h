/* SPDX-License-Identifier: MIT */
/*
 * The two who stand behind a write to a ctl file: the process that opened it, and the process that
 * writes. A descriptor can be handed on, as standard error of a set-user-ID program for one, so
 * nothing is permitted but what both of them may.
 */
#ifndef GCR_FS_BASE_CREDENTIALS_H
#define GCR_FS_BASE_CREDENTIALS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fuse_ctx;

/* One of them, as at the moment of the request. */
struct gcr_credentials {
	uid_t uid; /* for access to files, in our user namespace */
	gid_t gid;
	uid_t counted;	       /* whose quota it uses: see gcr_credentials_counted() */
	bool is_local;	       /* its pid namespace is ours */
	bool is_unknown;       /* its pid namespace could not be found out in time */
	int namespace_fd;      /* its pid namespace, where that is another; -1: ours, or unknown */
	uint64_t capabilities; /* the effective ones; none if its user namespace is not ours */
};

/*
 * Those of the caller of a request that has not been answered: until then its thread cannot go on,
 * so that its id is nobody else's. What cannot be found out about it is taken as not permitted.
 * gcr_credentials_finish() has to follow.
 */
void gcr_credentials_take(const struct fuse_ctx *caller, struct gcr_credentials *ret_credentials);
/* Those that a file which is no ctl needs: the ids alone. */
void gcr_credentials_take_ids(const struct fuse_ctx *caller,
			      struct gcr_credentials *ret_credentials);
void gcr_credentials_finish(struct gcr_credentials *credentials);

/*
 * The id for quotas and refusals of a process with this id: its own, but GCR_QUOTA_OTHER_ROOT of
 * root that is not in our pid and user namespaces, or cannot be seen to be.
 */
uid_t gcr_credentials_counted(pid_t pid, uid_t uid);

/*
 * Is the process in another pid or user namespace than ours, or cannot be seen not to be? There the
 * number of its user says little: root of a container takes any. Does not wait for the process.
 */
bool gcr_credentials_are_contained(pid_t pid);
/* The same for each request of a process that makes many: it may have been so a second ago. */
bool gcr_credentials_seem_contained(pid_t pid);

/* Both of one write. */
struct gcr_parties {
	const struct gcr_credentials *opener;
	const struct gcr_credentials *writer;
};

/* Is each of them root, or this user? */
bool gcr_parties_own(const struct gcr_parties *parties, uid_t owner);
/* The same of a place; root of a container is nobody there. */
bool gcr_parties_own_place(const struct gcr_parties *parties, uid_t owner);
/* Is the process in the pid namespace of each of them, or below it? */
/* False: one of them reaches nothing only because it could not be looked at in time. */
bool gcr_parties_are_known(const struct gcr_parties *parties);
bool gcr_parties_reach(const struct gcr_parties *parties, pid_t pid);

/* What a verb may do that was written so, for when both may have gone. */
struct gcr_rights {
	uid_t uid; /* root's if both are root, else of the one that is not */
	gid_t gid;
	uid_t counted;	       /* the same for quotas */
	bool is_local;	       /* both are in our pid namespace */
	uint64_t capabilities; /* those that both have */
};

struct gcr_rights gcr_parties_rights(const struct gcr_parties *parties);

/*
 * May one with these rights (NULL: the daemon itself), who may end a verb on a process, end one on
 * @count processes that was started with @starters rights? Others' may be among several of them.
 */
bool gcr_rights_may_cancel(const struct gcr_rights *rights, const struct gcr_rights *starters,
			   size_t count);

/* Root, who is not shut in a container, and may do here what CRIU does: has CAP_SYS_ADMIN. */
bool gcr_rights_are_roots(const struct gcr_rights *rights);

/*
 * open(2) with no more than these rights, without supplementary groups; @path is one of ours. The
 * descriptor is the caller's. -errno; -ETIMEDOUT if the file system does not answer in 10 s.
 */
int gcr_rights_open(const struct gcr_rights *rights, const char *path, int flags, mode_t mode);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Quotas: how much of the daemon's resources one user may have at a time, and how much each user
 * has. Subordinate ids (fs/base/subuid.h) count for the user to whom they belong. Root and the
 * daemon's own user are neither limited nor counted. Root of a container without a user namespace
 * of its own has root's id here: see GCR_QUOTA_OTHER_ROOT.
 */
#ifndef GCR_FS_BASE_QUOTA_H
#define GCR_FS_BASE_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "lib/error.h"

enum gcr_quota_kind {
	GCR_QUOTA_CONNECTIONS, /* to the socket, registered or not */
	GCR_QUOTA_OPEN_FILES,  /* files and directories of the mount */
	GCR_QUOTA_TEXT,	       /* bytes of text and names held by open files */
	GCR_QUOTA_PLACES,
	GCR_QUOTA_STORE,       /* bytes held in the store; see also struct gcr_quota_held */
	GCR_QUOTA_SPILL,       /* bytes on the disk of -o spill; see also struct gcr_quota_held */
	GCR_QUOTA_VERBS,       /* under way, one per process */
	GCR_QUOTA_DUMPS,       /* under way, one per tree: each is a CRIU and its connection */
	GCR_QUOTA_DESCRIPTORS, /* of memory that verbs move */
	GCR_QUOTA_KINDS_COUNT,
};

/* Names and messages of one kind: `user_NAME` is its option, NAME its key in the root's status. */
struct gcr_quota_kind_words {
	const char *name;
	bool is_bytes;
	int error;	   /* errno when the quota is exceeded */
	const char *words; /* the amount in messages: "open files of the mount" */
	const char *advice;
	uint64_t all_most; /* limit for all users together, without root; 0: none */
};

/* Of the 256 connections to the unit that starts CRIU; the rest is for root and for restores. */
#define GCR_QUOTA_ALL_DUMPS 192
extern const struct gcr_quota_kind_words gcr_quota_kinds[GCR_QUOTA_KINDS_COUNT];

/*
 * Represents all processes with root's id that are not in our pid and user namespaces: one user,
 * with the limits of any other. No user has this id. gcr_credentials_counted() detects such
 * processes.
 */
#define GCR_QUOTA_OTHER_ROOT ((uid_t)-1)

struct gcr_quota_limits {
	uint64_t most[GCR_QUOTA_KINDS_COUNT]; /* 0: no limit */
	int64_t timeout_usec;		      /* longest timeout= of a verb; 0: no limit */
};

struct gcr_quota; /* thread-safe; its lock is the innermost. NULL: nothing is limited */

/* An amount taken from a quota. All zeros: nothing. Must not be copied while the amount is held. */
struct gcr_quota_charge {
	struct gcr_quota *quota;
	enum gcr_quota_kind kind;
	uid_t owner;
	uint64_t amount;
};

/*
 * Creates quotas of which nothing is taken. @subuid_path: see gcr_subuids_create(). Once the
 * process has @descriptors_max or more open descriptors, ordinary users get no more resources that
 * need descriptors, and the verbs of one user hold half as many at most; 0: not checked. -ENOMEM.
 */
int gcr_quota_create(const struct gcr_quota_limits *limits, const char *subuid_path,
		     uint64_t descriptors_max, struct gcr_quota **ret_quota);
void gcr_quota_destroy(struct gcr_quota *quota); /* NULL is allowed */

/*
 * The part of the descriptor @limit for ordinary users; the rest is reserved for the daemon and
 * root.
 */
uint64_t gcr_quota_descriptors(uint64_t limit);

/* Lowers the limit to at most @most. */
void gcr_quota_lower(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t most);
/* Sets the limit; 0: none. Users keep amounts above a lowered limit. */
void gcr_quota_set_most(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t most);

/* The user to whom this id belongs. */
uid_t gcr_quota_owner(struct gcr_quota *quota, uid_t uid);
/*
 * The same for what no other user may see: @uid itself in a range of subordinate ids whose user is
 * root or unknown, because its ids may be of several users.
 */
uid_t gcr_quota_known_owner(struct gcr_quota *quota, uid_t uid);
/* Do quotas apply to this user? Not to root, nor to the daemon's own user. */
bool gcr_quota_is_limited(struct gcr_quota *quota, uid_t uid);

/*
 * Takes @amount for @uid. Returns 0; the kind's -errno if the quota is exceeded; -ENFILE: no
 * descriptors are left for users; -ENOMEM. Sets @error. *ret_charge must be empty, and remains
 * empty on errors and for a user who is not limited.
 */
int gcr_quota_take(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		   struct gcr_quota_charge *ret_charge, struct gcr_error *error);
/* The same with the limit raised by @beyond: for files that inform a user about the limits. */
int gcr_quota_take_beyond(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid,
			  uint64_t amount, uint64_t beyond, struct gcr_quota_charge *ret_charge,
			  struct gcr_error *error);
/*
 * As gcr_quota_take(), but a user who has nothing of the kind gets any amount: for amounts that are
 * needed as a whole, and must not be refused for ever.
 */
int gcr_quota_take_alone(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid,
			 uint64_t amount, struct gcr_quota_charge *ret_charge,
			 struct gcr_error *error);
/*
 * Charges @amount without a check: for amounts that exist already or cannot be refused. *ret_charge
 * must be empty, and remains empty for a user who is not limited, and without memory.
 */
void gcr_quota_count(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		     struct gcr_quota_charge *ret_charge);
/*
 * May @uid have @count more of the daemon's descriptors? For descriptors that no quota counts, or
 * GCR_QUOTA_DESCRIPTORS does. Returns 0 if so, and for a user who is not limited; -ENFILE, with
 * @error set: only those that are reserved for the daemon and root would be left.
 */
int gcr_quota_check_descriptors(struct gcr_quota *quota, uid_t uid, uint64_t count,
				struct gcr_error *error);
/* Gives the amount back, once; an empty charge is allowed. */
void gcr_quota_release(struct gcr_quota_charge *charge);

/* A user's holdings that are not covered by charges: bytes in the store and on the disk. */
struct gcr_quota_held {
	uid_t uid;
	uint64_t counts[GCR_QUOTA_KINDS_COUNT];
};

/*
 * Would @amount more exceed the quota of @owner (see gcr_quota_owner()), with @held in addition to
 * the charges? Returns 0, or the kind's -errno with @error set.
 */
int gcr_quota_check_held(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t owner,
			 uint64_t held, uint64_t amount, struct gcr_error *error);
/* -EINVAL, with @error set, if this user may not request such a long timeout. */
int gcr_quota_check_timeout(struct gcr_quota *quota, uid_t uid, int64_t timeout_usec,
			    struct gcr_error *error);

/*
 * Prints one line for each user with any amount (@all), or for @uid only: "user UID NAME
 * COUNT/LIMIT ...", with "-" for no limit and "container-root" for GCR_QUOTA_OTHER_ROOT. @held:
 * holdings in the store, by any ids.
 */
void gcr_quota_render(struct gcr_quota *quota, const struct gcr_quota_held *held, size_t count,
		      bool all, uid_t uid, FILE *stream);

struct gcr_quota_figures {
	uint64_t users; /* number of users with charges */
	uint64_t refusals[GCR_QUOTA_KINDS_COUNT];
};
void gcr_quota_get_figures(struct gcr_quota *quota, struct gcr_quota_figures *ret_figures);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Quotas: how much of the daemon one user may have at a time, and how much each has. Subordinate
 * ids (fs/base/subuid.h) count for the user whose they are. Root, and the user whom the daemon runs
 * as, are neither limited nor counted. Root of a container that has no user namespace of its own
 * has root's id here: see GCR_QUOTA_OTHER_ROOT.
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
	GCR_QUOTA_TEXT,	       /* bytes of text and names that open ones hold */
	GCR_QUOTA_PLACES,
	GCR_QUOTA_STORE, /* bytes; see also struct gcr_quota_held */
	GCR_QUOTA_SPILL, /* bytes on the disk of -o spill; likewise */
	GCR_QUOTA_VERBS, /* under way, one per process */
	GCR_QUOTA_DUMPS, /* under way, one per tree: each is a CRIU and its connection */
	GCR_QUOTA_KINDS_COUNT,
};

/* `user_NAME` is its option, NAME its word in the root's status. */
struct gcr_quota_kind_words {
	const char *name;
	bool is_bytes;
	int error;	   /* of who has too much of it */
	const char *words; /* for a person: "open files of the mount" */
	const char *advice;
	uint64_t all_most; /* all users together, root not counted; 0: no limit */
};

/* Of 256 connections to the unit that starts CRIU: the rest is root's, and for restores. */
#define GCR_QUOTA_ALL_DUMPS 192
extern const struct gcr_quota_kind_words gcr_quota_kinds[GCR_QUOTA_KINDS_COUNT];

/*
 * All processes with root's id that are not in our pid and user namespaces: one user, with the
 * limits of any other. No user has this id. gcr_credentials_counted() finds out who it is.
 */
#define GCR_QUOTA_OTHER_ROOT ((uid_t)-1)

struct gcr_quota_limits {
	uint64_t most[GCR_QUOTA_KINDS_COUNT]; /* 0: no limit */
	int64_t timeout_usec;		      /* that may be asked for; 0: no limit */
};

struct gcr_quota; /* thread-safe; its lock is the last that is taken. NULL: nothing is limited */

/* What somebody has taken. All zeros: nothing. Not to be copied while it is held. */
struct gcr_quota_charge {
	struct gcr_quota *quota;
	enum gcr_quota_kind kind;
	uid_t owner;
	uint64_t amount;
};

/*
 * @subuid_path: see gcr_subuids_create(). Where @descriptors_max or more descriptors of the daemon
 * are open, ordinary users get no more that take some; 0: it is not looked at. -ENOMEM, ...
 */
int gcr_quota_create(const struct gcr_quota_limits *limits, const char *subuid_path,
		     uint64_t descriptors_max, struct gcr_quota **ret_quota);
void gcr_quota_destroy(struct gcr_quota *quota); /* NULL is allowed */

/* So many descriptors ordinary users may use of @limit: the rest is the daemon's and root's. */
uint64_t gcr_quota_descriptors(uint64_t limit);

/* The limit is not more than this. */
void gcr_quota_lower(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t most);
/* The limit is this from now on; 0: there is none. What somebody has beyond it stays his. */
void gcr_quota_set_most(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t most);

/* The user whose this id is. */
uid_t gcr_quota_owner(struct gcr_quota *quota, uid_t uid);
bool gcr_quota_is_limited(struct gcr_quota *quota, uid_t uid);

/*
 * Take @amount for @uid. Errors, with words: that of the kind if it would be too much; -ENFILE: no
 * descriptor is left for users; -ENOMEM. *ret_charge has to be empty, and is left so with errors.
 */
int gcr_quota_take(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		   struct gcr_quota_charge *ret_charge, struct gcr_error *error);
/* The same, with so much more allowed than usual: for what tells a user about his limits. */
int gcr_quota_take_beyond(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid,
			  uint64_t amount, uint64_t beyond, struct gcr_quota_charge *ret_charge,
			  struct gcr_error *error);
/* Count @amount, whatever the limit says: what is there already, or cannot be refused. */
void gcr_quota_count(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		     struct gcr_quota_charge *ret_charge);
/* It is given back, once; an empty charge is allowed. */
void gcr_quota_release(struct gcr_quota_charge *charge);

/* What a user has that is not taken by charges: what the store holds, in memory and on the disk. */
struct gcr_quota_held {
	uid_t uid;
	uint64_t counts[GCR_QUOTA_KINDS_COUNT];
};

/*
 * Would @amount more be too much for @owner (see gcr_quota_owner()), who holds @held besides
 * charges? 0, or the error of the kind, with words.
 */
int gcr_quota_check_held(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t owner,
			 uint64_t held, uint64_t amount, struct gcr_error *error);
/* -EINVAL, with words: this user may not ask for a deadline so far away. */
int gcr_quota_check_timeout(struct gcr_quota *quota, uid_t uid, int64_t timeout_usec,
			    struct gcr_error *error);

/*
 * A line for each user who has something, or for @uid alone; "user UID NAME COUNT/LIMIT ...", with
 * "-" for no limit, and "container-root" for the id of GCR_QUOTA_OTHER_ROOT. @held: what the store
 * holds, for any ids.
 */
void gcr_quota_render(struct gcr_quota *quota, const struct gcr_quota_held *held, size_t count,
		      bool all, uid_t uid, FILE *stream);

struct gcr_quota_figures {
	uint64_t users; /* who have something by charges */
	uint64_t refusals[GCR_QUOTA_KINDS_COUNT];
};
void gcr_quota_get_figures(struct gcr_quota *quota, struct gcr_quota_figures *ret_figures);

#endif

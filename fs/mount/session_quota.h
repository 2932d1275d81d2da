/* SPDX-License-Identifier: MIT */
/* Quotas of users in the session, and the messages of refusals. */
#ifndef GCR_FS_MOUNT_SESSION_QUOTA_H
#define GCR_FS_MOUNT_SESSION_QUOTA_H

#include "fs/base/quota.h"
#include "fs/mount/tree.h"

/*
 * Stores the message of a refusal, which a reply cannot carry, for the user's `error` at the root.
 */
void gcr_session_tell_refusal(struct gcr_daemon *daemon, uid_t uid, const struct gcr_error *error);

/*
 * Charges an open file of @node to user @uid, in *ret_charge. If a quota is exceeded, the user's
 * `error` at the root says so; that file itself can be opened some times beyond the quota. 0,
 * -errno of gcr_quota_take_beyond().
 */
int gcr_session_take_open(struct gcr_daemon *daemon, uid_t uid, fuse_ino_t node,
			  struct gcr_quota_charge *ret_charge);

/* Charges text that an open file of @node holds, by the same rules. */
int gcr_session_take_text(struct gcr_daemon *daemon, uid_t uid, fuse_ino_t node, size_t bytes,
			  struct gcr_quota_charge *ret_charge);

#endif

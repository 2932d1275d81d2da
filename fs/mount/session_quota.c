/* SPDX-License-Identifier: MIT */
#include "fs/mount/session_quota.h"

#include "fs/base/log.h"
#include "fs/base/refusals.h"

/* Extra opens, beyond the quota, of the files at the root that say why other opens fail. */
#define OPEN_BEYOND 8

void gcr_session_tell_refusal(struct gcr_daemon *daemon, uid_t uid, const struct gcr_error *error)
{
	uid_t owner = gcr_quota_owner(daemon->quota, uid);

	gcr_refusals_note(daemon->refusals, owner, gcr_quota_known_owner(daemon->quota, uid),
			  error);
	gcr_refusals_log(daemon->refusals, owner, 0, "%s: %s", gcr_error_name(error->number),
			 error->words);
}

int gcr_session_take_open(struct gcr_daemon *daemon, uid_t uid, fuse_ino_t node,
			  struct gcr_quota_charge *ret_charge)
{
	/* The files that contain the message can be opened all the same. */
	bool is_error = gcr_node_kind(node) == GCR_NODE_ROOT_ERROR ||
			gcr_node_kind(node) == GCR_NODE_ROOT_STATUS;
	struct gcr_error error;
	int result = gcr_quota_take_beyond(daemon->quota, GCR_QUOTA_OPEN_FILES, uid, 1,
					   is_error ? OPEN_BEYOND : 0, ret_charge, &error);

	if (result < 0)
		gcr_session_tell_refusal(daemon, uid, &error);
	return result;
}

int gcr_session_take_text(struct gcr_daemon *daemon, uid_t uid, fuse_ino_t node, size_t bytes,
			  struct gcr_quota_charge *ret_charge)
{
	/* A user at the limit must still be able to read the message. */
	bool is_error = gcr_node_kind(node) == GCR_NODE_ROOT_ERROR;
	struct gcr_error error;
	int result = gcr_quota_take_beyond(daemon->quota, GCR_QUOTA_TEXT, uid, bytes,
					   is_error ? GCR_ERROR_WORDS_MAX * OPEN_BEYOND : 0,
					   ret_charge, &error);

	if (result < 0)
		gcr_session_tell_refusal(daemon, uid, &error);
	return result;
}

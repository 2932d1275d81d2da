/* SPDX-License-Identifier: MIT */
/*
 * Fair scheduling of three kinds of requests. The first are those below a `snapshot`, where each
 * file and each directory has its locks and a request may take long, and listings of the mount's
 * root, which look at processes. The second are all other opens: some look at the caller and at a
 * process. The third are writes to `ctl` files, which look at processes before their verbs have
 * threads of their own. A user's requests of one kind wait behind each other only, so that a
 * `cancel` is heard whatever the user's requests of other kinds wait for. Only a few requests of
 * one user (with all subordinate ids of that user) are carried out at once. The others wait in a
 * line (queue) without occupying a thread of the session: a thread that has finished a request
 * takes the next one from the line. The next request is that of the user with the fewest requests
 * under way and, among several such users, of the one who was served longest ago; requests of one
 * user are served in order of arrival. A request that can be carried out in steps goes to the end
 * of its user's queue after each step. Root of a container counts as GCR_QUOTA_OTHER_ROOT; root of
 * the host and the daemon's own user never wait.
 */
#ifndef GCR_FS_MOUNT_SESSION_TURN_H
#define GCR_FS_MOUNT_SESSION_TURN_H

#include <stdbool.h>

#include "fs/mount/tree.h"
#include "fs/store/subtree.h"

/* Threads for requests of each kind: of one owner, and of all limited owners. */
#define GCR_SESSION_OWNER_ITEMS_MAX 4
#define GCR_SESSION_ITEMS_MAX	    12
#define GCR_SESSION_OWNER_OPENS_MAX 2
#define GCR_SESSION_OPENS_MAX	    8
#define GCR_SESSION_OWNER_VERBS_MAX 2
#define GCR_SESSION_VERBS_MAX	    8

struct gcr_session_turns {
	/* The user who opened a file, as counted by quotas. */
	uid_t (*opener)(const struct fuse_file_info *info);
	/*
	 * Carries out one step of fallocate. False: there is more to do; true: the request is
	 * answered.
	 */
	bool (*allocate_some)(fuse_req_t request, struct gcr_subtree_allocation *allocation,
			      struct fuse_file_info *info);
};

/*
 * Returns the operations of @operations with this scheduling. Both arguments stay the caller's and
 * must stay valid for ever; there is one static result.
 */
const struct fuse_lowlevel_ops *gcr_session_in_turn(const struct fuse_lowlevel_ops *operations,
						    const struct gcr_session_turns *turns);

#endif

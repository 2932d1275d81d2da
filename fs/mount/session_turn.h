/* SPDX-License-Identifier: MIT */
/*
 * Requests below a `snapshot`, where each file and each directory has its locks, and what is asked
 * for may take long. Of one user (with all his subordinate ids) only some are under way at once.
 * The others stand in a line, and no thread of the session waits for them: the thread that has
 * ended one goes on with the next. That is of the user who has the fewest under way, of several the
 * one who was served the longest ago; each user's own are in the order in which they came. What can
 * be done in steps goes to the end of its user's after each. Root of a container counts as
 * GCR_QUOTA_OTHER_ROOT; root of the host, and the daemon's own user, never wait.
 */
#ifndef GCR_FS_MOUNT_SESSION_TURN_H
#define GCR_FS_MOUNT_SESSION_TURN_H

#include <stdbool.h>

#include "fs/mount/tree.h"
#include "fs/store/folder.h"

#define GCR_SESSION_OWNER_MAX 4	 /* threads for the requests of one owner */
#define GCR_SESSION_TURNS_MAX 12 /* for those of all who are limited */

struct gcr_session_turns {
	/* Who has opened a file, as quotas count. */
	uid_t (*opener)(const struct fuse_file_info *info);
	/* A step of fallocate: false, it goes on; true, it is answered. */
	bool (*allocate_some)(fuse_req_t request, struct gcr_folder_allocation *allocation,
			      struct fuse_file_info *info);
};

/*
 * The same operations as @operations, in turns. Both arguments stay the caller's, for ever; there
 * is one set of them.
 */
const struct fuse_lowlevel_ops *gcr_session_in_turn(const struct fuse_lowlevel_ops *operations,
						    const struct gcr_session_turns *turns);

#endif

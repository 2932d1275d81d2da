/* SPDX-License-Identifier: MIT */
/*
 * Sessions and terminals in CRIU's images. CRIU writes down whose controlling terminal one is, and
 * at restore looks for that session's leader in the tree; where the leader is outside (a shell,
 * sshd) such a dump can never be restored, and neither can one of a terminal that has been hung up.
 * A root that is in somebody else's session is restored in CRIU's own, and gets SIGHUP when CRIU
 * ends, for its process group is an orphan with stopped processes then.
 */
#ifndef GCR_CRIU_GLUE_SESSION_H
#define GCR_CRIU_GLUE_SESSION_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Make the images in the directory @images_fd those of a tree that depends on no session outside:
 * a root that does not lead a session leads one of its own, with all of the tree that were in the
 * old session with it. An external terminal whose session's leader is none of @pids is no
 * controlling terminal, one whose foreground group is not in the tree has its leader's, and one
 * that was hung up gets the settings of a new one. @pids: all processes, the root first; alive and
 * held still. Errors with words: -EIO an image is not understood, -ENOMEM, and those of files.
 */
int gcr_criu_leave_session(int images_fd, const pid_t *pids, size_t pids_count,
			   struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Sessions and terminals in CRIU's images. CRIU records the session of which a terminal is the
 * controlling one, and at restore looks for that session's leader in the tree. If the leader is
 * outside (a shell, sshd), the dump can never be restored, and neither can a dump with a terminal
 * that has been hung up. A root in another process's session is restored in CRIU's own, and gets
 * SIGHUP when CRIU ends, because its process group is then orphaned and has stopped processes.
 */
#ifndef GCR_CRIU_GLUE_SESSION_H
#define GCR_CRIU_GLUE_SESSION_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Changes the images in the directory @images_fd so that the tree depends on no session outside: a
 * root that does not lead a session becomes leader of a new one, which all of the tree's processes
 * of the old session join. An external terminal whose session's leader is none of @pids becomes no
 * controlling terminal; a foreground group that is not in the tree is replaced by the leader's; a
 * terminal that was hung up gets the settings of a new one. @pids: all processes, the root first;
 * alive and stopped. Errors, with a message: -EIO an image is invalid, -ENOMEM, and errors of
 * files.
 */
int gcr_criu_leave_session(int images_fd, const pid_t *pids, size_t pids_count,
			   struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The threads of a program stopped for a moment (fs/helper/stop.h), by a helper process that
 * outlives the daemon: while the library is in the midst of taking or bringing back managed memory,
 * they stay stopped, also if the daemon is killed. Should the helper itself be killed, they go on,
 * and the library finds that out.
 */
#ifndef GCR_FS_HELPER_HALT_H
#define GCR_FS_HELPER_HALT_H

#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/helper.h"
#include "lib/error.h"

struct gcr_halt;

/*
 * Ask for it; gcr_halt_wait() tells when they are stopped. @page_fd: the library's page. Without a
 * daemon the threads go on after @limit_usec at the latest. -EIO, with words: the helper does not
 * start, or has died.
 */
int gcr_halt_begin(struct gcr_helpers *helpers, pid_t pid, int page_fd, int64_t limit_usec,
		   struct gcr_halt **ret_halt, struct gcr_error *error);

/*
 * Wait until all threads are stopped. -ETIMEDOUT and -EINTR (@wake_fd readable): call again, or
 * give it up. Other errors as gcr_stop_begin(), and -EIO: the helper has died. Then all threads
 * have been let go, and nothing but gcr_halt_give_up() is left to do.
 *
 * A thread in execve(2) of a file on its user's own filesystem keeps the helper waiting for as long
 * as that user likes.
 */
int gcr_halt_wait(struct gcr_halt *halt, int64_t timeout_usec, int wake_fd,
		  struct gcr_error *error);

/* They are not needed stopped any more, or never were: the helper is killed. NULL is allowed. */
void gcr_halt_give_up(struct gcr_halt *halt);

/* Let them go on, and wait until they do. NULL: nothing to do. */
void gcr_halt_end(struct gcr_halt *halt);

#endif

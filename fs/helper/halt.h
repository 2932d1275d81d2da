/* SPDX-License-Identifier: MIT */
/*
 * Stopping the threads of a program for a moment (fs/helper/stop.h), by a helper process that
 * outlives the daemon: while the library is taking or bringing back managed memory, the threads
 * stay stopped even if the daemon is killed. If the helper itself is killed, the threads run again,
 * and the library detects that.
 */
#ifndef GCR_FS_HELPER_HALT_H
#define GCR_FS_HELPER_HALT_H

#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/helper.h"
#include "lib/error.h"
#include "lib/procfs.h"

struct gcr_halt;

/*
 * Starts stopping the threads; gcr_halt_wait() waits until they are stopped. @pidfd: the process's,
 * @page_fd: its library's page; both stay the caller's. @program: that of the library; if the
 * process gets another one by execve(2), no thread of it stays stopped. If the daemon dies, the
 * threads run again after @limit_usec at the latest. Errors, with a message: -EIO the helper does
 * not start, or has died; -ENOMEM.
 */
int gcr_halt_begin(struct gcr_helpers *helpers, pid_t pid, int pidfd, int page_fd,
		   const struct gcr_proc_program *program, int64_t limit_usec,
		   struct gcr_halt **ret_halt, struct gcr_error *error);

/*
 * Waits until all threads are stopped. -ETIMEDOUT and -EINTR (@wake_fd readable): call again, or
 * give up. Other errors as gcr_stop_begin(), and -EIO: the helper has died. After these all threads
 * run again, and the caller only has to call gcr_halt_give_up().
 *
 * A thread in execve(2) of a file on its user's own filesystem can block the helper for as long as
 * that user likes.
 */
int gcr_halt_wait(struct gcr_halt *halt, int64_t timeout_usec, int wake_fd,
		  struct gcr_error *error);

/* The threads need not be stopped any more, or never were: kills the helper. NULL is allowed. */
void gcr_halt_give_up(struct gcr_halt *halt);

/* Lets the threads run again, and waits until they do. NULL: does nothing. */
void gcr_halt_end(struct gcr_halt *halt);

#endif

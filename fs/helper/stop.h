/* SPDX-License-Identifier: MIT */
/*
 * Stopping all threads of a program for a moment, by ptrace(2), wherever they are: no thread
 * returns to the program's code before the stop ends. The threads of the preload library and of the
 * driver (lib/thread_name.h) are not stopped.
 *
 * The effect on the program is that of a debugger that attaches and detaches: a blocking system
 * call may return EINTR where it would after SIGSTOP and SIGCONT (epoll_wait(2), for example; see
 * signal(7)). Signals and job control do not change. If this process dies, the kernel lets the
 * threads run again.
 */
#ifndef GCR_FS_HELPER_STOP_H
#define GCR_FS_HELPER_STOP_H

#include <stdbool.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/procfs.h"

/* The helper program that does this for the daemon (fs/helper/halt.h). */
#define GCR_STOP_PROGRAM "gpucr-halt"

struct gcr_stop;

/*
 * Stops all threads of @pid, the process of @pidfd, which the caller keeps open until this returns:
 * no thread of a process that was given the same pid is stopped. If the process has another program
 * than @program, or gets one, its threads run again at once: -ESRCH. -EPERM: no privilege, and
 * nothing was done. -EOPNOTSUPP, -EBUSY (a thread that does not stop), -ESRCH, -ENOMEM, with a
 * message: all threads run again.
 */
int gcr_stop_begin(pid_t pid, int pidfd, const struct gcr_proc_program *program,
		   struct gcr_stop **ret_stop, struct gcr_error *error);

/* Have all threads that were stopped ended? Then the program has been killed. */
bool gcr_stop_is_over(struct gcr_stop *stop);

/* Lets the threads run again. NULL: does nothing. */
void gcr_stop_end(struct gcr_stop *stop);

#endif

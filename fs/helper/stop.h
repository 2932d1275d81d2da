/* SPDX-License-Identifier: MIT */
/*
 * Stopping all threads of a program for a moment, by ptrace(2), wherever they are: none of them
 * returns to the program's code before the stop ends. Not stopped are the threads of the preload
 * library and of the driver (lib/thread_name.h).
 *
 * To the program it is as if a debugger had come and gone: a system call that waits may return
 * EINTR where it would after SIGSTOP and SIGCONT (epoll_wait(2), say; see signal(7)). Signals and
 * job control are as they were. If this process dies, the kernel lets the threads go on.
 */
#ifndef GCR_FS_HELPER_STOP_H
#define GCR_FS_HELPER_STOP_H

#include <stdbool.h>
#include <sys/types.h>

#include "lib/error.h"

/* The helper that does this on the daemon's behalf (fs/helper/halt.h). */
#define GCR_STOP_PROGRAM "gpucr-halt"

struct gcr_stop;

/*
 * -EPERM: no privilege to do this, and nothing was done. -EOPNOTSUPP, -EBUSY (a thread that does
 * not stop), -ESRCH, -ENOMEM, with words: all threads have been let go.
 */
int gcr_stop_begin(pid_t pid, struct gcr_stop **ret_stop, struct gcr_error *error);

/* Is none of those left that were stopped? Then the program has been killed. */
bool gcr_stop_is_over(struct gcr_stop *stop);

/* Let them go on. NULL: nothing to do. */
void gcr_stop_end(struct gcr_stop *stop);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Stopping all threads of a program for a moment, by ptrace(2), wherever they are: none of them
 * returns to the program's code before the halt ends. Not stopped are the threads of the preload
 * library and of the driver (lib/thread_name.h).
 *
 * To the program it is as if a debugger had come and gone: a system call that waits may return
 * EINTR where it would after SIGSTOP and SIGCONT (epoll_wait(2), say; see signal(7)). Signals and
 * job control are as they were. If the daemon dies, the kernel lets the threads go on.
 */
#ifndef GCR_FS_HALT_H
#define GCR_FS_HALT_H

#include <sys/types.h>

#include "lib/error.h"

struct gcr_halt;

/*
 * -EPERM: no privilege to do this, and nothing was done. -EOPNOTSUPP, -EBUSY (a thread that does
 * not stop), -ESRCH, -ENOMEM, with words: all threads have been let go.
 */
int gcr_halt_begin(pid_t pid, struct gcr_halt **ret_halt, struct gcr_error *error);

/* Let them go on. NULL: nothing to do. */
void gcr_halt_end(struct gcr_halt *halt);

#endif

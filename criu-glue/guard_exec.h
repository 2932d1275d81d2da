/* SPDX-License-Identifier: MIT */
/* The guard's part when a process that CRIU traces executes another program. */
#ifndef GCR_CRIU_GLUE_GUARD_EXEC_H
#define GCR_CRIU_GLUE_GUARD_EXEC_H

#include <sys/ptrace.h>
#include <sys/types.h>

/*
 * The last argument of ptrace(2) for this request: with PTRACE_SETOPTIONS, @data and the option
 * that stops a thread when it has executed another program; else @data.
 */
void *gcr_guard_exec_options(enum __ptrace_request request, void *data);

/*
 * Called before each ptrace(2) of CRIU. -1, and ESRCH in errno: the thread has executed another
 * program since CRIU has set its options, and has been killed, with a message to standard error;
 * CRIU must not make the call. Else 0, and errno as it was.
 */
int gcr_guard_exec(pid_t pid);

#endif

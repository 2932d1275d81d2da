/* SPDX-License-Identifier: MIT */
/* Which processes CRIU traces, and whether they are still the programs that it has stopped. */
#ifndef GCR_CRIU_GLUE_GUARD_TRACEE_H
#define GCR_CRIU_GLUE_GUARD_TRACEE_H

#include <sys/ptrace.h>
#include <sys/types.h>

/*
 * The last argument of ptrace(2) for this request: with PTRACE_SEIZE and PTRACE_SETOPTIONS, @data
 * and the option that stops a thread when it has executed another program; else @data.
 */
void *gcr_guard_tracee_data(enum __ptrace_request request, void *data);

/*
 * Called before each ptrace(2) of CRIU. 0, and errno as it was: CRIU may make the call. -1 and
 * errno, with a message to standard error but for the first:
 *  - ESRCH: the thread is not stopped, and the kernel would refuse the request;
 *  - ESRCH: the thread has executed another program, and has been killed if CRIU had changed it;
 *  - EPERM: CRIU takes the thread for another one.
 */
int gcr_guard_tracee_check(enum __ptrace_request request, pid_t pid);

/*
 * Called after a PTRACE_SEIZE that has succeeded. 0; -1, ESRCH in errno, and a message: @pid was
 * the root's pid, and is another process's now, which is not stopped; the kernel releases it when
 * CRIU, which gives up then, ends. Ends CRIU, with a message, if it dumps a tree to which the
 * thread does not belong, or if there is no memory: the kernel then releases the thread.
 */
int gcr_guard_tracee_seized(pid_t pid);

/*
 * The pid in the line of /proc/PID/status with this name, as "PPid". -1: it cannot be read, or the
 * process has ended.
 */
pid_t gcr_guard_status_pid(pid_t pid, const char *name);

#endif

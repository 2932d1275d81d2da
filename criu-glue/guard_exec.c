/* SPDX-License-Identifier: MIT */
/*
 * A process that executes another program while CRIU works in it. CRIU writes the instruction of a
 * system call into a dumped process, runs it there, and then restores the registers and the bytes
 * (CRIU 4.1.1: compel/src/lib/infect.c). A process outside the tree that shares the memory can put
 * another instruction there, so that the dumped process executes a set-user-ID program: the kernel
 * honours that bit, since CRIU may trace everything. CRIU would then restore registers, and write
 * bytes, of the user's choice in a program with other rights.
 *
 * So a thread stops when it has executed a program, before the program's first instruction. It
 * stays in that stop until CRIU's next call, and the guard looks before each one.
 */
#include "criu-glue/guard_exec.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* si_code of that stop, see ptrace(2). */
#define EXEC_STOP (SIGTRAP | PTRACE_EVENT_EXEC << 8)

void *gcr_guard_exec_options(enum __ptrace_request request, void *data)
{
	if (request != PTRACE_SETOPTIONS)
		return data;
	return (void *)((uintptr_t)data | PTRACE_O_TRACEEXEC);
}

/* False for a thread that runs, or that CRIU does not trace, too. */
static bool has_executed(pid_t pid)
{
	siginfo_t info = {0};
	int number = errno;
	bool has = syscall(SYS_ptrace, PTRACE_GETSIGINFO, pid, NULL, &info) == 0 &&
		   info.si_code == EXEC_STOP;

	errno = number;
	return has;
}

int gcr_guard_exec(pid_t pid)
{
	if (!has_executed(pid))
		return 0;
	/* It is stopped, so the pid is still its own. */
	kill(pid, SIGKILL);
	fprintf(stderr,
		"gpucr-criu-guard: process %d has executed another program while CRIU worked in "
		"it, "
		"and is killed\n",
		(int)pid);
	errno = ESRCH;
	return -1;
}

/* SPDX-License-Identifier: MIT */
/*
 * Who may look into a process while CRIU restores it. Its threads get the rights of the tree's
 * owner one after the other, and each then makes the process dumpable (CRIU 4.1.1:
 * criu/pie/restorer.c): other processes of the owner could write into the memory of threads that
 * still have root's rights. So the images that CRIU gets say that no process is dumpable. When all
 * threads have their own rights, and CRIU stops them, the guard has the main thread of each process
 * make it dumpable: in place of the next system call, which the thread then makes again.
 */
#include "criu-glue/guard.h"
#include "criu-glue/guard_rights.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/criu.h"

/* With PTRACE_O_TRACESYSGOOD, which CRIU sets. */
#define SYSCALL_STOP (SIGTRAP | 0x80)

/* CRIU stops a thread for the first time before the thread has its own rights. */
#define STOP_WITH_RIGHTS 2

/* A process that is to be dumpable. */
struct process {
	pid_t pid;
	unsigned int stops; /* PTRACE_INTERRUPT so far, since CRIU has attached to it */
	bool is_done, is_failed;
};

static struct process *processes;
static size_t processes_count;

/* ---- the registers at a system call ---- */

#if defined(__x86_64__)
static int set_call(pid_t pid, struct user_regs_struct *regs)
{
	(void)pid;
	regs->orig_rax = SYS_prctl;
	regs->rdi = PR_SET_DUMPABLE;
	regs->rsi = 1;
	regs->rdx = regs->r10 = regs->r8 = 0;
	return 0;
}

static long result_of(const struct user_regs_struct *regs)
{
	return (long)regs->rax;
}

/* Moves the registers back from the beginning of a call to the instruction that makes it. */
static void set_back(struct user_regs_struct *regs)
{
	regs->rax = regs->orig_rax;
	regs->orig_rax = (unsigned long long)-1;
	regs->rip -= 2;
}
#elif defined(__aarch64__)
#ifndef NT_ARM_SYSTEM_CALL
#define NT_ARM_SYSTEM_CALL 0x404
#endif

static int set_call(pid_t pid, struct user_regs_struct *regs)
{
	int number = SYS_prctl;
	struct iovec part = {&number, sizeof(number)};

	memset(regs->regs, 0, 5 * sizeof(regs->regs[0]));
	regs->regs[0] = PR_SET_DUMPABLE;
	regs->regs[1] = 1;
	return (int)syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_ARM_SYSTEM_CALL, &part);
}

static long result_of(const struct user_regs_struct *regs)
{
	return (long)regs->regs[0];
}

static void set_back(struct user_regs_struct *regs)
{
	regs->pc -= 4;
}
#else
#error "The registers of this machine are not known"
#endif

static int get_registers(pid_t pid, struct user_regs_struct *regs)
{
	struct iovec part = {regs, sizeof(*regs)};

	return (int)syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_PRSTATUS, &part);
}

static int set_registers(pid_t pid, struct user_regs_struct *regs)
{
	struct iovec part = {regs, sizeof(*regs)};

	return (int)syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_PRSTATUS, &part);
}

/* ---- one call ---- */

/*
 * Lets the stopped thread run until it begins or ends a system call. 0; -1: the thread has ended,
 * or stopped for another reason.
 */
static int run_to_call(pid_t pid)
{
	int status;

	do {
		if (syscall(SYS_ptrace, PTRACE_SYSCALL, pid, 0, 0) < 0)
			return -1;
		while (waitpid(pid, &status, __WALL) < 0)
			if (errno != EINTR)
				return -1;
		/* SIGCONT: the thread was not stopped by a signal, and only says so. */
	} while (WIFSTOPPED(status) && status >> 8 == (SIGTRAP | PTRACE_EVENT_STOP << 8));
	return WIFSTOPPED(status) && WSTOPSIG(status) == SYSCALL_STOP ? 0 : -1;
}

/*
 * Has the stopped thread make its process dumpable, in place of its next system call, which the
 * thread then makes again. 0, -1.
 */
static int make_dumpable(pid_t pid)
{
	struct user_regs_struct before, regs;

	if (run_to_call(pid) < 0 || get_registers(pid, &before) < 0)
		return -1;
	regs = before;
	if (set_call(pid, &regs) < 0 || set_registers(pid, &regs) < 0 || run_to_call(pid) < 0 ||
	    get_registers(pid, &regs) < 0 || result_of(&regs) != 0)
		return -1;
	set_back(&before);
	return set_registers(pid, &before);
}

/* ---- when ---- */

/* Reads the list that the daemon has told. False: there is no memory. */
static bool learn(void)
{
	const char *text = getenv(GCR_CRIU_DUMPABLE_VARIABLE);
	int length = 0;

	if (!text || processes)
		return true;
	processes = calloc(strlen(text) / 2 + 1, sizeof(*processes));
	if (!processes)
		return false;
	for (int pid; sscanf(text, "%d%n", &pid, &length) == 1; text += length) {
		processes[processes_count++].pid = pid;
		length += text[length] == ',';
	}
	return true;
}

int gcr_guard_trace(enum __ptrace_request request, pid_t pid)
{
	struct process *process = processes;

	if (!gcr_guard_has_owner())
		return 0;
	if (!learn()) {
		errno = ENOMEM;
		return -1;
	}
	for (process = processes; process < processes + processes_count; process++)
		if (process->pid == pid)
			break;
	if (process == processes + processes_count)
		return 0;
	if (process->is_failed) {
		errno = EPERM;
		return -1;
	}
	if (process->is_done)
		return 0;
	/* CRIU also attaches to a new process, as root, to unlock its shadow stack. */
	if (request == PTRACE_SEIZE || request == PTRACE_DETACH)
		process->stops = 0;
	if (request == PTRACE_INTERRUPT) {
		process->stops++;
		return 0;
	}
	if (process->stops < STOP_WITH_RIGHTS)
		return 0;
	process->is_done = true;
	if (make_dumpable(pid) == 0)
		return 0;
	process->is_failed = true;
	fprintf(stderr, "gpucr-criu-guard: process %d cannot be made dumpable\n", (int)pid);
	errno = EPERM;
	return -1;
}

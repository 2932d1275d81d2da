/* SPDX-License-Identifier: MIT */
/*
 * CRIU writes the instruction of a system call into a dumped process, runs it there, and then
 * restores the registers and the bytes; other threads it runs by their registers alone (CRIU 4.1.1:
 * compel/src/lib/infect.c). This must not happen to a program that is not the user's.
 *
 * A process that executes another program meanwhile. A process outside the tree that shares the
 * memory can put another instruction into CRIU's place, so that the dumped process executes a
 * set-user-ID program: the kernel honours that bit, since CRIU may trace everything. CRIU would
 * then restore registers, and write bytes, of the user's choice in a program with other rights. So
 * a thread stops when it has executed a program, before the program's first instruction, and from
 * the moment on in which CRIU has attached to it: a thread that is not the leader gets the leader's
 * pid, and keeps its own options. The thread stays in that stop until CRIU's next call, and the
 * guard looks before each one.
 *
 * A process that has got the root's pid. CRIU gets the root by its pid, and the guard knows it by
 * its pidfd: from PTRACE_SEIZE on, the pid cannot change hands.
 *
 * A process that CRIU takes for a thread of the tree. CRIU reads the ids of a process's threads,
 * and attaches to them. A thread may end in between, and its id go to any process. CRIU compares
 * the parent, but not for the root's threads, and never the process of the thread (criu/seize.c).
 * So the guard does, when CRIU has attached, and the id cannot change hands any more. An id may
 * also have gone to a child of the tree, which CRIU would run as a thread, by registers of the
 * user's choice: only what CRIU has written to as to a process is run as one.
 */
#include "criu-glue/guard_tracee.h"

#include <errno.h>
#include <search.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu-glue/guard.h"
#include "criu-glue/guard_dump.h"

/* si_code of the stop after execve(2), see ptrace(2). */
#define EXEC_STOP (SIGTRAP | PTRACE_EVENT_EXEC << 8)

/* A thread to which CRIU has attached at a dump. */
struct tracee {
	pid_t pid;
	pid_t process;
	/* Of a process's main thread: CRIU has written to the memory, as it begins in a process. */
	bool is_written;
};

static void *tracees; /* a tree of tsearch(3) */

static int compare(const void *left, const void *right)
{
	const struct tracee *a = left, *b = right;

	return (a->pid > b->pid) - (a->pid < b->pid);
}

static struct tracee *find(pid_t pid)
{
	struct tracee **found = tfind(&(struct tracee){.pid = pid}, &tracees, compare);

	return found ? *found : NULL;
}

void *gcr_guard_tracee_data(enum __ptrace_request request, void *data)
{
	if (request != PTRACE_SEIZE && request != PTRACE_SETOPTIONS)
		return data;
	return (void *)((uintptr_t)data | PTRACE_O_TRACEEXEC);
}

/* ---- before a request ---- */

/* Does CRIU change how the thread goes on, but for its memory? */
static bool sets_state(enum __ptrace_request request)
{
	return request == PTRACE_SETREGSET || request == PTRACE_SETREGS ||
	       request == PTRACE_SETFPREGS || request == PTRACE_POKEUSER ||
	       request == PTRACE_SETSIGMASK || request == PTRACE_SETSIGINFO;
}

/* Has CRIU changed the process, or a thread of it? */
static bool is_changed(pid_t pid)
{
	const struct tracee *tracee = find(pid);

	tracee = tracee ? find(tracee->process) : NULL;
	return tracee && tracee->is_written;
}

static int refuse_executed(enum __ptrace_request request, pid_t pid)
{
	bool is_killed = is_changed(pid);

	/* CRIU has not touched it, and lets it go on. */
	if (!is_killed && request == PTRACE_DETACH)
		return 0;
	/* It is stopped, so the pid is still its own. */
	if (is_killed)
		kill(pid, SIGKILL);
	fprintf(stderr, "gpucr-criu-guard: process %d has executed another program while CRIU %s\n",
		(int)pid, is_killed ? "worked in it, and is killed" : "attached to it");
	errno = ESRCH;
	return -1;
}

/* As gcr_guard_tracee_check(), of what CRIU does in the processes of a dumped tree. */
static int check_role(enum __ptrace_request request, pid_t pid)
{
	struct tracee *tracee = find(pid);

	/* It tries the kernel first, with children of its own (4.2: criu/kerndat.c). */
	if (!tracees)
		return 0;
	if (request == PTRACE_POKEDATA && tracee && tracee->process == pid)
		tracee->is_written = true;
	if (!sets_state(request) || is_changed(pid))
		return 0;
	fprintf(stderr, "gpucr-criu-guard: CRIU takes process %d for a thread of another one\n",
		(int)pid);
	errno = EPERM;
	return -1;
}

int gcr_guard_tracee_check(enum __ptrace_request request, pid_t pid)
{
	siginfo_t info = {0};
	int number = errno;

	/* These do not need a stopped thread. */
	if (request == PTRACE_TRACEME || request == PTRACE_ATTACH || request == PTRACE_SEIZE ||
	    request == PTRACE_INTERRUPT)
		return 0;
	/* A thread that is not stopped may be in that stop by the time of the request. */
	if (syscall(SYS_ptrace, PTRACE_GETSIGINFO, pid, NULL, &info) < 0 && errno == ESRCH)
		return -1;
	errno = number;
	if (info.si_code == EXEC_STOP)
		return refuse_executed(request, pid);
	return gcr_guard_is_dump() ? check_role(request, pid) : 0;
}

/* ---- after PTRACE_SEIZE ---- */

pid_t gcr_guard_status_pid(pid_t pid, const char *name)
{
	char line[256], path[64];
	size_t length = strlen(name);
	pid_t found = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	while (file && found < 0 && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, length) && line[length] == ':')
			found = (pid_t)strtol(line + length + 1, NULL, 10);
	if (file)
		fclose(file);
	return found;
}

static bool is_process(pid_t pid)
{
	const struct tracee *tracee = find(pid);

	return tracee && tracee->process == pid;
}

static __attribute__((noreturn)) void give_up(pid_t pid, const char *words)
{
	fprintf(stderr, "gpucr-criu-guard: process %d, to which CRIU has attached, %s\n", (int)pid,
		words);
	_exit(1);
}

/*
 * Has CRIU attached to another process than the root? True if @pid was the root's pid, and the root
 * has ended and been waited for.
 */
static bool is_of_another(pid_t pid)
{
	int fd;

	return gcr_guard_is_dump_root(pid, &fd) &&
	       syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) < 0;
}

/* Does a thread of @process belong to the tree? CRIU attaches to parents before their children. */
static bool is_of_tree(pid_t pid, pid_t process)
{
	int unused;

	if (process != pid)
		return is_process(process);
	return gcr_guard_is_dump_root(pid, &unused) ||
	       is_process(gcr_guard_status_pid(pid, "PPid"));
}

int gcr_guard_tracee_seized(pid_t pid)
{
	pid_t process = gcr_guard_status_pid(pid, "Tgid");
	struct tracee *tracee, **kept;

	if (!gcr_guard_is_dump())
		return 0;
	if (is_of_another(pid)) {
		fprintf(stderr,
			"gpucr-criu-guard: process %d has ended, and its pid is another's\n",
			(int)pid);
		errno = ESRCH;
		return -1;
	}
	if (!is_of_tree(pid, process))
		give_up(pid, "is none of the tree: the thread that had the number has ended");
	tracee = calloc(1, sizeof(*tracee));
	if (!tracee)
		give_up(pid, "cannot be kept in mind: out of memory");
	*tracee = (struct tracee){.pid = pid, .process = process};
	kept = tsearch(tracee, &tracees, compare);
	if (!kept)
		give_up(pid, "cannot be kept in mind: out of memory");
	/* CRIU had attached to another thread that had the number. */
	if (*kept != tracee) {
		**kept = *tracee;
		free(tracee);
	}
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The end of a restore: CRIU stops all threads of the tree by ptrace(2), sends SIGSTOP, and lets go
 * of one thread after the other (4.0 to 4.2: criu/cr-restore.c). From then on any process of the
 * owner can have the tree run by SIGCONT. So the guard asks the daemon before CRIU lets go of the
 * first one: until then no thread has run any of the program, and all have their own rights. CRIU's
 * own action script at that moment (pre-resume) is no use, since CRIU goes on if it fails.
 *
 * Without a yes CRIU ends here, and the kernel kills the tree, which it does too if CRIU is killed.
 */
#include "criu-glue/guard_resume.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "criu-glue/criu.h"

static struct {
	int fd; /* by which the daemon is asked; 0: this CRIU does not ask */
	/* CRIU has attached to the tree for good, and not only to unlock a shadow stack. */
	bool has_attached;
	bool is_allowed;
} resume;

/* Reads the descriptor from the environment. The variable stays: a shell may start CRIU. */
__attribute__((constructor)) static void learn(void)
{
	const char *text = getenv(GCR_CRIU_RESUME_VARIABLE);
	char end;

	if (!text)
		return;
	if (sscanf(text, "%d%c", &resume.fd, &end) != 1 || resume.fd <= 0) {
		fprintf(stderr, "gpucr-criu-guard: whom to ask is not known: %s\n", text);
		_exit(1);
	}
}

static bool ask(void)
{
	char byte = GCR_CRIU_HOOK_ASKS;
	ssize_t got;

	if (send(resume.fd, &byte, 1, MSG_NOSIGNAL) != 1)
		return false;
	do
		got = read(resume.fd, &byte, 1);
	while (got < 0 && errno == EINTR);
	return got == 1 && byte == GCR_CRIU_HOOK_YES;
}

void *gcr_guard_resume(enum __ptrace_request request, void *data)
{
	if (!resume.fd)
		return data;
	if (request == PTRACE_SETOPTIONS) {
		resume.has_attached = true;
		return (void *)((uintptr_t)data | PTRACE_O_EXITKILL);
	}
	if (request == PTRACE_DETACH && resume.has_attached && !resume.is_allowed) {
		resume.is_allowed = ask();
		if (!resume.is_allowed) {
			fprintf(stderr, "gpucr-criu-guard: the restored tree may not run\n");
			_exit(1);
		}
	}
	return data;
}

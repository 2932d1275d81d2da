/* SPDX-License-Identifier: MIT */
/*
 * The topmost process of a process tree, which runs as user root for a moment.
 *
 * Usage: changing root SECRET PROGRAM COMMAND..., where PROGRAM is a set-user-ID copy of this
 * program. The process starts COMMAND, keeps an O_PATH descriptor of SECRET open, and executes
 * PROGRAM at SIGUSR1. PROGRAM runs as root, like newgrp(1), until SIGUSR2; then the process gives
 * up root's ids and waits for the next SIGUSR1.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char self[4096];

static void find_self(void)
{
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[length > 0 ? length : 0] = '\0';
}

static sigset_t signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	return set;
}

static int wait_for(int number)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, number);
	return sigwait(&set, &number);
}

static int be_user(char *program)
{
	char first[] = "changing", mode[] = "suid";
	char *const arguments[] = {first, mode, self, NULL};

	if (!wait_for(SIGUSR1))
		execv(program, arguments);
	perror(program);
	return 1;
}

static int be_root(char *program)
{
	char first[] = "changing", mode[] = "again";
	char *const arguments[] = {first, mode, self, NULL};
	uid_t uid = getuid();

	if (wait_for(SIGUSR2) || setresuid(uid, uid, uid))
		return 1;
	execv(program, arguments);
	return 1;
}

int main(int argc, char **argv)
{
	sigset_t set = signals();

	find_self();
	if (argc == 3)
		return !strcmp(argv[1], "suid") ? be_root(argv[2]) : be_user(argv[2]);
	if (argc < 5)
		return 2;
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (!fork()) {
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		execv(argv[4], argv + 4);
		_exit(1);
	}
	if (open(argv[2], O_PATH) < 0) {
		perror(argv[2]);
		return 1;
	}
	return be_user(argv[3]);
}

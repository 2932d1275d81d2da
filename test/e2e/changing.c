/* SPDX-License-Identifier: MIT */
/*
 * The root of a tree that is root's for a moment: changing root SECRET PROGRAM COMMAND..., where
 * PROGRAM is a set-user-ID copy of this one. It starts COMMAND, keeps the name of SECRET open, and
 * executes PROGRAM for SIGUSR1. That runs as root, as newgrp(1) does, until SIGUSR2; then it is the
 * user's again, and all begins from the start.
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

/* SPDX-License-Identifier: MIT */
/*
 * Loaded into a program by LD_PRELOAD, for a preload library that the test plays itself:
 *  - connects the sockets that the program has inherited to the daemon. A connection speaks for the
 *    program that has made it, and no longer for one that this program becomes by execve(2).
 *    GPUCR_TEST_CONNECT is the daemon's socket and then the descriptors, after colons;
 *  - on SIGUSR1 has the program become $GPUCR_TEST_NEXT;
 *  - on SIGUSR2, with GPUCR_TEST_UNDUMPABLE, has its /proc/PID belong to root, as execve(2) of a
 *    set-user-ID program does.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char *next;

static void become(int number)
{
	execl(next, next, (char *)NULL);
	_exit(number);
}

static void become_undumpable(int number)
{
	prctl(PR_SET_DUMPABLE, 0);
}

__attribute__((constructor)) static void start(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char *text = getenv("GPUCR_TEST_CONNECT"), *rest;

	next = getenv("GPUCR_TEST_NEXT");
	if (next)
		signal(SIGUSR1, become);
	if (getenv("GPUCR_TEST_UNDUMPABLE"))
		signal(SIGUSR2, become_undumpable);
	if (!text)
		return;
	text = strdup(text);
	/* Its children, and what it becomes, connect nothing. */
	unsetenv("GPUCR_TEST_CONNECT");
	if (!text)
		_exit(1);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", strtok_r(text, ":", &rest));
	for (char *word; (word = strtok_r(NULL, ":", &rest));) {
		int fd = atoi(word);

		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
			perror("connect");
			_exit(1);
		}
		close(fd);
	}
	free(text);
}

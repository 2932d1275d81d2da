/* SPDX-License-Identifier: MIT */
/*
 * swaps_descriptors FILE UID: a program of a user, and a process of his that shares its descriptors
 * and is none of its children. That process puts FILE, of which it has nothing but a name (O_PATH),
 * in the place of each descriptor that comes up. Prints the pids of both.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_FD	   100
#define FIRST_FD   3
#define LAST_FD	   4
#define ALARM_SEC  120
#define PAUSE_USEC 1000

static pid_t fork_with_descriptors(void)
{
	return (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
}

static void swap_forever(void)
{
	alarm(ALARM_SEC);
	setsid();
	for (;;)
		for (int fd = FIRST_FD; fd <= LAST_FD; fd++)
			if (fcntl(fd, F_GETFD) >= 0)
				dup2(FILE_FD, fd);
}

int main(int count, char **arguments)
{
	int uid = count == 3 ? atoi(arguments[2]) : 0;
	pid_t child, swapper;
	int file;

	if (!uid || setgid((gid_t)uid) < 0 || setuid((uid_t)uid) < 0)
		return 1;
	file = open(arguments[1], O_PATH);
	if (file < 0 || dup2(file, FILE_FD) < 0)
		return 1;
	close(file);
	setsid();
	child = fork_with_descriptors();
	if (!child) {
		/* Its parent ends, so that it is no process of the tree. */
		swapper = fork_with_descriptors();
		if (!swapper) {
			while (getppid() != 1)
				usleep(PAUSE_USEC);
			swap_forever();
		}
		printf("%d\n", (int)swapper);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	printf("%d\n", (int)getpid());
	fflush(stdout);
	for (;;)
		pause();
}

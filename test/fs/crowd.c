/* SPDX-License-Identifier: MIT */
/*
 * crowd: many processes of one user, each of which is slow to inspect: the processes share a table
 * of many descriptors, and have mapped a device that is not among these, so that a scan reads all
 * of the table.
 * usage: crowd DEVICE UID PROCESSES DESCRIPTORS last|none [FILE]
 * With `last` the device is in the table, behind all other descriptors. FILE is mapped too. The
 * program prints the pids and stays until its input ends.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned long uid, processes, descriptors;
	struct rlimit limit;
	int device;
	char byte;

	if (argc < 6)
		return 2;
	uid = strtoul(argv[2], NULL, 10);
	processes = strtoul(argv[3], NULL, 10);
	descriptors = strtoul(argv[4], NULL, 10);
	limit = (struct rlimit){descriptors + 64, descriptors + 64};
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 3;
	device = open(argv[1], O_RDWR | O_CLOEXEC);
	if (device < 0 || setgid((gid_t)uid) < 0 || setuid((uid_t)uid) < 0 ||
	    mmap(NULL, 4096, PROT_NONE, MAP_SHARED, device, 0) == MAP_FAILED)
		return 4;
	/* A scan that runs now must not find the device among few descriptors. */
	close(device);
	for (unsigned long i = 0; i < descriptors; i++)
		if (dup(0) < 0)
			return 5;
	if (!strcmp(argv[5], "last") && open(argv[1], O_RDWR | O_CLOEXEC) < 0)
		return 6;
	if (argc > 6) {
		int file = open(argv[6], O_RDONLY | O_CLOEXEC);

		if (mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
			return 8;
		close(file);
	}
	for (unsigned long i = 0; i < processes; i++) {
		pid_t pid =
			(pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);

		if (pid < 0)
			return 7;
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
		printf("%d%c", (int)pid, i + 1 < processes ? ' ' : '\n');
	}
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * mapped: a file in memory, mapped as often as a user likes, in which holes are punched all the
 * time: the kernel searches all mappings for each hole, and a thread that maps, unmaps or faults
 * waits.
 * usage: mapped DESCRIPTOR BYTES MAPPINGS PROCESSES
 * The program prints a line when it begins, and stays until its input ends.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void punch(int fd, off_t bytes)
{
	for (;;) {
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, bytes - 4096);
		/* The kernel does not search the mappings for a page that does not exist. */
		if (pwrite(fd, "", 1, 4096) < 0)
			_exit(1);
	}
}

int main(int argc, char **argv)
{
	size_t bytes;
	int fd;
	char byte;

	if (argc < 5)
		return 2;
	fd = atoi(argv[1]);
	bytes = strtoul(argv[2], NULL, 10) & ~4095ul;
	for (int i = atoi(argv[3]); i > 0; i--) {
		/*
		 * Alternating protections, so that the kernel does not join neighbouring mappings.
		 */
		const char *page = mmap(NULL, bytes, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE,
					MAP_SHARED, fd, 0);

		if (page == MAP_FAILED)
			return 3;
	}
	for (int i = atoi(argv[4]); i > 0; i--) {
		pid_t pid = fork();

		if (pid < 0)
			return 4;
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() == 1)
				return 0;
			punch(fd, (off_t)bytes);
		}
	}
	puts("mapped");
	fflush(stdout);
	return read(0, &byte, 1) < 0;
}

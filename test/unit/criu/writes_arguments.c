/* SPDX-License-Identifier: MIT */
/*
 * writes_arguments UID: a program of a user, and a process of his that shares its memory and is
 * none of its children. That process looks for what CRIU puts into the program, and changes the
 * count of mappings there, from which CRIU gets the place of its list of pages (4.1.1: criu/mem.c),
 * after CRIU's code has used the count, and before CRIU reads it again. Prints the pids of both.
 *
 * It has to be started with the descriptors 0 to 2, and no others.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALARM_SEC   120
#define PAUSE_USEC  1000
#define STACK_BYTES (256 << 10)
#define PAGE_BYTES  4096
/* Of this many mappings: far behind all memory of CRIU. */
#define MANY	    0x2000000u

/* What CRIU's code gets with a list of descriptors, and with mappings. */
static const int32_t descriptors[] = {3, 0, 1, 2};
enum { MAPPINGS_COUNT, MAPPINGS_PROTECTION };

static char stacks[2][STACK_BYTES] __attribute__((aligned(PAGE_BYTES)));
static char maps[256 << 10];
static void *hidden;
static volatile pid_t writer;

/* Finds the memory of CRIU that can be written. False: there is none. */
static bool find_memory(char **ret_start, char **ret_end)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t got;

	while ((got = read(fd, maps + used, sizeof(maps) - 1 - used)) > 0)
		used += (size_t)got;
	close(fd);
	maps[used] = '\0';
	for (char *line = maps; line && *line; line = strchr(line, '\n'), line += !!line) {
		unsigned long start, end;
		char rights[8];
		char *name = strstr(line, "CRIU"), *next = strchr(line, '\n');

		if (name && next && name < next &&
		    sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3 && rights[1] == 'w') {
			*ret_start = (char *)start;
			*ret_end = (char *)end;
			return true;
		}
	}
	return false;
}

/* May the program read the hidden page now? CRIU's code has let it. */
static bool is_readable(void)
{
	return syscall(SYS_rt_sigprocmask, SIG_BLOCK, hidden, NULL, 8) == 0;
}

static int write_count(void *unused)
{
	volatile uint32_t *arguments = NULL;
	char *start, *end;

	(void)unused;
	alarm(ALARM_SEC);
	while (getppid() != 1)
		usleep(PAUSE_USEC);
	while (!find_memory(&start, &end))
		;
	for (char *at = start; !arguments; at = at + sizeof(descriptors) < end ? at + 8 : start)
		if (!memcmp(at, descriptors, sizeof(descriptors)))
			arguments = (volatile uint32_t *)at;
	while (arguments[MAPPINGS_PROTECTION] != PROT_READ || !is_readable())
		;
	arguments[MAPPINGS_COUNT] = MANY;
	_exit(0);
}

static int start_writer(void *unused)
{
	(void)unused;
	writer = clone(write_count, stacks[1] + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
	_exit(0);
}

int main(int count, char **arguments)
{
	int uid = count == 2 ? atoi(arguments[1]) : 0;
	pid_t child;

	if (!uid || setgid((gid_t)uid) < 0 || setuid((uid_t)uid) < 0)
		return 1;
	setsid();
	hidden = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (hidden == MAP_FAILED)
		return 1;
	memset(hidden, 0, PAGE_BYTES);
	mprotect(hidden, PAGE_BYTES, PROT_NONE);
	/* Its parent ends, so that it is no process of the tree. */
	child = clone(start_writer, stacks[0] + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
	waitpid(child, NULL, 0);
	printf("%d\n%d\n", (int)writer, (int)getpid());
	fflush(stdout);
	for (;;)
		pause();
}

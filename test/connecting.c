/* SPDX-License-Identifier: MIT */
/*
 * Loaded into a program by LD_PRELOAD, for a preload library that the test plays itself:
 *  - connects the sockets that the program has inherited to the daemon. A connection speaks for the
 *    program that has made it, and no longer for one that this program becomes by execve(2).
 *    GPUCR_TEST_CONNECT is the daemon's socket and then the descriptors, after colons;
 *  - maps the descriptor $GPUCR_TEST_PAGE, as a library maps its page, until SIGUSR2;
 *  - on SIGUSR1 has the program become $GPUCR_TEST_NEXT;
 *  - on SIGUSR2, with GPUCR_TEST_UNDUMPABLE, has its /proc/PID belong to root, as execve(2) of a
 *    set-user-ID program does.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Of any page. */
#define PAGE_BYTES (600 << 10)

static char *next;
static void *page = MAP_FAILED;

static void become(int number)
{
	execl(next, next, (char *)NULL);
	_exit(number);
}

static void become_undumpable(int number)
{
	prctl(PR_SET_DUMPABLE, 0);
}

static void unmap_page(int number)
{
	munmap(page, PAGE_BYTES);
}

__attribute__((constructor)) static void start(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char *text = getenv("GPUCR_TEST_CONNECT"), *page_fd = getenv("GPUCR_TEST_PAGE"), *rest;

	next = getenv("GPUCR_TEST_NEXT");
	if (page_fd) {
		page = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, atoi(page_fd), 0);
		signal(SIGUSR2, unmap_page);
	}
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

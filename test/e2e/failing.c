/* SPDX-License-Identifier: MIT */
/*
 * failing: preloaded into the daemon, it makes calls of the C library fail for want of something.
 * Which ones, the words in the file say that GPUCR_TEST_FAILING names; none if it is not there:
 *   watch  no process can be watched
 *   uuid   no descriptor is left for the kernel's random UUIDs
 *   cgroup no cgroup can be made
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_to_fail(const char *word)
{
	const char *path = getenv("GPUCR_TEST_FAILING");
	char words[256] = "";
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd < 0)
		return false;
	if (read(fd, words, sizeof(words) - 1) < 0)
		words[0] = '\0';
	close(fd);
	return strstr(words, word);
}

static bool is_pidfd(int fd)
{
	char path[32], target[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "pidfd");
}

int epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event)
{
	static int (*next)(int, int, int, struct epoll_event *);

	if (operation == EPOLL_CTL_ADD && is_to_fail("watch") && is_pidfd(fd)) {
		errno = ENOSPC;
		return -1;
	}
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "epoll_ctl");
	return next(epoll_fd, operation, fd, event);
}

FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*next)(const char *, const char *);

	if (!strcmp(path, "/proc/sys/kernel/random/uuid") && is_to_fail("uuid")) {
		errno = EMFILE;
		return NULL;
	}
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "fopen");
	return next(path, mode);
}

int mkdir(const char *path, mode_t mode)
{
	static int (*next)(const char *, mode_t);

	if (strstr(path, "/gpucrfs/gpucr-") && is_to_fail("cgroup")) {
		errno = EROFS;
		return -1;
	}
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "mkdir");
	return next(path, mode);
}

/* SPDX-License-Identifier: MIT */
/*
 * gpucr-hook: CRIU's action script for a dump. When all images are written, and before the tree is
 * killed or resumed, gpucr-hook asks the program that started CRIU whether the dump is to be kept.
 * Without a yes, the hook fails, and CRIU lets the tree run as before (criu(8), --action-script:
 * post-dump). If that program has died, gpucr-hook keeps a dump that is published, because the next
 * daemon will end its tree: the name of the place's directory says so. All other actions are
 * ignored.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu-glue/criu.h"

/* Prefix of the directory of a published place (GCR_STORE_PLACE in fs/store/store_private.h). */
#define PUBLISHED "/incoming-"
/* Path of the images' directory within the place's. */
#define IMAGES	  "/snapshot/criu"

/*
 * CRIU closes its descriptors before it starts a script (4.1.1), so the script fetches them from
 * CRIU. -1: an error.
 */
static int fetch(int criu_pidfd, int fd)
{
	return (int)syscall(SYS_pidfd_getfd, criu_pidfd, fd, 0);
}

static bool is_published(int images_fd)
{
	char link[64], path[PATH_MAX];
	const char *place;
	ssize_t bytes;
	size_t rest;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", images_fd);
	bytes = readlink(link, path, sizeof(path));
	if (bytes <= (ssize_t)strlen(IMAGES) || bytes == sizeof(path))
		return false;
	rest = (size_t)bytes - strlen(IMAGES);
	if (memcmp(path + rest, IMAGES, strlen(IMAGES)) != 0)
		return false;
	path[rest] = '\0';
	place = strrchr(path, '/');
	return place && !strncmp(place, PUBLISHED, strlen(PUBLISHED));
}

int main(void)
{
	const char *action = getenv("CRTOOLS_SCRIPT_ACTION");
	char byte = GCR_CRIU_HOOK_ASKS;
	int pidfd, fd, images_fd;
	ssize_t got;

	if (!action || strcmp(action, "post-dump") != 0)
		return EXIT_SUCCESS;
	pidfd = (int)syscall(SYS_pidfd_open, getppid(), 0);
	fd = pidfd < 0 ? -1 : fetch(pidfd, GCR_CRIU_HOOK_FD);
	images_fd = pidfd < 0 ? -1 : fetch(pidfd, GCR_CRIU_IMAGES_FD);
	if (fd < 0 || images_fd < 0)
		return EXIT_FAILURE;
	if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1)
		return EXIT_FAILURE;
	do
		got = read(fd, &byte, 1);
	while (got < 0 && errno == EINTR);
	if (got == 1)
		return byte == GCR_CRIU_HOOK_YES ? EXIT_SUCCESS : EXIT_FAILURE;
	return is_published(images_fd) ? EXIT_SUCCESS : EXIT_FAILURE;
}

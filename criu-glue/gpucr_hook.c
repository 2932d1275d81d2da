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

/*
 * Prefix of the name of a published place's directory (GCR_STORE_PLACE in
 * fs/store/store_private.h).
 */
#define PUBLISHED "/incoming-"
/* Path of the images' directory within the place's. */
#define IMAGES	  "/snapshot/criu"

/*
 * Fetches descriptor @fd from CRIU, which closes its descriptors before it starts a script (4.1.1).
 * -1: an error.
 */
static int fetch(int criu_pidfd, int fd)
{
	return (int)syscall(SYS_pidfd_getfd, criu_pidfd, fd, 0);
}

/*
 * Finds, by its path, the directory of the place to which the images' directory @images_fd belongs.
 * False: the images belong to no place.
 */
static bool find_place(int images_fd, char ret_path[PATH_MAX])
{
	char link[64];
	ssize_t bytes;
	size_t rest;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", images_fd);
	bytes = readlink(link, ret_path, PATH_MAX);
	if (bytes <= (ssize_t)strlen(IMAGES) || bytes == PATH_MAX)
		return false;
	rest = (size_t)bytes - strlen(IMAGES);
	if (memcmp(ret_path + rest, IMAGES, strlen(IMAGES)) != 0)
		return false;
	ret_path[rest] = '\0';
	return true;
}

static bool is_published(int images_fd)
{
	char path[PATH_MAX];
	const char *place = find_place(images_fd, path) ? strrchr(path, '/') : NULL;

	return place && !strncmp(place, PUBLISHED, strlen(PUBLISHED));
}

/*
 * Fetches the descriptors of CRIU, our parent. False: CRIU has ended. Then our parent is another
 * process, such as init, which has no place's images, and nothing may be written to its
 * descriptors.
 */
static bool fetch_both(int *ret_fd, int *ret_images_fd)
{
	int pidfd = (int)syscall(SYS_pidfd_open, getppid(), 0);
	char path[PATH_MAX];

	if (pidfd < 0)
		return false;
	*ret_images_fd = fetch(pidfd, GCR_CRIU_IMAGES_FD);
	if (*ret_images_fd < 0 || !find_place(*ret_images_fd, path))
		return false;
	*ret_fd = fetch(pidfd, GCR_CRIU_HOOK_FD);
	return *ret_fd >= 0;
}

int main(void)
{
	const char *action = getenv("CRTOOLS_SCRIPT_ACTION");
	char byte = GCR_CRIU_HOOK_ASKS;
	int fd, images_fd;
	ssize_t got;

	if (!action || strcmp(action, "post-dump") != 0)
		return EXIT_SUCCESS;
	if (!fetch_both(&fd, &images_fd))
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

/* SPDX-License-Identifier: MIT */
/*
 * gpucr-hook: CRIU's action script of a dump. When all images are written, and before the tree is
 * killed or goes on, it asks whoever has started CRIU whether the dump is to stand: without a yes,
 * also from one that has died meanwhile, it fails, and then CRIU lets the tree go on as it was
 * (criu(8), --action-script: post-dump). Other moments are nothing to it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu-glue/criu.h"

int main(void)
{
	const char *action = getenv("CRTOOLS_SCRIPT_ACTION");
	char byte = GCR_CRIU_HOOK_ASKS;
	int pidfd, fd;
	ssize_t got;

	if (!action || strcmp(action, "post-dump") != 0)
		return EXIT_SUCCESS;
	/* CRIU closes what it has open before it starts a script (4.1.1). */
	pidfd = (int)syscall(SYS_pidfd_open, getppid(), 0);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, GCR_CRIU_HOOK_FD, 0);
	if (fd < 0 || write(fd, &byte, 1) != 1)
		return EXIT_FAILURE;
	do
		got = read(fd, &byte, 1);
	while (got < 0 && errno == EINTR);
	return got == 1 && byte == GCR_CRIU_HOOK_YES ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* SPDX-License-Identifier: MIT */
/*
 * For LD_PRELOAD into gpucr-demo: the library's agent thread does not go on for a while when it has
 * closed its socket, so that CRIU dumps the program meanwhile.
 */
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/thread_name.h"

#define PAUSE_SEC 3

int close(int fd)
{
	struct stat stat;
	char name[16] = "";
	int is_socket = fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode);
	int result = (int)syscall(SYS_close, fd);

	prctl(PR_GET_NAME, name);
	if (is_socket && !strcmp(name, GCR_THREAD_AGENT))
		sleep(PAUSE_SEC);
	return result;
}

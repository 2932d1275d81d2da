/* SPDX-License-Identifier: MIT */
#include "lib/thread_name.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define DRIVER_PREFIX "cuda"
#define DRIVER_DIGITS 11

bool gcr_thread_name_is_ours(const char *comm)
{
	return strcmp(comm, GCR_THREAD_AGENT) == 0 || strcmp(comm, GCR_THREAD_HOLD) == 0 ||
	       strcmp(comm, GCR_THREAD_IPC) == 0 || strcmp(comm, GCR_THREAD_IDLE) == 0;
}

void gcr_thread_name_of_program(char ret_name[GCR_THREAD_NAME_ROOM])
{
	_cleanup_close_ int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, ret_name, GCR_THREAD_NAME_ROOM - 1);

	ret_name[length > 0 ? length : 0] = '\0';
	ret_name[strcspn(ret_name, "\n")] = '\0';
}

bool gcr_thread_name_is_drivers(const char *comm, const char *program)
{
	const char *rest = comm + strlen(DRIVER_PREFIX);

	if (strncmp(comm, DRIVER_PREFIX, strlen(DRIVER_PREFIX)) != 0 || strcmp(comm, program) == 0)
		return false;
	return strcmp(rest, "-EvtHandlr") == 0 ||
	       (strlen(rest) == DRIVER_DIGITS && strspn(rest, "0123456789") == DRIVER_DIGITS);
}

/* SPDX-License-Identifier: MIT */
#include "lib/thread_name.h"

#include <string.h>

#define DRIVER_PREFIX "cuda"
#define DRIVER_DIGITS 11

bool gcr_thread_name_is_ours(const char *comm)
{
	return strcmp(comm, GCR_THREAD_AGENT) == 0 || strcmp(comm, GCR_THREAD_HOLD) == 0 ||
	       strcmp(comm, GCR_THREAD_IPC) == 0;
}

bool gcr_thread_name_is_drivers(const char *comm, const char *program)
{
	const char *rest = comm + strlen(DRIVER_PREFIX);

	if (strncmp(comm, DRIVER_PREFIX, strlen(DRIVER_PREFIX)) != 0 || strcmp(comm, program) == 0)
		return false;
	return strcmp(rest, "-EvtHandlr") == 0 ||
	       (strlen(rest) == DRIVER_DIGITS && strspn(rest, "0123456789") == DRIVER_DIGITS);
}

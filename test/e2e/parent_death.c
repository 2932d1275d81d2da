/* SPDX-License-Identifier: MIT */
/*
 * For LD_PRELOAD into gpucr-demo: GPUCR_TEST_PARENT_DEATH names the thread or process that gets
 * SIGKILL when its parent ends: the `main` thread, another `thread`, or a `child` of gpucr-demo.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void tie(void)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		abort();
}

static void *stay(void *unused)
{
	tie();
	for (;;)
		pause();
	return unused;
}

__attribute__((constructor)) static void begin(void)
{
	const char *what = getenv("GPUCR_TEST_PARENT_DEATH");
	pthread_t thread;

	if (!what || strcmp(program_invocation_short_name, "gpucr-demo") != 0)
		return;
	if (!strcmp(what, "main")) {
		tie();
	} else if (!strcmp(what, "thread")) {
		if (pthread_create(&thread, NULL, stay, NULL))
			abort();
	} else if (!strcmp(what, "child")) {
		/* The demo itself gets another signal that also ends a process. */
		if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0)
			abort();
		if (!fork())
			stay(NULL);
	}
}

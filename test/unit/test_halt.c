/* SPDX-License-Identifier: MIT */
/* Stopping a process that replaces itself by execve(2) all the time: neither waits for the other.
 */
#include "fs/halt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "test/unit/test.h"

#define THREADS	   30
#define TEST_USEC  (3 * GCR_USEC_PER_SEC)
#define HANGS_SEC  60
#define EXEC_USEC  3000
#define PAUSE_USEC 300

static char **arguments;

static void *wait_for_ever(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static void *begin_again(void *nothing)
{
	usleep((useconds_t)(gcr_clock_usec() % EXEC_USEC));
	execv("/proc/self/exe", arguments);
	return nothing;
}

static void run_target(void)
{
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, begin_again, NULL) == 0);
	wait_for_ever(NULL);
}

static void stop_again_and_again(pid_t pid)
{
	int64_t until_usec = gcr_clock_usec() + TEST_USEC;
	unsigned int stopped = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(HANGS_SEC);
	while (gcr_clock_usec() < until_usec) {
		struct gcr_halt *halt = NULL;
		struct gcr_error error = {0};
		int r = gcr_halt_begin(pid, &halt, &error);

		/* In the midst of an execve(2) nobody may trace it. */
		if (r < 0)
			fprintf(stderr, "%s: %s\n", strerror(-r), error.words);
		CHECK(r == 0 || r == -EOPNOTSUPP || r == -EPERM);
		stopped += r == 0;
		gcr_halt_end(halt);
		usleep(PAUSE_USEC);
	}
	CHECK(stopped > 10);
	exit(0);
}

int main(int argc, char **argv)
{
	pid_t target, stopper;
	int status;

	arguments = argv;
	if (argc > 1)
		run_target();
	target = fork();
	CHECK(target >= 0);
	if (target == 0) {
		execl("/proc/self/exe", argv[0], "target", NULL);
		_exit(1);
	}
	/* As the daemon, not its parent. */
	stopper = fork();
	CHECK(stopper >= 0);
	if (stopper == 0)
		stop_again_and_again(target);
	CHECK(waitpid(stopper, &status, 0) == stopper);
	CHECK(kill(target, SIGKILL) == 0 && waitpid(target, NULL, 0) == target);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return 0;
}

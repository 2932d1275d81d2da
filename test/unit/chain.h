/* SPDX-License-Identifier: MIT */
/* A long chain of processes, each of which is the parent of the next. */
#ifndef GCR_TEST_CHAIN_H
#define GCR_TEST_CHAIN_H

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/test.h"

#define CHAIN 200

static pid_t chain[CHAIN];

static inline void make_chain(void)
{
	int pipes[2];

	CHECK(pipe(pipes) == 0);
	if (fork() == 0) {
		for (int i = 0; i < CHAIN; i++) {
			pid_t pid = getpid();

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (write(pipes[1], &pid, sizeof(pid)) != sizeof(pid))
				_exit(1);
			if (i == CHAIN - 1 || fork() != 0)
				break;
		}
		for (;;)
			pause();
	}
	for (int i = 0; i < CHAIN; i++)
		CHECK(read(pipes[0], &chain[i], sizeof(chain[i])) == sizeof(chain[i]));
	close(pipes[0]);
	close(pipes[1]);
}

/* The others end with their parents. */
static inline void end_chain(void)
{
	kill(chain[0], SIGKILL);
	CHECK(waitpid(chain[0], NULL, 0) == chain[0]);
}

#endif

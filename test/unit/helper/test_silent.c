/* SPDX-License-Identifier: MIT */
/* fs/helper/looker_silent.c: the table of processes that do not let themselves be looked at. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/helper/looker_silent.h"
#include "lib/clock.h"
#include "test/unit/test.h"

#define NOBODYS_PID (1 << 22) /* PID_MAX_LIMIT: no process has this pid */

int main(void)
{
	static struct gcr_silent silent;
	int64_t now_usec = GCR_USEC_PER_SEC;
	pid_t child;

	CHECK(!gcr_silent_pauses(&silent, getpid(), GCR_SILENT_ALL, now_usec));
	/* Only looks at the process's memory are paused, not other looks. */
	gcr_silent_note(&silent, getpid(), GCR_SILENT_MEMORY, 7, now_usec);
	CHECK(gcr_silent_pauses(&silent, getpid(), GCR_SILENT_MEMORY, now_usec));
	CHECK(!gcr_silent_pauses(&silent, getpid(), GCR_SILENT_ALL, now_usec));
	CHECK(!gcr_silent_pauses(&silent, getppid(), GCR_SILENT_MEMORY, now_usec));
	CHECK(gcr_silent_count(&silent, 7) == 1 && gcr_silent_count(&silent, 8) == 0);
	/* The pauses grow up to a maximum. */
	for (int64_t pause = GCR_SILENT_MIN_USEC, i = 0; i < 10; i++) {
		CHECK(gcr_silent_pauses(&silent, getpid(), GCR_SILENT_MEMORY,
					now_usec + pause - 1));
		CHECK(!gcr_silent_pauses(&silent, getpid(), GCR_SILENT_MEMORY, now_usec + pause));
		now_usec += pause;
		gcr_silent_note(&silent, getpid(), GCR_SILENT_MEMORY, 7, now_usec);
		pause = 2 * pause < GCR_SILENT_TOP_USEC ? 2 * pause : GCR_SILENT_TOP_USEC;
	}
	/* An answer of the other kind does not remove the memory entry. */
	gcr_silent_note(&silent, getpid(), GCR_SILENT_ALL, 7, now_usec);
	gcr_silent_forget(&silent, getpid(), GCR_SILENT_ALL);
	CHECK(gcr_silent_has(&silent, getpid()));
	gcr_silent_forget(&silent, getpid(), GCR_SILENT_MEMORY);
	CHECK(!gcr_silent_has(&silent, getpid()) && silent.count == 0);

	/* A process that ends frees its entry, also for the next process with the same pid. */
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	gcr_silent_note(&silent, child, GCR_SILENT_ALL, 7, now_usec);
	CHECK(gcr_silent_pauses(&silent, child, GCR_SILENT_MEMORY, now_usec));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK(!gcr_silent_pauses(&silent, child, GCR_SILENT_MEMORY, now_usec));

	/* A comparison is not the process's silence, and its entry does not stay. */
	gcr_silent_note(&silent, getpid(), GCR_SILENT_COMPARED, 7, now_usec);
	CHECK(!gcr_silent_has(&silent, getpid()) && gcr_silent_count(&silent, 7) == 1);
	CHECK(gcr_silent_pauses(&silent, getpid(), GCR_SILENT_COMPARED, now_usec));
	CHECK(!gcr_silent_pauses(&silent, getpid(), GCR_SILENT_ALL, now_usec));
	CHECK(!gcr_silent_pauses(&silent, getpid(), GCR_SILENT_COMPARED,
				 now_usec + 2 * GCR_SILENT_MIN_USEC));
	CHECK(!silent.count);
	/* In execve(2) a process is not compared either. */
	gcr_silent_note(&silent, getpid(), GCR_SILENT_ALL, 7, now_usec);
	CHECK(gcr_silent_pauses(&silent, getpid(), GCR_SILENT_COMPARED, now_usec));
	gcr_silent_forget(&silent, getpid(), GCR_SILENT_ALL);

	/* A full table replaces an entry by a new one. */
	for (int i = 0; i < GCR_SILENT_MAX + 10; i++)
		gcr_silent_note(&silent, NOBODYS_PID + i, GCR_SILENT_ALL, 7, now_usec + i);
	CHECK(silent.count == GCR_SILENT_MAX);
	CHECK(gcr_silent_has(&silent, NOBODYS_PID + GCR_SILENT_MAX + 9));
	gcr_silent_finish(&silent);
	CHECK(silent.count == 0);
	return 0;
}

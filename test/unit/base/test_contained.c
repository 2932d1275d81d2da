/* SPDX-License-Identifier: MIT */
/*
 * The check whether a process is in a container, made for each request: the result for a pid must
 * not be used for another process that gets the same pid, even if the pid is reused at once.
 */
#include <errno.h>
#include <linux/sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/credentials.h"
#include "test/unit/test.h"

#define ROUNDS 20

/*
 * Starts a child that sleeps until killed, with this pid in the outer namespace, or any pid (0).
 * Returns 0 if the pid is not available.
 */
static pid_t start(pid_t number, uint64_t flags)
{
	/* In its own pid namespace the child is process 1. */
	pid_t numbers[] = {1, number};
	bool is_inner = flags & CLONE_NEWPID;
	struct clone_args arguments = {
		.flags = flags,
		.exit_signal = SIGCHLD,
		.set_tid = number ? (uintptr_t)(is_inner ? numbers : numbers + 1) : 0,
		.set_tid_size = number ? 1 + is_inner : 0,
	};
	pid_t pid = (pid_t)syscall(SYS_clone3, &arguments, sizeof(arguments));

	if (!pid)
		for (;;)
			pause();
	return pid > 0 ? pid : 0;
}

static void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
}

/* Returns false if another process of this machine has taken the pid in between. */
static bool test_same_number(void)
{
	pid_t pid = start(0, 0);

	CHECK(pid);
	CHECK(!gcr_credentials_seem_contained(pid) && !gcr_credentials_seem_contained(pid));
	end(pid);
	CHECK(gcr_credentials_seem_contained(pid)); /* no such process exists */
	if (start(pid, CLONE_NEWPID) != pid)
		return false;
	CHECK(gcr_credentials_are_contained(pid));
	CHECK(gcr_credentials_seem_contained(pid));
	end(pid);
	if (start(pid, 0) != pid)
		return false;
	CHECK(!gcr_credentials_seem_contained(pid));
	end(pid);
	return true;
}

int main(void)
{
	pid_t inner;
	int done = 0;

	CHECK(gcr_credentials_seem_contained(0) && gcr_credentials_seem_contained(-1));
	CHECK(gcr_credentials_seem_contained(getpid()) == gcr_credentials_are_contained(getpid()));
	if (gcr_credentials_are_contained(getpid()))
		SKIP("it runs in a pid namespace below that of /proc");
	inner = start(0, CLONE_NEWPID);
	if (!inner)
		SKIP("no pid namespace can be made");
	end(inner);
	for (int i = 0; i < ROUNDS; i++)
		done += test_same_number();
	if (!done)
		SKIP("no process can be given its number");
	return 0;
}

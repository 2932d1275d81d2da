/* SPDX-License-Identifier: MIT */
/*
 * Who is in a container, where that is asked for each request: what is known of a number is not
 * taken for another process that gets the number, also if that happens at once.
 */
#include <errno.h>
#include <linux/sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/credentials.h"
#include "test.h"

#define ROUNDS 20

/* A child that waits for its end, with this number out here, or any (0); 0: that cannot be had. */
static pid_t start(pid_t number, uint64_t flags)
{
	/* In a namespace of its own it is the first. */
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

/* False: another process of this machine has taken the number meanwhile. */
static bool test_same_number(void)
{
	pid_t pid = start(0, 0);

	CHECK(pid);
	CHECK(!gcr_credentials_seem_contained(pid) && !gcr_credentials_seem_contained(pid));
	end(pid);
	CHECK(gcr_credentials_seem_contained(pid)); /* there is none */
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

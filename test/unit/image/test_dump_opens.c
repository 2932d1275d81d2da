/* SPDX-License-Identifier: MIT */
/* The scan of what a tree has open, if processes of the tree end meanwhile. */
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "test/unit/test.h"

static int open_pidfd(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	CHECK(pidfd >= 0);
	return pidfd;
}

/* A process that no dump takes: it has a network namespace of its own. */
static pid_t start_apart(void)
{
	int sockets[2];
	pid_t pid;
	char byte = 0;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(unshare(CLONE_NEWNET) == 0 && write(sockets[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(sockets[0], &byte, 1) == 1);
	close(sockets[0]);
	close(sockets[1]);
	return pid;
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* Is the process with this pid refused, if the tree's member is the process of this pidfd? */
static bool is_refused(struct gcr_daemon *daemon, pid_t pid, int pidfd)
{
	struct gcr_command command = {0};
	struct gcr_task task = {.command = &command};
	struct gcr_dump_member members[] = {
		{.proc.pid = getpid(), .pidfd = open_pidfd(getpid())},
		{.proc.pid = pid, .pidfd = pidfd},
	};
	struct gcr_dump dump = {
		.daemon = daemon,
		.task = &task,
		.members = members,
		.count = GCR_ARRAY_SIZE(members),
	};
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = NULL;
	struct gcr_error error = {0};
	bool found = false;

	CHECK(gcr_dump_look_at_opens(&dump, &opens, &error) == 0);
	for (size_t i = 0; i < opens->findings_count; i++)
		found = found || (opens->findings[i].pid == pid &&
				  opens->findings[i].verdict == GCR_OPEN_REFUSED);
	close(members[0].pidfd);
	return found;
}

/* A process that ends counts as long as it keeps its pid. Then another's files are not named. */
static void test_pid_of_another(struct gcr_daemon *daemon)
{
	pid_t ended = start_apart(), other = start_apart();
	int pidfd = open_pidfd(ended);

	CHECK(is_refused(daemon, ended, pidfd));
	end(ended);
	CHECK(!is_refused(daemon, other, pidfd));
	/* A member that had ended when the tree was listed. */
	CHECK(!is_refused(daemon, other, -1));
	close(pidfd);
	end(other);
}

int main(void)
{
	char root[] = "/", devices[] = "/dev";
	struct gcr_daemon daemon = {.options.mountpoint = root, .device_directory = devices};

	test_pid_of_another(&daemon);
	return 0;
}

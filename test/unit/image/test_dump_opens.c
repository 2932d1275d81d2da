/* SPDX-License-Identifier: MIT */
/* The scan of what a tree has open, if processes of the tree end meanwhile. */
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "fs/process/process_private.h"
#include "fs/verb/operation_data.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

/* Makes the process one that no dump takes. */
static void go_apart(const char *unused)
{
	CHECK(unshare(CLONE_NEWNET) == 0);
}

/* Is the process with this pid refused, if the tree's member is the process of this pidfd? */
static bool is_refused(struct gcr_daemon *daemon, pid_t pid, int pidfd)
{
	struct gcr_command command = {0};
	struct gcr_operation operation = {
		.job = {.lock = PTHREAD_MUTEX_INITIALIZER, .deadline_usec = INT64_MAX},
	};
	struct gcr_process process = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct gcr_task task = {
		.operation = &operation,
		.process = &process,
		.command = &command,
	};
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
	struct child ended = start_child(go_apart, NULL), other = start_child(go_apart, NULL);
	int pidfd = open_pidfd(ended.pid);

	CHECK(is_refused(daemon, ended.pid, pidfd));
	/* The other child has a copy of the descriptor that would end this one. */
	CHECK(kill(ended.pid, SIGKILL) == 0);
	end_child(ended);
	CHECK(!is_refused(daemon, other.pid, pidfd));
	/* A member that had ended when the tree was listed. */
	CHECK(!is_refused(daemon, other.pid, -1));
	close(pidfd);
	end_child(other);
}

int main(void)
{
	char root[] = "/", devices[] = "/dev";
	struct gcr_daemon daemon = {.options.mountpoint = root, .device_directory = devices};

	test_pid_of_another(&daemon);
	return 0;
}

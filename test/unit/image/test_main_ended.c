/* SPDX-License-Identifier: MIT */
/*
 * A process whose main thread alone has ended is not taken for an ended process: neither by its
 * dump, also if the daemon cannot look at the process, nor by a restore when the process may be one
 * that an earlier daemon restored.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "fs/image/restore_private.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

static void *go_on(void *data)
{
	for (;;)
		pause();
	return data;
}

static pid_t start(void)
{
	pid_t pid = fork_for_a_minute();
	pthread_t thread;

	if (pid)
		return pid;
	CHECK(!pthread_create(&thread, NULL, go_on, NULL));
	syscall(SYS_exit, 0); /* the main thread alone */
	_exit(1);
}

static int check_members(const struct gcr_dump *dump, struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	return gcr_dump_check_members(dump, error);
}

static void test_dump(struct gcr_dump_member *member)
{
	struct gcr_dump dump = {.members = member, .count = 1};
	struct rlimit before, few;
	struct gcr_error error;
	int result = 0;

	CHECK(check_members(&dump, &error) == -EOPNOTSUPP);
	CHECK(strstr(error.words, "main thread"));
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	/* The check fails in each place where it can, one after the other. */
	for (few.rlim_cur = 3; result != -EOPNOTSUPP; few.rlim_cur++) {
		CHECK(few.rlim_cur < 10);
		CHECK(!setrlimit(RLIMIT_NOFILE, &few));
		result = check_members(&dump, &error);
		CHECK(!setrlimit(RLIMIT_NOFILE, &before));
		CHECK(result == -EMFILE || result == -EOPNOTSUPP);
		CHECK(result != -EMFILE || strstr(error.words, "cannot be looked at"));
	}
	CHECK(few.rlim_cur > 5);
}

static void test_restore(const struct gcr_dump_member *member, const char *comm)
{
	struct gcr_tree_process process = {.pid = member->proc.pid};
	struct gcr_manifest_tree tree = {.processes = &process, .processes_count = 1};

	strcpy(process.comm, comm);
	CHECK(gcr_restore_find_made(&tree, member->proc.start_ticks) == process.pid);
	CHECK(!gcr_restore_find_made(&tree, member->proc.start_ticks + 1));
}

int main(void)
{
	struct gcr_dump_member member = {.pidfd = -1};
	struct gcr_proc_stat stat;

	member.proc.pid = start();
	member.pidfd = open_pidfd(member.proc.pid);
	do
		CHECK(!gcr_proc_stat(member.proc.pid, &stat));
	while (stat.state != 'Z');
	member.proc.start_ticks = stat.start_ticks;
	member.proc.state = 'S';
	test_dump(&member);
	test_restore(&member, stat.comm);

	CHECK(!kill(member.proc.pid, SIGKILL));
	CHECK(waitpid(member.proc.pid, NULL, 0) == member.proc.pid);
	CHECK(close(member.pidfd) == 0);
	return 0;
}

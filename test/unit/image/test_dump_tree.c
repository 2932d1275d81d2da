/* SPDX-License-Identifier: MIT */
/* The tree of a dump is listed again, and its root has ended: its pid may be another process's. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "test/unit/test.h"

static pid_t start(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static bool is_stopped(pid_t pid)
{
	struct gcr_proc_stat stat;

	CHECK(gcr_proc_stat(pid, &stat) == 0);
	return stat.state == 'T';
}

/* A tree that has been listed once. */
static struct gcr_dump list(pid_t root)
{
	struct gcr_dump dump = {.root = root};
	struct gcr_error error = {0};

	CHECK(gcr_dump_find_tree(&dump, &error) == 0 && dump.count == 1);
	CHECK(dump.members[0].pidfd >= 0 && !gcr_dump_is_gone(&dump.members[0]));
	return dump;
}

/* Makes it look as if the kernel had given the ended root's pid to @other. */
static void give_pid_to(struct gcr_dump *dump, pid_t other)
{
	dump->root = other;
	dump->members[0].proc.pid = other;
}

static void test_lives(void)
{
	pid_t root = start();
	struct gcr_dump dump = list(root);
	struct gcr_error error = {0};

	CHECK(gcr_dump_find_tree(&dump, &error) == 0 && dump.count == 1);
	CHECK(gcr_dump_end_tree(&dump, &error) == 0);
	CHECK(waitpid(root, NULL, 0) == root && gcr_dump_is_gone(&dump.members[0]));
	gcr_dump_forget_tree(&dump);
}

/* Not waited for: the pid is still its own, and there is nothing below it. */
static void test_zombie(void)
{
	pid_t root = start();
	struct gcr_dump dump = list(root);
	struct gcr_error error = {0};
	siginfo_t info;

	CHECK(kill(root, SIGKILL) == 0 && waitid(P_PID, (id_t)root, &info, WEXITED | WNOWAIT) == 0);
	CHECK(gcr_dump_find_tree(&dump, &error) == 0 && dump.count == 1);
	CHECK(!gcr_dump_is_gone(&dump.members[0]) && gcr_dump_root_has_ended(&dump));
	CHECK(waitpid(root, NULL, 0) == root);
	gcr_dump_forget_tree(&dump);
}

static void test_pid_of_another(void)
{
	pid_t root = start(), other = start();
	struct gcr_dump dump = list(root);
	struct gcr_error error = {0};

	end(root);
	give_pid_to(&dump, other);
	CHECK(gcr_dump_find_tree(&dump, &error) == -ESRCH);
	CHECK(dump.count == 1 && gcr_dump_is_gone(&dump.members[0]));
	CHECK(gcr_dump_await_stop(&dump, &error) == -ESRCH);
	/* No signal reaches it. */
	CHECK(kill(other, SIGSTOP) == 0 && waitpid(other, NULL, WUNTRACED) == other);
	gcr_dump_let_run(&dump);
	CHECK(is_stopped(other));
	CHECK(gcr_dump_end_tree(&dump, &error) == 0);
	CHECK(is_stopped(other));
	gcr_dump_forget_tree(&dump);
	end(other);
}

int main(void)
{
	test_lives();
	test_zombie();
	test_pid_of_another();
	return 0;
}

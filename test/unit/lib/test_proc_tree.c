/* SPDX-License-Identifier: MIT */
/*
 * lib/proc_tree.c: trees of real processes, with zombies, threads, orphans and changing processes.
 */
#include "lib/proc_tree.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/test.h"

#define NOBODY 0x7ffffff0

/* Messages between the processes of a test. */
static struct shared {
	pid_t pids[8];
	volatile int ready;
} * shared;

static void say_ready(int number, pid_t pid)
{
	shared->pids[number] = pid;
	__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
}

static void await_ready(int count)
{
	while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < count)
		usleep(1000);
}

static void reset(void)
{
	memset((void *)shared, 0, sizeof(*shared));
}

static void await_state(pid_t pid, char state)
{
	struct gcr_proc_stat stat = {};

	while (gcr_proc_stat(pid, &stat) == 0 && stat.state != state)
		usleep(1000);
	CHECK(stat.state == state);
}

/* A process with threads is a zombie before its last thread passes its children to a new parent. */
static void await_parent(pid_t pid, pid_t parent)
{
	struct gcr_proc_stat stat = {};

	while (gcr_proc_stat(pid, &stat) == 0 && stat.parent != parent)
		usleep(1000);
	CHECK(stat.parent == parent);
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static int count_children(pid_t child, void *data)
{
	CHECK(child > 0);
	++*(int *)data;
	return 0;
}

static int stop_at_first(pid_t child, void *data)
{
	(void)child;
	++*(int *)data;
	return 42;
}

static void *fork_here(void *data)
{
	(void)data;
	if (fork() == 0) {
		say_ready(2, getpid());
		pause();
	}
	pause();
	return NULL;
}

static const struct gcr_proc_member *find(const struct gcr_proc_member *members, size_t count,
					  pid_t pid)
{
	for (size_t i = 0; i < count; i++)
		if (members[i].pid == pid)
			return &members[i];
	return NULL;
}

/* root (0) -> 1 -> 3; root's second thread -> 2; root -> 4, a zombie */
static void make_tree(void)
{
	pthread_t thread;
	pid_t child;

	prctl(PR_SET_NAME, "tree root");
	if (fork() == 0) {
		if (fork() == 0) {
			say_ready(3, getpid());
			pause();
		}
		say_ready(1, getpid());
		pause();
	}
	child = fork();
	if (child == 0)
		_exit(0);
	say_ready(4, child);
	CHECK(pthread_create(&thread, NULL, fork_here, NULL) == 0);
	say_ready(0, getpid());
	pause();
}

static void test_tree(void)
{
	struct gcr_proc_member *members = NULL;
	struct gcr_error error = {};
	size_t count = 0;
	int children = 0;
	pid_t pid = fork();

	if (pid == 0)
		make_tree();
	await_ready(5);
	await_state(shared->pids[4], 'Z');
	CHECK(gcr_proc_tree(pid, &members, &count, &error) == 0);
	CHECK(count == 5);
	CHECK(members[0].pid == pid && members[0].parent == getpid());
	CHECK(strcmp(members[0].comm, "tree root") == 0);
	for (size_t i = 0; i < 5; i++) {
		const struct gcr_proc_member *member = find(members, count, shared->pids[i]);
		const struct gcr_proc_member *parent;
		struct gcr_proc_stat stat;

		CHECK(member);
		CHECK(gcr_proc_stat(member->pid, &stat) == 0);
		CHECK(stat.start_ticks == member->start_ticks && stat.parent == member->parent);
		CHECK((member->state == 'Z') == (i == 4));
		parent = find(members, count, member->parent);
		CHECK(i == 0 ? !parent : parent && parent < member);
	}
	CHECK(find(members, count, shared->pids[3])->parent == shared->pids[1]);
	CHECK(find(members, count, shared->pids[2])->parent == pid);
	free(members);

	CHECK(gcr_proc_each_child(pid, count_children, &children) == 0 && children == 3);
	children = 0;
	CHECK(gcr_proc_each_child(pid, stop_at_first, &children) == 42 && children == 1);
	children = 0;
	CHECK(gcr_proc_each_child(shared->pids[3], count_children, &children) == 0 && !children);
	for (int i = 3; i >= 1; i--)
		kill(shared->pids[i], SIGKILL);
	end(pid);
}

/* A child whose parent has ended belongs to its new parent, and no longer to the tree. */
static void test_orphan(void)
{
	struct gcr_proc_member *members = NULL;
	struct gcr_error error = {};
	size_t count = 0;
	pid_t pid;

	reset();
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	pid = fork();
	if (pid == 0) {
		pid_t middle = fork();

		if (middle == 0) {
			if (fork() == 0) {
				say_ready(1, getpid());
				pause();
			}
			pause();
		}
		say_ready(0, middle);
		pause();
	}
	await_ready(2);
	CHECK(gcr_proc_tree(pid, &members, &count, &error) == 0 && count == 3);
	CHECK(members[2].pid == shared->pids[1]);
	free(members);
	kill(shared->pids[0], SIGKILL);
	await_state(shared->pids[0], 'Z');
	await_parent(shared->pids[1], getpid());
	CHECK(gcr_proc_tree(pid, &members, &count, &error) == 0 && count == 2);
	CHECK(members[1].pid == shared->pids[0] && members[1].state == 'Z');
	free(members);
	CHECK(gcr_proc_tree(getpid(), &members, &count, &error) == 0);
	CHECK(find(members, count, shared->pids[1])->parent == getpid());
	free(members);
	end(pid);
	end(shared->pids[1]);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}

/* The result is the pid of a new process that starts and ends children all the time. */
static pid_t start_forking(void)
{
	pid_t pid = fork();

	while (pid == 0) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
	return pid;
}

/* Such a process is never reported with a child twice or without its parent. */
static void test_changes(void)
{
	pid_t pid = start_forking();
	int found = 0;

	for (int i = 0; i < 30; i++) {
		struct gcr_proc_member *members = NULL;
		struct gcr_error error = {};
		size_t count = 0;
		int r = gcr_proc_tree(pid, &members, &count, &error);

		CHECK(r == 0 || r == -EBUSY);
		if (r < 0) {
			CHECK(strstr(error.words, "change all the time"));
			continue;
		}
		found++;
		CHECK(members[0].pid == pid && count <= 2);
		CHECK(count < 2 || (members[1].parent == pid && members[1].pid != pid));
		free(members);
	}
	/* A stopped process is reported as it is. */
	kill(pid, SIGSTOP);
	await_state(pid, 'T');
	{
		struct gcr_proc_member *members = NULL;
		struct gcr_error error = {};
		size_t count = 0;

		CHECK(gcr_proc_tree(pid, &members, &count, &error) == 0 && count <= 2);
		free(members);
	}
	end(pid);
	fprintf(stderr, "found %d of 30 times while it changed\n", found);
}

/* vfork() does not copy the memory of this process, and so is far quicker. */
static bool make_zombie(void)
{
	pid_t child = vfork();

	if (child == 0)
		_exit(0);
	return child > 0;
}

static void test_too_many(void)
{
	struct gcr_proc_member *members = NULL;
	struct gcr_error error = {};
	size_t count = 0;
	bool all = true;
	pid_t pid;

	reset();
	pid = fork();
	if (pid == 0) {
		for (unsigned int i = 0; all && i < GCR_PROC_TREE_MAX; i++)
			all = make_zombie();
		say_ready(all, getpid());
		pause();
	}
	await_ready(1);
	if (shared->pids[1]) {
		CHECK(gcr_proc_tree(pid, &members, &count, &error) == -E2BIG);
		CHECK(strstr(error.words, "more than 4095"));
	} else {
		fprintf(stderr, "so many processes may not be made: not tested\n");
	}
	end(pid);
}

static void test_nobody(void)
{
	struct gcr_proc_member *members = NULL;
	struct gcr_error error = {};
	size_t count = 0;
	int children = 0;

	CHECK(gcr_proc_tree(NOBODY, &members, &count, &error) == -ESRCH);
	CHECK(strstr(error.words, "has ended") && !members);
	CHECK(gcr_proc_tree(0, &members, &count, &error) == -ESRCH);
	CHECK(gcr_proc_each_child(NOBODY, count_children, &children) == -ESRCH);
	CHECK(gcr_proc_each_child(-1, count_children, &children) == -ESRCH && !children);
}

#define THREADS 200

static void *wait_here(void *data)
{
	(void)data;
	pause();
	return NULL;
}

static void make_threads(void)
{
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, wait_here, NULL) == 0);
	}
	if (fork() == 0) {
		say_ready(1, getpid());
		pause();
	}
	say_ready(0, getpid());
	pause();
}

static int list_within(pid_t pid, unsigned int members_max, unsigned int walks_max,
		       int64_t until_usec, bool takes_changing, size_t *ret_count,
		       struct gcr_error *error)
{
	const struct gcr_proc_tree_limits limits = {
		.members_max = members_max,
		.walks_max = walks_max,
		.until_usec = until_usec,
		.takes_changing = takes_changing,
	};
	struct gcr_proc_member *members = NULL;
	int r = gcr_proc_tree_within(pid, &limits, &members, ret_count, error);

	CHECK((r == 0) == !!members);
	free(members);
	return r;
}

static void test_limits(void)
{
	struct gcr_error error = {};
	size_t count = 0;
	pid_t pid;

	reset();
	pid = fork();
	if (pid == 0)
		make_threads();
	await_ready(2);
	CHECK(list_within(pid, 2, 2, INT64_MAX, false, &count, &error) == 0 && count == 2);
	CHECK(list_within(pid, 1, 2, INT64_MAX, true, &count, &error) == -E2BIG);
	CHECK(strstr(error.words, "more than 0"));
	/* One walk alone is not known to be exact. */
	CHECK(list_within(pid, 2, 1, INT64_MAX, false, &count, &error) == -EBUSY);
	CHECK(list_within(pid, 2, 1, INT64_MAX, true, &count, &error) == 0 && count == 2);
	CHECK(list_within(pid, 2, 3, gcr_clock_usec(), true, &count, &error) == -ETIMEDOUT);
	CHECK(strstr(error.words, "in time"));
	/* The deadline ends the first walk among the threads. */
	CHECK(list_within(pid, 2, 3, gcr_clock_usec() + 100, true, &count, &error) == -ETIMEDOUT);
	kill(shared->pids[1], SIGKILL);
	end(pid);
}

/* A process that forks all the time has a list, though it is not exact. */
static void test_changing(void)
{
	struct gcr_error error = {};
	size_t count = 0;
	pid_t pid = start_forking();

	for (int i = 0; i < 30; i++) {
		CHECK(list_within(pid, 256, 3, INT64_MAX, true, &count, &error) == 0);
		CHECK(count >= 1 && count <= 2);
	}
	end(pid);
}

int main(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	test_tree();
	test_orphan();
	test_changes();
	test_limits();
	test_changing();
	test_too_many();
	test_nobody();
	return 0;
}

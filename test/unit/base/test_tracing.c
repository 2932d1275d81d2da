/* SPDX-License-Identifier: MIT */
/* Whether a user's process may have another one: root of a container, and processes of its user. */
#include "fs/base/tracing.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/proc_namespace.h"
#include "lib/procfs.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define SOMEBODY 65533
#define GROUP	 4002

/* A process of SOMEBODY's. */
struct process {
	gid_t gid;
	bool is_apart; /* root of a user namespace of our root's, as of a container */
	bool has_more; /* with another group to return to */
	bool may_trace;
	bool is_alone; /* in a user namespace that it has made itself, with all rights there */
};

static void become(const struct process *process)
{
	uid_t uid = process->is_apart ? 0 : SOMEBODY;
	gid_t gid = process->is_apart && process->gid == SOMEBODY ? 0 : process->gid;
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};

	CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0);
	CHECK(setgroups(0, NULL) == 0);
	CHECK(setresgid(gid, gid, process->has_more ? GROUP : gid) == 0);
	CHECK(setresuid(uid, uid, uid) == 0);
	if (process->may_trace)
		data[0].permitted = data[0].effective = 1u << CAP_SYS_PTRACE;
	CHECK(syscall(SYS_capset, &header, data) == 0);
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

/* Starts the process, in the namespace of @other if that is not 0. 0: there are no namespaces. */
static pid_t start(const struct process *process, pid_t other)
{
	int made[2], mapped[2], fd;
	char path[64], byte;
	pid_t pid;

	CHECK(pipe(made) == 0 && pipe(mapped) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(made[0]);
		snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)other);
		fd = other ? open(path, O_RDONLY | O_CLOEXEC) : -1;
		CHECK(!process->is_alone ||
		      (!setresgid(SOMEBODY, SOMEBODY, SOMEBODY) &&
		       !setresuid(SOMEBODY, SOMEBODY, SOMEBODY) && !prctl(PR_SET_DUMPABLE, 1)));
		if (other ? setns(fd, CLONE_NEWUSER) < 0
			  : process->is_apart && unshare(CLONE_NEWUSER) < 0)
			_exit(0);
		CHECK(write(made[1], "", 1) == 1 && read(mapped[0], &byte, 1) == 1);
		become(process);
		CHECK(write(made[1], "", 1) == 1);
		for (;;)
			pause();
	}
	close(made[1]);
	if (read(made[0], &byte, 1) != 1) {
		CHECK(waitpid(pid, NULL, 0) == pid);
		return 0;
	}
	if (process->is_apart && !other) {
		write_id_map(pid, "uid_map", SOMEBODY, GROUP);
		write_id_map(pid, "gid_map", SOMEBODY, GROUP);
	}
	CHECK(write(mapped[1], "", 1) == 1 && read(made[0], &byte, 1) == 1);
	close(made[0]);
	close(mapped[0]);
	close(mapped[1]);
	return pid;
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* Does the kernel tell user namespaces without a look? */
static bool tells_at_once(void)
{
	int fd = -1, result = gcr_proc_open_user_namespace_at_once(getpid(), &fd);

	if (fd >= 0)
		close(fd);
	return !result;
}

static int lowest_fd(void)
{
	int fd = dup(STDIN_FILENO);

	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

/* What is said to a process of SOMEBODY's about another one: quickly, and by looks. */
static void check_pair(pid_t asker, gid_t gid, pid_t pid, int quickly, int by_looks)
{
	struct gcr_error error = {0};
	struct gcr_tracer tracer;
	uid_t owner;
	gid_t unused;
	int at_once, free_fd;

	CHECK(gcr_proc_owner(pid, &owner, &unused) == 0 && owner == SOMEBODY);
	free_fd = lowest_fd();
	gcr_tracer_take(asker, SOMEBODY, gid, &tracer);
	CHECK(gcr_tracer_check(&tracer, pid, owner, &error) == by_looks);
	CHECK(gcr_tracer_check(&tracer, pid, 0, &error) == 0);
	CHECK(gcr_tracer_check_quickly(asker, SOMEBODY, gid, pid, owner, &error) == quickly);
	at_once = gcr_tracer_check_at_once(asker, SOMEBODY, gid, pid, owner, &error);
	CHECK(at_once == (tells_at_once() ? by_looks : -EAGAIN));
	CHECK(gcr_tracer_equals(&tracer, &tracer));
	gcr_tracer_finish(&tracer);
	CHECK(lowest_fd() == free_fd);
}

static void test_groups(void)
{
	pid_t plain = start(&(struct process){.gid = SOMEBODY}, 0);
	pid_t grouped = start(&(struct process){.gid = GROUP}, 0);
	struct gcr_tracer root;

	check_pair(plain, SOMEBODY, plain, 0, 0);
	check_pair(plain, SOMEBODY, grouped, -EPERM, -EPERM);
	check_pair(grouped, GROUP, grouped, 0, 0);
	check_pair(grouped, GROUP, plain, -EPERM, -EPERM);
	gcr_tracer_take(getpid(), 0, 0, &root);
	CHECK(gcr_tracer_check(&root, grouped, SOMEBODY, &(struct gcr_error){0}) == 0);
	gcr_tracer_finish(&root);
	end(plain);
	/* The process that asks has the capability to look into all. */
	plain = start(&(struct process){.gid = SOMEBODY, .may_trace = true}, 0);
	check_pair(plain, SOMEBODY, grouped, 0, 0);
	end(plain);
	end(grouped);
}

/* Two are alike if they have all in common. */
static void check_equals(pid_t one, gid_t gid, pid_t other, gid_t other_gid, bool are_equal)
{
	struct gcr_tracer left, right;

	gcr_tracer_take(one, SOMEBODY, gid, &left);
	gcr_tracer_take(other, SOMEBODY, other_gid, &right);
	CHECK(gcr_tracer_equals(&left, &right) == are_equal);
	gcr_tracer_finish(&right);
	gcr_tracer_finish(&left);
}

/*
 * Who goes into a namespace of his own has the same processes as before, with the same group, and
 * those in other namespaces of his.
 */
static void test_own_namespace(void)
{
	const struct process alone = {
		.gid = SOMEBODY, .is_apart = true, .may_trace = true, .is_alone = true};
	pid_t plain = start(&(struct process){.gid = SOMEBODY}, 0);
	pid_t grouped = start(&(struct process){.gid = GROUP}, 0);
	pid_t inner = start(&alone, 0), other = start(&alone, 0);
	pid_t roots = start(&(struct process){.gid = SOMEBODY, .is_apart = true}, 0);

	if (inner && other && roots) {
		check_pair(plain, SOMEBODY, inner, -EAGAIN, 0);
		check_pair(inner, SOMEBODY, plain, -EAGAIN, 0);
		check_pair(inner, SOMEBODY, grouped, -EAGAIN, -EPERM);
		check_pair(inner, SOMEBODY, other, -EAGAIN, 0);
		check_pair(inner, SOMEBODY, roots, -EAGAIN, -EPERM);
		check_pair(roots, SOMEBODY, inner, -EAGAIN, -EPERM);
		check_equals(inner, SOMEBODY, other, SOMEBODY, false);
		check_equals(inner, SOMEBODY, plain, SOMEBODY, false);
		end(roots);
		end(other);
		end(inner);
	}
	check_equals(plain, SOMEBODY, plain, SOMEBODY, true);
	check_equals(plain, SOMEBODY, grouped, GROUP, false);
	end(grouped);
	end(plain);
}

/* Root of a container, whose capabilities are fewer than root's mostly, has all of its processes.
 */
static void test_container(void)
{
	const struct process root = {.gid = SOMEBODY, .is_apart = true};
	pid_t host = start(&(struct process){.gid = SOMEBODY}, 0);
	pid_t inner = start(&root, 0);
	pid_t grouped, more, other;

	if (!inner) {
		end(host);
		return;
	}
	grouped = start(&(struct process){.gid = GROUP, .is_apart = true}, inner);
	more = start(&(struct process){.gid = SOMEBODY, .is_apart = true, .has_more = true}, inner);
	other = start(&root, 0);
	CHECK(grouped && more && other);
	check_pair(inner, SOMEBODY, inner, -EAGAIN, 0);
	check_pair(inner, SOMEBODY, grouped, -EAGAIN, 0);
	check_pair(inner, SOMEBODY, more, -EAGAIN, 0);
	check_pair(inner, SOMEBODY, host, -EAGAIN, -EPERM);
	check_pair(host, SOMEBODY, inner, -EAGAIN, -EPERM);
	check_pair(host, SOMEBODY, more, -EAGAIN, -EPERM);
	/* Another container with the same map is another one. */
	check_pair(other, SOMEBODY, inner, -EAGAIN, -EPERM);
	end(host);
	host = start(&(struct process){.gid = SOMEBODY, .may_trace = true}, 0);
	check_pair(host, SOMEBODY, inner, -EAGAIN, 0);
	end(host);
	end(other);
	end(more);
	end(grouped);
	end(inner);
}

int main(void)
{
	if (geteuid())
		SKIP("processes of several users are needed");
	test_groups();
	test_own_namespace();
	test_container();
	return 0;
}

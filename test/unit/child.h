/* SPDX-License-Identifier: MIT */
/*
 * Child processes that hold a descriptor, a mapping or some state while a test examines them, and
 * descriptors for processes.
 */
#ifndef GCR_TEST_CHILD_H
#define GCR_TEST_CHILD_H

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/test.h"

struct child {
	pid_t pid;
	int go; /* closing it ends the child */
};

/*
 * Runs prepare(argument) in a child and returns when prepare() is done; the child lives until `go`
 * is closed.
 */
static inline struct child start_child(void (*prepare)(const char *argument), const char *argument)
{
	struct child child;
	int ready[2];
	int go[2];
	char byte;

	CHECK(pipe2(ready, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0);
	child.pid = fork();
	CHECK(child.pid >= 0);
	if (child.pid == 0) {
		close(go[1]);
		close(ready[0]);
		prepare(argument);
		if (write(ready[1], "r", 1) != 1)
			_exit(1);
		(void)!read(go[0], &byte, 1);
		_exit(0);
	}
	close(ready[1]);
	close(go[0]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	child.go = go[1];
	return child;
}

/* Returns a descriptor for a process, which the caller closes; the process must exist. */
static inline int open_pidfd(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	CHECK(pidfd >= 0);
	return pidfd;
}

static inline void end_child(struct child child)
{
	close(child.go);
	CHECK(waitpid(child.pid, NULL, 0) == child.pid);
}

/* The child runs check() and exits with 0, or the test fails. */
static inline void check_in_child(void (*check)(void))
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		check();
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* The child gets 0 and ends after a minute, if a failing test leaves it; the caller gets its pid.
 */
static inline pid_t fork_for_a_minute(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid)
		alarm(60);
	return pid;
}

/* A process's id map (uid_map, gid_map) takes 0 to @root, and @other to itself. */
static inline void write_id_map(pid_t pid, const char *name, unsigned int root, unsigned int other)
{
	char path[64], text[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	snprintf(text, sizeof(text), "0 %u 1\n%u %u 1\n", root, other, other);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Whom the preload library takes for its own user at the other end of a socket; also in a user
 * namespace, where the kernel calls all users whom it does not know nobody.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/preload/base/other_end.h"
#include "test/unit/test.h"

enum { OURS = 4001, OTHER = 4002, OVERFLOW = 65534, SKIPPED = 77 };

/* The end of a socket pair that @uid has made. */
static int end_of(uid_t uid)
{
	int pair[2];

	CHECK(seteuid(uid) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	CHECK(seteuid(0) == 0);
	return pair[0];
}

static int wait_for(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* What a process of @uid says about an end. */
static void expect(int end, uid_t uid, int result)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		CHECK(setuid(uid) == 0);
		CHECK(gcr_other_end_trusted(end) == result);
		_exit(0);
	}
	CHECK(wait_for(pid) == 0);
}

static void test_users(void)
{
	expect(end_of(OURS), OURS, 0);
	expect(end_of(0), OURS, 0);
	expect(end_of(OTHER), OURS, -EPERM);
	expect(end_of(OURS), 0, -EPERM);
	/* Here all users are known, and this one is no other. */
	expect(end_of(OVERFLOW), OVERFLOW, 0);
	expect(end_of(OTHER), OVERFLOW, -EPERM);
	expect(-1, OURS, -EBADF);
}

/* A program of root's that acts as a user for a moment, or can act as root again, is not that
 * user's. */
static void test_other_ids(void)
{
	static const uid_t ids[][3] = {{0, OURS, 0}, {0, OURS, OURS}, {OURS, OURS, 0}};
	int end = end_of(OURS), of_root = end_of(0);

	for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			CHECK(setresuid(ids[i][0], ids[i][1], ids[i][2]) == 0);
			CHECK(gcr_other_end_trusted(end) == -EPERM);
			CHECK(gcr_other_end_trusted(of_root) == 0);
			_exit(0);
		}
		CHECK(wait_for(pid) == 0);
	}
	close(end);
	close(of_root);
}

static void write_map(pid_t pid, const char *name)
{
	char path[64], map[64];
	int fd, length;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	length = snprintf(map, sizeof(map), "0 0 1\n%d %d 1\n%d %d 1\n", OURS, OURS, OVERFLOW,
			  OVERFLOW);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, map, (size_t)length) == length);
	close(fd);
}

/* As expect(), in a user namespace that knows root, OURS and OVERFLOW. SKIPPED: there can be none.
 */
static int expect_inside(int end, uid_t uid, int result)
{
	int ready[2], go[2];
	char byte;
	pid_t pid;

	CHECK(pipe2(ready, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		if (unshare(CLONE_NEWUSER) < 0)
			_exit(SKIPPED);
		CHECK(write(ready[1], "r", 1) == 1);
		CHECK(read(go[0], &byte, 1) == 1);
		CHECK(setuid(uid) == 0);
		CHECK(gcr_other_end_trusted(end) == result);
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) == 1) {
		write_map(pid, "uid_map");
		CHECK(write(go[1], "g", 1) == 1);
	}
	close(ready[0]);
	close(go[0]);
	close(go[1]);
	return wait_for(pid);
}

static void test_namespace(void)
{
	int result = expect_inside(end_of(OURS), OURS, 0);

	if (result == SKIPPED)
		return;
	CHECK(result == 0);
	CHECK(expect_inside(end_of(0), OURS, 0) == 0);
	CHECK(expect_inside(end_of(OTHER), OURS, -EPERM) == 0);
	CHECK(expect_inside(end_of(OTHER), OVERFLOW, -EPERM) == 0);
	CHECK(expect_inside(end_of(0), OVERFLOW, 0) == 0);
}

int main(void)
{
	if (geteuid()) {
		fprintf(stderr, "skipped: several users are needed\n");
		return SKIPPED;
	}
	test_users();
	test_other_ids();
	test_namespace();
	return 0;
}

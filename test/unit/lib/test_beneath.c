/* SPDX-License-Identifier: MIT */
/*
 * lib/beneath.h with openat2(2) and without it, as under a filter of system calls that does not
 * know it: no path leads out of the directory, or to another file system.
 */
#include "lib/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/forbid.h"
#include "test/unit/test.h"

static char directory[] = "/tmp/gcr-beneath-XXXXXX";

static void expect(int in, const char *path, bool is_allowed)
{
	int fd = gcr_beneath_open_path(in, path, O_RDONLY);

	if ((fd >= 0) != is_allowed)
		fprintf(stderr, "%s: %s\n", path, fd < 0 ? strerror(-fd) : "opened");
	CHECK((fd >= 0) == is_allowed);
	if (fd >= 0)
		close(fd);
}

static void test_paths(void)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int top = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	CHECK(fd >= 0 && top >= 0);
	expect(fd, ".", true);
	expect(fd, "a", true);
	expect(fd, "a/b", true);
	expect(fd, "..", false);
	expect(fd, "a/../..", false);
	expect(fd, "../a", false);
	expect(fd, "/tmp", false);
	expect(fd, "", false);
	expect(fd, "link", false);
	expect(fd, "link/b", false);
	expect(fd, "a/none", false);
	expect(top, "proc", false);
	expect(top, "proc/self/status", false);
	CHECK(gcr_beneath_open(fd, "..", O_RDONLY) == -EINVAL);
	CHECK(gcr_beneath_open(fd, "link", O_RDONLY) < 0);
	close(fd);
	close(top);
}

int main(void)
{
	char path[128];
	pid_t pid;
	int status;

	CHECK(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/a", directory);
	CHECK(!mkdir(path, 0700));
	snprintf(path, sizeof(path), "%s/a/b", directory);
	CHECK(!mkdir(path, 0700));
	snprintf(path, sizeof(path), "%s/link", directory);
	CHECK(!symlink("a", path));
	test_paths();
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		forbid_call(SYS_openat2);
		CHECK(syscall(SYS_openat2, AT_FDCWD, ".", NULL, 0) < 0 && errno == ENOSYS);
		test_paths();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!unlink(path));
	snprintf(path, sizeof(path), "%s/a/b", directory);
	CHECK(!rmdir(path));
	snprintf(path, sizeof(path), "%s/a", directory);
	CHECK(!rmdir(path) && !rmdir(directory));
	return 0;
}

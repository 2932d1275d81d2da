/* SPDX-License-Identifier: MIT */
/* The check of a file's mode for a caller, against what the kernel says to a thread of the same
 * rights. */
#include "fs/base/access.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/test.h"

#define SOMEBODY 65533
#define OTHER	 4001
#define GROUP	 4002
#define FURTHER	 4003
#define NONE	 (-1)

static char path[] = "/tmp/gcr-access-XXXXXX";

/* What a caller is; it belongs to SOMEBODY, and to the group of that name and to FURTHER. */
struct caller {
	int capability;
	bool is_apart; /* in a user namespace that has ids for SOMEBODY and FURTHER only */
};

static void write_map(pid_t pid, const char *name)
{
	char file[64], text[64];
	int fd;

	snprintf(file, sizeof(file), "/proc/%d/%s", (int)pid, name);
	snprintf(text, sizeof(text), "%d %d 1\n%d %d 1\n", SOMEBODY, SOMEBODY, FURTHER, FURTHER);
	fd = open(file, O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void become(const struct caller *caller)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};

	CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0);
	CHECK(setgroups(1, (gid_t[]){FURTHER}) == 0);
	CHECK(setresgid(SOMEBODY, SOMEBODY, SOMEBODY) == 0);
	CHECK(setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0);
	if (caller->capability != NONE)
		data[0].permitted = data[0].effective = 1u << caller->capability;
	CHECK(syscall(SYS_capset, &header, data) == 0);
}

/* Starts a caller, which answers each byte of @ask, a mode of access(2), by the kernel's errno. */
static pid_t start(const struct caller *caller, int *ret_ask, int *ret_answer)
{
	int ask[2], answer[2];
	pid_t pid;
	char byte;

	CHECK(pipe(ask) == 0 && pipe(answer) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(ask[1]);
		if (caller->is_apart && unshare(CLONE_NEWUSER) < 0)
			_exit(0);
		CHECK(write(answer[1], "", 1) == 1 && read(ask[0], &byte, 1) == 1);
		become(caller);
		while (write(answer[1], "", 1) == 1 && read(ask[0], &byte, 1) == 1) {
			char result =
				(char)(faccessat(AT_FDCWD, path, byte, AT_EACCESS) ? errno : 0);

			CHECK(write(answer[1], &result, 1) == 1);
		}
		_exit(0);
	}
	close(ask[0]);
	close(answer[1]);
	if (read(answer[0], &byte, 1) != 1) {
		CHECK(waitpid(pid, NULL, 0) == pid);
		return 0;
	}
	if (caller->is_apart) {
		write_map(pid, "uid_map");
		write_map(pid, "gid_map");
	}
	CHECK(write(ask[1], "", 1) == 1 && read(answer[0], &byte, 1) == 1);
	*ret_ask = ask[1];
	*ret_answer = answer[0];
	return pid;
}

static void check_file(pid_t pid, int ask, int answer)
{
	const struct gcr_access caller = {.pid = pid, .uid = SOMEBODY, .gid = SOMEBODY};
	struct stat stat;
	char result, byte;

	CHECK(lstat(path, &stat) == 0);
	for (char wanted = 1; wanted <= 7; wanted++) {
		CHECK(write(ask, &wanted, 1) == 1 && read(answer, &result, 1) == 1);
		CHECK(read(answer, &byte, 1) == 1);
		CHECK(gcr_access_check(&caller, &stat, wanted) == -result);
	}
}

static void test_caller(const struct caller *caller)
{
	static const uid_t uids[] = {0, SOMEBODY, OTHER};
	static const gid_t gids[] = {0, SOMEBODY, FURTHER, GROUP};
	static const mode_t modes[] = {0000, 0400, 0600, 0100, 0040, 0060,
				       0010, 0004, 0006, 0001, 0640, 0077};
	int ask, answer;
	pid_t pid = start(caller, &ask, &answer);

	if (!pid)
		return;
	for (size_t i = 0; i < sizeof(uids) / sizeof(*uids); i++)
		for (size_t j = 0; j < sizeof(gids) / sizeof(*gids); j++)
			for (size_t k = 0; k < sizeof(modes) / sizeof(*modes); k++) {
				CHECK(chown(path, uids[i], gids[j]) == 0);
				CHECK(chmod(path, modes[k]) == 0);
				check_file(pid, ask, answer);
			}
	close(ask);
	close(answer);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

/* Of a caller in a pid namespace above ours only the ids are known: root's files alone are denied.
 */
static void test_unknown(void)
{
	const struct gcr_access caller = {.uid = SOMEBODY, .gid = SOMEBODY};
	struct stat stat = {.st_mode = S_IFREG | 0600};

	CHECK(gcr_access_check(&caller, &stat, R_OK) == -EACCES);
	stat.st_uid = OTHER;
	CHECK(gcr_access_check(&caller, &stat, R_OK) == 0);
	stat = (struct stat){.st_mode = S_IFREG | 0640, .st_gid = GROUP};
	CHECK(gcr_access_check(&caller, &stat, R_OK) == 0);
	CHECK(gcr_access_check(&caller, &stat, W_OK) == -EACCES);
	CHECK(gcr_access_check(&(struct gcr_access){0}, &stat, W_OK) == 0);
}

int main(void)
{
	int fd;

	test_unknown();
	if (geteuid())
		SKIP("files of several users are needed");
	fd = mkstemp(path);
	CHECK(fd >= 0 && close(fd) == 0);
	test_caller(&(struct caller){.capability = NONE});
	test_caller(&(struct caller){.capability = CAP_DAC_OVERRIDE});
	test_caller(&(struct caller){.capability = CAP_DAC_READ_SEARCH});
	test_caller(&(struct caller){.capability = CAP_DAC_OVERRIDE, .is_apart = true});
	CHECK(unlink(path) == 0);
	/* The same for a directory. */
	CHECK(mkdtemp(strcpy(path, "/tmp/gcr-access-XXXXXX")));
	test_caller(&(struct caller){.capability = NONE});
	test_caller(&(struct caller){.capability = CAP_DAC_READ_SEARCH});
	CHECK(rmdir(path) == 0);
	return 0;
}

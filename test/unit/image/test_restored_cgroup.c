/* SPDX-License-Identifier: MIT */
/*
 * fs/image/restored_cgroup.c with the kernel's cgroups, and lib/program.c: a program that is
 * started in a cgroup is there, with all processes that it starts. In mount namespaces: without
 * cgroup2, or with a read-only cgroup2.
 */
#include "fs/image/restored_cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_cgroup.h"
#include "lib/program.h"
#include "test/unit/child.h"
#include "test/unit/hold_opening.h"
#include "test/unit/test.h"

static char name[64];

static bool exists(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0;
}

/* Starts a shell that runs `cat` with @input as its stdin; it ends when the pipe is closed. */
static pid_t start_in(int procs_fd, const char *program, int input, int output, int *ret_result)
{
	char path[64], argument[] = "cat /proc/self/cgroup; cat", shell[] = "sh", option[] = "-c";
	char *arguments[] = {shell, option, argument, NULL};
	char *environment[] = {NULL};
	const int fds[] = {input, output, -1};
	int pidfd = -1;
	pid_t pid = 0;

	snprintf(path, sizeof(path), "%s", program);
	*ret_result = gcr_program_start(
		&(struct gcr_program){
			.path = path,
			.arguments = arguments,
			.environment = environment,
			.fds = fds,
			.fds_count = 3,
			.cgroup_procs_fd = procs_fd,
		},
		&pid, &pidfd);
	if (*ret_result == 0)
		close(pidfd);
	return pid;
}

/* The shell's child, which prints its cgroup, is in the cgroup in which the shell was started. */
static void check_started(int procs_fd, const char *directory)
{
	const char *cgroup = strstr(directory, "/gpucrfs/");
	int input[2], output[2], r;
	char text[4096] = "";
	size_t used = 0;
	ssize_t got;
	pid_t pid;

	CHECK(cgroup && pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0);
	pid = start_in(procs_fd, "/bin/sh", input[0], output[1], &r);
	CHECK(r == 0);
	close(input[0]);
	close(output[1]);
	while (!strstr(text, cgroup)) {
		got = read(output[0], text + used, sizeof(text) - 1 - used);
		CHECK(got > 0);
		used += (size_t)got;
		text[used] = '\0';
	}
	CHECK(gcr_restored_cgroup_remove(directory, 0) == -EBUSY);
	CHECK(exists(directory));
	close(input[1]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(output[0]);
}

static void test_life(void)
{
	struct gcr_error error = {};
	char *directory, *second, *third;
	int procs_fd, second_fd, third_fd, r;
	char other[sizeof(name) + 2];
	int input[2];
	pid_t pid;

	CHECK(gcr_restored_cgroup_make(name, &directory, NULL, &procs_fd, &error) == 0);
	CHECK(fcntl(procs_fd, F_GETFD) & FD_CLOEXEC);
	CHECK(exists(directory) && strstr(directory, name));
	check_started(procs_fd, directory);
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0 && !exists(directory));
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);

	/* The cgroup is removed: no program is started in it. */
	start_in(procs_fd, "/bin/sh", -1, -1, &r);
	CHECK(r == -ENODEV);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	close(procs_fd);
	free(directory);

	/*
	 * A cgroup of this name may be in use, whether it is empty or has processes: make takes
	 * another name.
	 */
	CHECK(gcr_restored_cgroup_make(name, &directory, NULL, &procs_fd, &error) == 0);
	CHECK(gcr_restored_cgroup_make(name, &second, NULL, &second_fd, &error) == 0);
	CHECK(strcmp(directory, second) != 0);
	CHECK(gcr_restored_cgroup_remove(second, 0) == 0);
	close(second_fd);
	free(second);
	CHECK(pipe2(input, O_CLOEXEC) == 0);
	pid = start_in(procs_fd, "/bin/sh", input[0], -1, &r);
	CHECK(r == 0);
	CHECK(gcr_restored_cgroup_make(name, &second, NULL, &second_fd, &error) == 0);
	CHECK(strcmp(directory, second) != 0);
	snprintf(other, sizeof(other), "%s.2", name);
	CHECK(gcr_restored_cgroup_make(other, &third, NULL, &third_fd, &error) == 0);
	CHECK(strcmp(second, third) != 0 && strstr(third, "/gpucr-"));
	CHECK(gcr_restored_cgroup_remove(third, 0) == 0);
	close(third_fd);
	free(third);
	CHECK(exists(second));
	CHECK(gcr_restored_cgroup_remove(second, 0) == 0);
	CHECK(!exists(second) && exists(directory));
	close(input[0]);
	close(input[1]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0 && !exists(directory));
	close(procs_fd);
	close(second_fd);
	free(directory);
	free(second);
}

/*
 * A cgroup left by a daemon that died at once is too young for the next daemon's sweep, and is
 * removed later.
 */
static void test_left_over(void)
{
	const struct timespec old[2] = {{.tv_sec = time(NULL) - 120}, {.tv_sec = time(NULL) - 120}};
	struct gcr_error error = {};
	char *left, *directory;
	char other[80];
	int procs_fd;

	CHECK(gcr_restored_cgroup_make(name, &left, NULL, &procs_fd, &error) == 0);
	close(procs_fd);
	gcr_restored_cgroup_sweep();
	CHECK(exists(left));
	CHECK(utimensat(AT_FDCWD, left, old, 0) == 0);
	snprintf(other, sizeof(other), "%s-other", name);
	CHECK(gcr_restored_cgroup_make(other, &directory, NULL, &procs_fd, &error) == 0);
	CHECK(!exists(left));
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);
	close(procs_fd);
	free(directory);
	free(left);
}

/* A cgroup that has got the path of one that was removed is not that one. */
static void test_path_of_another(void)
{
	struct gcr_error error = {};
	char *directory, *second;
	uint64_t inode, second_inode;
	int procs_fd, second_fd, status, r;
	int input[2];
	pid_t pid;

	CHECK(gcr_restored_cgroup_make(name, &directory, &inode, &procs_fd, &error) == 0);
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);
	CHECK(gcr_restored_cgroup_make(name, &second, &second_inode, &second_fd, &error) == 0);
	CHECK(strcmp(directory, second) == 0 && inode != second_inode);
	CHECK(pipe2(input, O_CLOEXEC) == 0);
	pid = start_in(second_fd, "/bin/sh", input[0], -1, &r);
	CHECK(r == 0);
	CHECK(!gcr_restored_cgroup_is_used(directory, inode));
	CHECK(gcr_restored_cgroup_kill(directory, inode, 0) == 0);
	CHECK(gcr_restored_cgroup_is_used(directory, second_inode));
	CHECK(waitpid(pid, &status, WNOHANG) == 0);
	CHECK(gcr_restored_cgroup_kill(directory, second_inode, 10 * GCR_USEC_PER_SEC) == 0);
	CHECK(gcr_restored_cgroup_remove(directory, inode) == 0 && exists(directory));
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);
	close(procs_fd);
	close(second_fd);
	close(input[0]);
	close(input[1]);
	free(directory);
	free(second);
}

/*
 * All processes in the cgroup end, also those that a process there has started; then the cgroup is
 * empty.
 */
static void test_kill(void)
{
	struct gcr_error error = {};
	int procs_fd, status, r;
	int input[2];
	char *directory;
	pid_t pid;

	CHECK(gcr_restored_cgroup_make(name, &directory, NULL, &procs_fd, &error) == 0);
	CHECK(!gcr_restored_cgroup_is_used(directory, 0));
	CHECK(gcr_restored_cgroup_kill(directory, 0, 0) == 0);
	CHECK(pipe2(input, O_CLOEXEC) == 0);
	pid = start_in(procs_fd, "/bin/sh", input[0], -1, &r);
	CHECK(r == 0);
	CHECK(gcr_restored_cgroup_is_used(directory, 0));
	CHECK(gcr_restored_cgroup_kill(directory, 0, 10 * GCR_USEC_PER_SEC) == 0);
	CHECK(!gcr_restored_cgroup_is_used(directory, 0));
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
	      WTERMSIG(status) == SIGKILL);
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);
	CHECK(!gcr_restored_cgroup_is_used(directory, 0));
	CHECK(gcr_restored_cgroup_kill(directory, 0, 0) == 0);
	close(procs_fd);
	close(input[0]);
	close(input[1]);
	free(directory);
}

static void write_file(const char *directory, const char *file, const char *text)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* Something like a cgroup of a kernel without cgroup.kill, in which @pid is. */
static void make_fake(char *directory, pid_t pid)
{
	char path[128], text[32];

	CHECK(mkdtemp(directory));
	write_file(directory, "cgroup.events", "populated 1\n");
	snprintf(text, sizeof(text), "%d\n", (int)pid);
	write_file(directory, "cgroup.procs", text);
	snprintf(path, sizeof(path), "%s/cgroup.kill", directory);
	CHECK(mkdir(path, 0700) == 0);
}

static void remove_fake(const char *directory)
{
	static const char *const files[] = {"cgroup.events", "cgroup.procs", "cgroup.kill"};
	char path[128];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, files[i]);
		CHECK(remove(path) == 0);
	}
	CHECK(rmdir(directory) == 0);
}

static void do_nothing(const char *argument)
{
}

/*
 * Without cgroup.kill. If @leaves, the process has ended after the cgroup's processes were listed,
 * and another one outside has its pid: that lives on.
 */
static void check_kill_each(bool leaves)
{
	char directory[] = "/tmp/gcr-restored-cgroup-XXXXXX", path[128];
	struct child child = start_child(do_nothing, NULL);
	int status, held_fd;
	pid_t killer;

	make_fake(directory, child.pid);
	snprintf(path, sizeof(path), "%s/cgroup.procs", directory);
	held_fd = hold_opening(path);
	if (held_fd < 0)
		fprintf(stderr, "no fanotify: it is not tried whether processes leave\n");
	killer = fork();
	CHECK(killer >= 0);
	if (killer == 0)
		_exit(gcr_restored_cgroup_kill(directory, 0, 0) != -ETIMEDOUT);
	if (held_fd >= 0) {
		allow_one_opening(held_fd);
		await_opening(held_fd);
		CHECK(!leaves || truncate(path, 0) == 0);
		allow_opening(held_fd);
	}
	CHECK(waitpid(killer, &status, 0) == killer && WIFEXITED(status) && !WEXITSTATUS(status));
	close(child.go);
	CHECK(waitpid(child.pid, &status, 0) == child.pid);
	if (held_fd >= 0 || !leaves)
		CHECK(WIFSIGNALED(status) == !leaves);
	remove_fake(directory);
}

/* The name of a place (the directory of a dumped process) may be any string. */
static void test_names(void)
{
	static const char *const names[] = {"a\nb c", "..", ".", "cgroup.procs", "\xff\xfe", ""};
	char longest[256];

	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	for (size_t i = 0; i <= GCR_ARRAY_SIZE(names); i++) {
		struct gcr_error error = {};
		char *directory;
		int procs_fd;

		CHECK(gcr_restored_cgroup_make(i < GCR_ARRAY_SIZE(names) ? names[i] : longest,
					       &directory, NULL, &procs_fd, &error) == 0);
		close(procs_fd);
		CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);
		free(directory);
	}
}

/*
 * Runs @prepare in a mount namespace of its own; making a cgroup there must fail with @expected and
 * a message with @words.
 */
static void check_refused(void (*prepare)(const char *point), int expected, const char *words)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		struct gcr_error error = {};
		char *directory, *point;
		int procs_fd;

		if (unshare(CLONE_NEWNS) < 0 ||
		    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
			_exit(77);
		while (gcr_proc_cgroup_mount(&point) == 0) {
			prepare(point);
			if (expected == -EROFS)
				break;
		}
		CHECK(gcr_restored_cgroup_make(name, &directory, NULL, &procs_fd, &error) ==
		      expected);
		CHECK(strstr(error.words, words));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		fprintf(stderr, "no mount namespaces: %s not tested\n", words);
	else
		CHECK(WEXITSTATUS(status) == 0);
}

static void without(const char *point)
{
	CHECK(umount2(point, MNT_DETACH) == 0);
}

static void read_only(const char *point)
{
	CHECK(mount(NULL, point, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
}

int main(void)
{
	struct gcr_error error = {};
	char *directory;
	int procs_fd;
	int r;

	snprintf(name, sizeof(name), "test-%d", (int)getpid());
	check_refused(without, -EOPNOTSUPP, "no cgroup2 is mounted");
	r = gcr_restored_cgroup_make(name, &directory, NULL, &procs_fd, &error);
	if (r < 0) {
		CHECK(error.words[0]);
		SKIP(error.words);
	}
	close(procs_fd);
	CHECK(gcr_restored_cgroup_remove(directory, 0) == 0);
	free(directory);
	check_refused(read_only, -EROFS, "Read-only");
	test_life();
	test_left_over();
	test_path_of_another();
	test_kill();
	check_kill_each(false);
	check_kill_each(true);
	test_names();
	return 0;
}

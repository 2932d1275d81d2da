/* SPDX-License-Identifier: MIT */
/* What the tests of fs/helper/helper.c and fs/helper/helpers.c share. */
#ifndef GCR_TEST_HELPER_H
#define GCR_TEST_HELPER_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/helper/helper.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/message.h"
#include "lib/procfs.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define PATIENCE_USEC (30 * GCR_USEC_PER_SEC) /* bound for expected events; never reached */
/* A wait for a worker, of a client that has none but this. */
#define WAIT(timeout, wake) \
	(&(struct gcr_worker_wait){.timeout_usec = (timeout), .wake_fd = (wake)})
#define FOREVER_USEC (3600 * GCR_USEC_PER_SEC)

/*
 * Ends the calling child when the test fails. A child that stays would keep stderr open, and a
 * reader of that pipe would never see its end.
 */
static void end_with_parent(void)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
}

/*
 * Forks a process that acts as the daemon; its orphans become this process's children. The result
 * is 0 there and its pid here, and @ret_end is that process's end of a pipe to here.
 */
static inline pid_t fork_daemon(int *ret_end)
{
	int pipes[2];
	pid_t daemon;

	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	daemon = fork();
	CHECK(daemon >= 0);
	if (daemon == 0)
		end_with_parent();
	close(pipes[daemon == 0 ? 0 : 1]);
	*ret_end = pipes[daemon == 0 ? 1 : 0];
	return daemon;
}

/* The process of fork_daemon() says which helper it has, and waits to be killed. */
_Noreturn static inline void say_helper(int to, struct gcr_helper *helper)
{
	pid_t pid = gcr_helper_pid(helper);

	CHECK(write(to, &pid, sizeof(pid)) == sizeof(pid));
	for (;;)
		pause();
}

/* Returns the pid of the helper of say_helper(). */
static inline pid_t hear_helper(int from)
{
	pid_t pid;

	CHECK(read(from, &pid, sizeof(pid)) == sizeof(pid));
	return pid;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
	return remove(path);
}

static void remove_directory(const char *path)
{
	CHECK(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

/* Creates a pool of the backend's helpers; `simulator` is the directory of its driver, or NULL. */
static struct gcr_helpers *make_pool(const struct gcr_backend *backend, const char *directory,
				     const char *simulator, int64_t idle_usec)
{
	struct gcr_helpers_config config = {
		.backend = backend,
		.helper_directory = directory,
		.simulator_directory = simulator,
		.idle_usec = idle_usec,
	};
	struct gcr_helpers *helpers;

	CHECK(gcr_helpers_create(&config, &helpers) == 0);
	return helpers;
}

static struct gcr_helper *take(struct gcr_helpers *helpers)
{
	struct gcr_helper *helper = NULL;
	struct gcr_error error;
	int r;

	r = gcr_helpers_take_control(helpers, PATIENCE_USEC, -1, &helper, &error);
	if (r < 0)
		fprintf(stderr, "take_control: %s\n", error.words);
	CHECK(r == 0);
	return helper;
}

/* Waits until the process behind the pidfd has ended. */
static void wait_end(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	CHECK(poll(&end, 1, (int)(PATIENCE_USEC / 1000)) == 1);
}

/* Returns the pid of the child with the name `comm`, 0 if there is none. */
static pid_t find_child(const char *comm)
{
	_cleanup_closedir_ DIR *dir = opendir("/proc");
	struct dirent *entry;

	CHECK(dir);
	while ((entry = readdir(dir))) {
		pid_t pid = (pid_t)atoi(entry->d_name);
		struct gcr_proc_stat status;

		if (pid > 0 && gcr_proc_stat(pid, &status) == 0 && status.parent == getpid() &&
		    strcmp(status.comm, comm) == 0 && status.state != 'Z')
			return pid;
	}
	return 0;
}

#endif

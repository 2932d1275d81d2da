/* SPDX-License-Identifier: MIT */
/*
 * fs/engine/driver_session.c: which process may be locked that does not let its program be found
 * out.
 */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/daemon.h"
#include "fs/engine/driver_session.h"
#include "lib/proc_source.h"
#include "test/unit/test.h"

static struct gcr_daemon served;
static struct gcr_process process = {.pidfd = -1, .daemon = &served};
static struct gcr_command command = {.verb = GCR_VERB_THAW};
static struct gcr_task task = {.process = &process, .command = &command};

static int read_of_silent(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	return -EBUSY;
}

static const struct gcr_proc_source silent = {.read = read_of_silent};

static void tell(int fd)
{
	CHECK(write(fd, "", 1) == 1);
}

static void wait_for(int fd)
{
	char byte;

	CHECK(read(fd, &byte, 1) == 1);
}

/* A process of another user's, which becomes root's in the way of a set-user-ID program. */
static pid_t start_child(int ready_fd, int go_fd)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child)
		return child;
	CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	tell(ready_fd);
	wait_for(go_fd);
	CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
	tell(ready_fd);
	for (;;)
		pause();
}

/* Whoever has written the verb, and whatever is done with the process. */
static void check_others(enum gcr_state from, uid_t writer)
{
	struct gcr_driver_session driver;
	struct gcr_error error = {0};
	int ready[2], go[2];

	CHECK(pipe(ready) == 0 && pipe(go) == 0);
	process.pid = start_child(ready[1], go[0]);
	wait_for(ready[0]);
	task.from = from;
	command.rights.uid = writer;
	gcr_driver_session_init(&driver, &task, "driver");
	CHECK(gcr_driver_may_lock(&driver, &error) == 0);
	gcr_proc_set_source(&silent);
	CHECK(gcr_driver_may_lock(&driver, &error) == 0);
	tell(go[1]);
	wait_for(ready[0]);
	CHECK(gcr_driver_may_lock(&driver, &error) == -EPERM);
	gcr_proc_set_source(NULL);
	kill(process.pid, SIGKILL);
	CHECK(waitpid(process.pid, NULL, 0) == process.pid);
	CHECK(gcr_driver_may_lock(&driver, &error) == -ESRCH);
	for (int i = 0; i < 2; i++) {
		close(ready[i]);
		close(go[i]);
	}
}

/* A failure that passes is no other owner: the verb tries again. */
static void check_without_descriptors(void)
{
	struct gcr_driver_session driver;
	struct gcr_error error = {0};
	struct rlimit limit, none;
	int ready[2], go[2];

	CHECK(pipe(ready) == 0 && pipe(go) == 0);
	process.pid = start_child(ready[1], go[0]);
	wait_for(ready[0]);
	task.from = GCR_STATE_FROZEN;
	gcr_driver_session_init(&driver, &task, "driver");
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none = limit;
	none.rlim_cur = 0;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(gcr_driver_may_lock(&driver, &error) == -EIO);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(gcr_driver_may_lock(&driver, &error) == 0);
	kill(process.pid, SIGKILL);
	CHECK(waitpid(process.pid, NULL, 0) == process.pid);
}

int main(void)
{
	if (geteuid())
		return 77; /* skipped: two users are needed */
	pthread_mutex_init(&process.lock, NULL);
	check_others(GCR_STATE_FROZEN, 65534);
	check_others(GCR_STATE_FROZEN, 0);
	check_others(GCR_STATE_RUNNING, 65534);
	check_others(GCR_STATE_RUNNING, 0);
	check_without_descriptors();
	return 0;
}

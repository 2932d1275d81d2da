/* SPDX-License-Identifier: MIT */
/*
 * A CRIU that a launcher has started and that is to be killed. Its launcher can wait for it at any
 * moment, and then its pid can be another process's, whose children are not CRIU's.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/criu_private.h"
#include "lib/clock.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

static void do_nothing(const char *argument)
{
}

static void start_another(const char *argument)
{
	struct child child = start_child(do_nothing, NULL);
	FILE *file = fopen(argument, "we");

	CHECK(file && fprintf(file, "%d", (int)child.pid) > 0 && !fclose(file));
}

/* A restore by a launcher that has not told of its end. *ret_theirs: the launcher's connection. */
static struct gcr_criu_job *make_job(pid_t pid, int pidfd, int *ret_theirs)
{
	struct gcr_criu_job *job = gcr_criu_new_job();
	int ends[2];

	CHECK(job && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	job->action = GCR_CRIU_RESTORE;
	job->is_launched = true;
	job->pid = pid;
	job->pidfd = pidfd;
	job->connection = ends[0];
	*ret_theirs = ends[1];
	return job;
}

static bool is_alive(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	return poll(&end, 1, 1000) == 0;
}

static void test_pid_of_another(void)
{
	struct child ended = start_child(do_nothing, NULL), other = start_child(do_nothing, NULL);
	int theirs, other_pidfd = open_pidfd(other.pid);
	/* This process has the pid that CRIU had. */
	struct gcr_criu_job *job = make_job(getpid(), open_pidfd(ended.pid), &theirs);
	int64_t since_usec = gcr_clock_usec();

	CHECK(kill(ended.pid, SIGKILL) == 0);
	end_child(ended);
	gcr_criu_kill(job);
	CHECK(gcr_clock_usec() - since_usec < GCR_USEC_PER_SEC / 2);
	CHECK(is_alive(other_pidfd));
	CHECK(kill(other.pid, SIGKILL) == 0);
	end_child(other);
	close(other_pidfd);
	close(theirs);
	gcr_criu_destroy(job);
}

static void test_children(void)
{
	char path[] = "/tmp/gcr-criu-kill-XXXXXX";
	int theirs, child_pidfd, fd = mkstemp(path), number;
	struct gcr_criu_job *job;
	struct child criu;
	FILE *file;

	CHECK(fd >= 0);
	close(fd);
	criu = start_child(start_another, path);
	file = fopen(path, "re");
	CHECK(file && fscanf(file, "%d", &number) == 1 && !fclose(file) && !unlink(path));
	child_pidfd = open_pidfd(number);
	job = make_job(criu.pid, open_pidfd(criu.pid), &theirs);
	gcr_criu_kill(job);
	CHECK(!is_alive(child_pidfd) && !is_alive(job->pidfd));
	CHECK(waitpid(criu.pid, NULL, 0) == criu.pid);
	close(criu.go);
	close(child_pidfd);
	close(theirs);
	gcr_criu_destroy(job);
}

int main(void)
{
	test_pid_of_another();
	test_children();
	return 0;
}

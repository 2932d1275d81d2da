/* SPDX-License-Identifier: MIT */
/*
 * The end of a run of CRIU: stopping CRIU, finding the process that it has restored, or explaining
 * its failure.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/criu_private.h"
#include "criu-glue/launch.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/full_io.h"
#include "lib/proc_file.h"
#include "lib/proc_tree.h"
#include "lib/procfs.h"

#define STOP_TIMEOUT_USEC GCR_USEC_PER_SEC /* a process that does not stop hangs in the kernel */
#define STOP_POLL_USEC	  1000
#define END_TIMEOUT_USEC  (10 * GCR_USEC_PER_SEC)
#define NESTED_MAX	  64 /* levels of processes below CRIU that are searched */
#define INNER_LEVELS	  4  /* below init: scripts that run CRIU, CRIU, and the root */

/*
 * Waits until the process has stopped. SIGSTOP takes effect with a delay; until then the process
 * could still start others.
 */
static void await_stop(pid_t pid, int pidfd)
{
	int64_t until_usec = gcr_clock_usec() + STOP_TIMEOUT_USEC;
	struct gcr_proc_stat stat;

	while (!gcr_pidfd_is_gone(pidfd) && gcr_proc_stat(pid, &stat) == 0 &&
	       !strchr("TtZX", stat.state) && gcr_clock_usec() < until_usec)
		usleep(STOP_POLL_USEC);
}

struct killing {
	pid_t parent;
	int parent_pidfd;
	int levels;
};

static int kill_child(pid_t child, void *data);

/* Kills all descendants of @parent, which has been sent SIGSTOP, but not @parent itself. */
static void kill_below(pid_t parent, int parent_pidfd, int levels)
{
	struct killing killing = {parent, parent_pidfd, levels};

	await_stop(parent, parent_pidfd);
	gcr_proc_each_child(parent, kill_child, &killing);
}

static int kill_child(pid_t child, void *data)
{
	const struct killing *killing = data;
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	struct gcr_proc_stat stat;

	/* the pidfd is that of the child: it had not ended when it was listed */
	if (pidfd < 0 || gcr_proc_stat(child, &stat) < 0 || stat.parent != killing->parent)
		return 0;
	/* After that: if the parent is there, its pid was its own, and the child is its child. */
	if (gcr_pidfd_is_gone(killing->parent_pidfd))
		return 1;
	gcr_criu_send_signal(pidfd, SIGSTOP);
	if (killing->levels > 0)
		kill_below(child, pidfd, killing->levels - 1);
	gcr_criu_send_signal(pidfd, SIGKILL);
	return 0;
}

void gcr_criu_kill(struct gcr_criu_job *job)
{
	if (gcr_criu_reap(job))
		return;
	job->stopped_by_us = true;
	if (job->action == GCR_CRIU_RESTORE) {
		gcr_criu_send_signal(job->pidfd, SIGSTOP);
		kill_below(job->pid, job->pidfd, NESTED_MAX);
	}
	gcr_criu_send_signal(job->pidfd, SIGKILL);
}

void gcr_criu_cancel(struct gcr_criu_job *job)
{
	const struct rlimit none = {0, 0};

	if (job->action == GCR_CRIU_RESTORE) {
		gcr_criu_kill(job);
		return;
	}
	if (gcr_criu_reap(job))
		return;
	job->stopped_by_us = true;
	gcr_criu_answer(job, false);
	if (job->is_launched && job->connection >= 0)
		gcr_launch_stop_writes(job->connection);
	/* Our child, which keeps its pid until gcr_criu_reap(). */
	if (!job->is_launched)
		prlimit(job->pid, RLIMIT_FSIZE, &none, NULL);
}

int gcr_criu_stop(struct gcr_criu_job *job, int64_t grace_usec)
{
	gcr_criu_cancel(job);
	if (gcr_criu_wait(job, grace_usec, -1) == 0)
		return 0;
	gcr_criu_kill(job);
	return gcr_criu_wait(job, job->action == GCR_CRIU_RESTORE ? END_TIMEOUT_USEC : -1, -1);
}

pid_t gcr_criu_pid(const struct gcr_criu_job *job)
{
	return job->pid;
}

/* A job passed to gcr_criu_leave(), and its callback. */
struct left {
	struct gcr_criu_job *job;
	void (*ended)(void *data);
	void *data;
};

static void *await_left(void *data)
{
	struct left *left = data;

	gcr_criu_wait(left->job, -1, -1);
	left->ended(left->data);
	gcr_criu_destroy(left->job);
	free(left);
	return NULL;
}

void gcr_criu_leave(struct gcr_criu_job *job, void (*ended)(void *data), void *data)
{
	struct left *left = malloc(sizeof(*left));
	sigset_t all, old;
	pthread_t thread;

	if (!left)
		return;
	*left = (struct left){job, ended, data};
	/* Other threads handle signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, await_left, left) == 0)
		pthread_detach(thread);
	else
		free(left);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static int read_log(const struct gcr_criu_job *job, char **ret_text, size_t *ret_bytes)
{
	_cleanup_close_ int fd = gcr_beneath_open_file(job->work_fd, job->log_name, NULL);
	_cleanup_free_ char *text = NULL;
	struct stat status;
	ssize_t got;

	if (fd < 0 || fstat(fd, &status) < 0)
		return -EIO;
	if (status.st_size > GCR_CRIU_LOG_BYTES_MAX) {
		lseek(fd, status.st_size - GCR_CRIU_LOG_BYTES_MAX, SEEK_SET);
		status.st_size = GCR_CRIU_LOG_BYTES_MAX;
	}
	text = malloc((size_t)status.st_size + 1);
	if (!text)
		return -ENOMEM;
	got = gcr_read_all(fd, text, (size_t)status.st_size);
	*ret_text = TAKE_PTR(text);
	*ret_bytes = got > 0 ? (size_t)got : 0;
	return 0;
}

/* Finds the message of a run that failed by itself, in CRIU's log or output. Returns -errno. */
static int explain(struct gcr_criu_job *job, struct gcr_error *error)
{
	_cleanup_free_ char *output = NULL;
	_cleanup_free_ char *log = NULL;
	size_t bytes;
	int r;

	if (read_log(job, &log, &bytes) == 0) {
		r = gcr_criu_log_error(log, bytes, error);
		if (r != -ENOENT)
			return r;
	}
	/* Failures before the log exists, or in CRIU's loader. */
	output = malloc(GCR_CRIU_OUTPUT_BYTES + 1);
	if (output) {
		gcr_criu_read_output(job->output_fd, output);
		r = gcr_criu_log_error(output, strlen(output), error);
		if (r != -ENOENT)
			return r;
		/* gcr_criu_log_error() has replaced newlines by NULs */
		if (*output) {
			output[strcspn(output, "\n")] = '\0';
			return gcr_error_set(error, EIO, "criu: %s", output);
		}
	}
	if (job->wait_status != -1 && WIFSIGNALED(job->wait_status))
		return gcr_error_set(error, EIO, "criu was killed by signal %d",
				     WTERMSIG(job->wait_status));
	if (job->wait_status != -1 && WIFEXITED(job->wait_status))
		return gcr_error_set(error, EIO, "criu failed with exit status %d and said nothing",
				     WEXITSTATUS(job->wait_status));
	return gcr_error_set(error, EIO, "criu ended, nobody knows how");
}

static int read_pid(const struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	void *bytes;
	size_t size;
	uint64_t pid;
	int r;

	r = gcr_beneath_read(job->work_fd, GCR_CRIU_PID_FILE, 32, &bytes, &size, error);
	if (r < 0) {
		gcr_error_prefix(error, "criu has not told the pid");
		return r;
	}
	text = strndup(bytes, size);
	free(bytes);
	if (!text)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	if (gcr_parse_u64(text, &pid) < 0 || pid == 0 || pid > INT32_MAX)
		return gcr_error_set(error, EIO, "criu has not told the pid");
	*ret_pid = (pid_t)pid;
	return 0;
}

struct inner {
	pid_t pid;	    /* in the new namespace */
	unsigned int level; /* index of that namespace in ns_pids, plus 1 */
	int below;	    /* levels of processes that are searched below a child */
	pid_t found;	    /* the pid in our namespace */
};

static int is_inner(pid_t child, void *data)
{
	struct inner *inner = data;
	struct gcr_proc_status status;

	if (gcr_proc_status(child, &status) < 0 || status.ns_pids_count != inner->level)
		return 0;
	if (status.ns_pids[inner->level - 1] == inner->pid) {
		inner->found = child;
	} else if (inner->below > 0) {
		inner->below--;
		gcr_proc_each_child(child, is_inner, inner);
		inner->below++;
	}
	return inner->found != 0;
}

/*
 * Gets the pid of the namespace's init. Every failure from here on needs that pid: killing init
 * ends all restored processes.
 */
static int read_init(struct gcr_criu_job *job, struct gcr_error *error)
{
	int32_t init;

	if (job->init)
		return 0;
	if (read(job->report_fd, &init, sizeof(init)) != sizeof(init))
		return gcr_error_set(error, EIO, GCR_PIDNS_PROGRAM " has not told its pid");
	job->init = init;
	return 0;
}

/*
 * Gets the restored root's pid in our namespace: the root is a child of init or, until CRIU has
 * ended, of CRIU.
 */
static int find_outer_pid(struct gcr_criu_job *job, pid_t *pid, struct gcr_error *error)
{
	struct inner inner = {.pid = *pid, .below = INNER_LEVELS - 1};
	struct gcr_proc_status status;

	if (gcr_proc_status(job->init, &status) == 0) {
		inner.level = status.ns_pids_count;
		gcr_proc_each_child(job->init, is_inner, &inner);
	}
	if (!inner.found)
		return gcr_error_set(error, ESRCH,
				     "the restored process (%d in its pid namespace) has ended",
				     (int)*pid);
	*pid = inner.found;
	return 0;
}

static int find_restored(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	pid_t pid = 0;
	int r = 0;

	if (!ret_pid && job->report_fd < 0)
		return 0;
	if (job->report_fd >= 0)
		r = read_init(job, error);
	if (r == 0)
		r = read_pid(job, &pid, error);
	if (r == 0 && job->report_fd >= 0)
		r = find_outer_pid(job, &pid, error);
	if (r == 0 && ret_pid)
		*ret_pid = pid;
	return r;
}

int gcr_criu_made(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	return find_restored(job, ret_pid, error);
}

pid_t gcr_criu_namespace_init(const struct gcr_criu_job *job)
{
	return job->init;
}

int gcr_criu_finish(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	int r = gcr_criu_wait(job, -1, -1);

	if (r < 0)
		return gcr_error_set(error, -r, "criu cannot be waited for: %s", strerror(-r));
	gcr_criu_complete_log(job);
	if (job->wait_status != -1 && WIFEXITED(job->wait_status) &&
	    WEXITSTATUS(job->wait_status) == 0) {
		/* First, so that the caller knows what to end. */
		if (job->action == GCR_CRIU_RESTORE)
			r = find_restored(job, ret_pid, error);
		return gcr_criu_is_guarded(job) ? r : gcr_criu_check_guard(job, error);
	}
	if (job->stopped_by_us)
		return gcr_error_set(error, ECANCELED, "criu was stopped");
	r = explain(job, error);
	/* One that was killed may have ended before. */
	if (!gcr_criu_is_guarded(job) && job->wait_status != -1 && WIFEXITED(job->wait_status))
		gcr_error_prefix(error, GCR_CRIU_UNGUARDED, "criu", job->guard);
	return r;
}

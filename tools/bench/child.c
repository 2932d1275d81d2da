/* SPDX-License-Identifier: MIT */
/* Starts the bench's programs, exchanges lines with them, and ends them. Single-threaded. */
#include "tools/bench/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"

#define END_USEC  (60 * GCR_USEC_PER_SEC)
#define POLL_USEC (GCR_USEC_PER_SEC / 10)

volatile int bench_interrupted;

int bench_pause(int64_t usec)
{
	int64_t until_usec = gcr_clock_usec() + usec;

	while (!bench_interrupted) {
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (left_usec <= 0)
			return 0;
		poll(NULL, 0, (int)((left_usec + 999) / 1000));
	}
	return -EINTR;
}

int bench_wait(int fd, int64_t until_usec)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	for (;;) {
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (bench_interrupted)
			return -EINTR;
		/* A signal may arrive just before the poll: limit the wait. */
		if (left_usec > POLL_USEC)
			left_usec = POLL_USEC;
		if (poll(&poll_fd, 1, left_usec > 0 ? (int)((left_usec + 999) / 1000) : 0) > 0)
			return 0;
		if (left_usec <= 0)
			return -ETIMEDOUT;
	}
}

static void set_environment(const char *const *environment)
{
	for (; environment && *environment; environment++) {
		const char *equals = strchr(*environment, '=');
		_cleanup_free_ char *name = NULL;

		if (!equals) {
			unsetenv(*environment);
			continue;
		}
		name = strndup(*environment, (size_t)(equals - *environment));
		if (name)
			setenv(name, equals + 1, 1);
	}
}

static void __attribute__((noreturn))
become(char *const *arguments, const char *const *environment, int input, int output, int error)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGALRM};
	sigset_t none;

	/*
	 * A separate process group: ^C reaches only the bench, and a command's children can be
	 * killed with it.
	 */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(signals); i++)
		signal(signals[i], SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	set_environment(environment);
	if (dup2(input, 0) == 0 && dup2(output, 1) == 1 && dup2(error, 2) == 2)
		execvp(arguments[0], arguments);
	dprintf(2, "%s: %s\n", arguments[0], strerror(errno));
	_exit(127);
}

static int open_log(const struct bench_paths *paths, const char *name)
{
	_cleanup_free_ char *path = NULL;
	int fd;

	if (asprintf(&path, "%s/%s", paths->work, name) < 0)
		return -ENOMEM;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

int bench_child_start(const struct bench_paths *paths, const char *name, char *const *arguments,
		      const char *const *environment, struct bench_child *ret_child,
		      struct gcr_error *error)
{
	_cleanup_close_ int input = -1;
	_cleanup_close_ int input_end = -1;
	_cleanup_close_ int output = -1;
	_cleanup_close_ int output_end = -1;
	_cleanup_close_ int log = -1;
	sigset_t all, before;
	int ends[2];
	int pidfd;
	pid_t pid;

	memset(ret_child, 0, sizeof(*ret_child));
	snprintf(ret_child->log, sizeof(ret_child->log), "%s.err", name);
	log = open_log(paths, ret_child->log);
	if (log < 0)
		return gcr_error_set(error, -log, "%s/%s: %s", paths->work, ret_child->log,
				     strerror(-log));
	if (pipe2(ends, O_CLOEXEC) < 0)
		return gcr_error_set(error, errno, "no pipe: %s", strerror(errno));
	input_end = ends[0];
	input = ends[1];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return gcr_error_set(error, errno, "no pipe: %s", strerror(errno));
	output = ends[0];
	output_end = ends[1];

	/* Block signals: before exec, the bench's handler must not run in the child. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	pid = fork();
	if (!pid)
		become(arguments, environment, input_end, output_end, log);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return gcr_error_set(error, errno, "no process: %s", strerror(errno));
	setpgid(pid, pid);
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		int number = errno;

		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return gcr_error_set(error, number, "pidfd_open: %s", strerror(number));
	}
	ret_child->pid = pid;
	ret_child->pidfd = pidfd;
	ret_child->input = TAKE_FD(input);
	ret_child->output = TAKE_FD(output);
	return 0;
}

void bench_child_last_words(const struct bench_paths *paths, const struct bench_child *child,
			    char *ret_words, size_t room)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_fclose_ FILE *file = NULL;
	char line[512];

	ret_words[0] = '\0';
	if (asprintf(&path, "%s/%s", paths->work, child->log) < 0)
		return;
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (*line)
			snprintf(ret_words, room, "%s", line);
	}
}

/* Takes a line from the buffer, if complete. The rest of an overlong line is dropped. */
static bool take_line(struct bench_child *child, char *ret_line)
{
	char *end = memchr(child->buffer, '\n', child->held);
	bool discarding = child->discarding;
	size_t bytes;

	if (!end && child->held < sizeof(child->buffer))
		return false;
	bytes = end ? (size_t)(end - child->buffer) + 1 : child->held;
	memcpy(ret_line, child->buffer, bytes - 1);
	ret_line[bytes - 1] = '\0';
	child->held -= bytes;
	memmove(child->buffer, child->buffer + bytes, child->held);
	child->discarding = !end;
	return discarding ? take_line(child, ret_line) : true;
}

int bench_child_line(const struct bench_paths *paths, struct bench_child *child,
		     int64_t timeout_usec, char ret_line[BENCH_LINE_MAX], struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;

	while (!take_line(child, ret_line)) {
		int result = bench_wait(child->output, until_usec);
		char words[256];
		ssize_t got;

		if (result == -EINTR)
			return gcr_error_set(error, EINTR, "interrupted");
		if (result < 0)
			return gcr_error_set(error, ETIMEDOUT, "no answer after %lld s",
					     (long long)(timeout_usec / GCR_USEC_PER_SEC));
		got = read(child->output, child->buffer + child->held,
			   sizeof(child->buffer) - child->held);
		if (got > 0) {
			child->held += (size_t)got;
			continue;
		}
		bench_child_last_words(paths, child, words, sizeof(words));
		return gcr_error_set(error, EPIPE, "it has ended%s%s", *words ? ": " : "", words);
	}
	return 0;
}

int bench_child_answer(const struct bench_paths *paths, struct bench_child *child,
		       int64_t timeout_usec, char ret_line[BENCH_LINE_MAX], struct gcr_error *error)
{
	int result = bench_child_line(paths, child, timeout_usec, ret_line, error);

	if (result < 0)
		return result;
	if (!strncmp(ret_line, "ok", 2))
		return 0;
	if (!strncmp(ret_line, "error content ", 14))
		return gcr_error_set(error, EBADMSG, "%s", ret_line + 14);
	if (!strncmp(ret_line, "error ", 6))
		return gcr_error_set(error, EIO, "%s", ret_line + 6);
	return gcr_error_set(error, EIO, "an answer that is none: %s", ret_line);
}

int bench_child_ask(const struct bench_paths *paths, struct bench_child *child,
		    int64_t timeout_usec, const char *question, char ret_line[BENCH_LINE_MAX],
		    struct gcr_error *error)
{
	char words[256];

	if (dprintf(child->input, "%s\n", question) < 0) {
		bench_child_last_words(paths, child, words, sizeof(words));
		return gcr_error_set(error, EPIPE, "it has ended%s%s", *words ? ": " : "", words);
	}
	return bench_child_answer(paths, child, timeout_usec, ret_line, error);
}

bool bench_answer_number(const char *line, const char *key, double *ret_number)
{
	size_t length = strlen(key);

	for (const char *found = line; (found = strstr(found, key)); found += length) {
		char *end;
		double number;

		if ((found != line && found[-1] != ' ') || found[length] != ' ')
			continue;
		number = strtod(found + length + 1, &end);
		if (end == found + length + 1)
			return false;
		*ret_number = number;
		return true;
	}
	return false;
}

bool bench_child_ended(const struct bench_child *child)
{
	struct pollfd poll_fd = {.fd = child->pidfd, .events = POLLIN};

	return !child->pid || poll(&poll_fd, 1, 0) > 0;
}

int bench_child_signal(struct bench_child *child, int number, int64_t timeout_usec)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;

	if (!child->pid)
		return 0;
	kill(-child->pid, number);
	for (;;) {
		struct pollfd poll_fd = {.fd = child->pidfd, .events = POLLIN};
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (left_usec <= 0)
			return -ETIMEDOUT;
		if (poll(&poll_fd, 1, (int)((left_usec + 999) / 1000)) > 0)
			return 0;
	}
}

void bench_child_end(struct bench_child *child)
{
	if (!child->pid)
		return;
	/* A process that survives SIGKILL hangs in the kernel and is abandoned. */
	if (!bench_child_signal(child, SIGKILL, END_USEC))
		waitpid(child->pid, NULL, 0);
	close(child->input);
	close(child->output);
	close(child->pidfd);
	memset(child, 0, sizeof(*child));
}

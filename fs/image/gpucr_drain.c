/* SPDX-License-Identifier: MIT */
/*
 * gpucr-drain: copies the output that arrives at descriptors 1 and up (masters of terminals,
 * sockets and pipes) to descriptor 0, a log of limited size that keeps the last part, until no
 * program can write any more. Goes into the background at once, as two processes: a pipe that has
 * lost its reader would kill the program that writes to it, so the first process restarts the
 * second.
 *
 * gpucr-drain criu: the same for the log of one run of CRIU, which arrives at descriptor 1, a
 * SOCK_SEQPACKET socket. Errors are kept even if they are not in the last part. Stays in the
 * foreground: who writes to such a socket without a reader gets an error and no signal. CRIU lends
 * its end of the socket to the programs that it dumps, so another program may have a copy of that
 * end and never close it. Descriptor 2 is a socket, too: a byte there means that CRIU has ended,
 * and from then on nothing can be written to the socket of the log. If that one ends without a byte
 * the daemon has died, and CRIU may still run.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "fs/image/drain.h"
#include "lib/cleanup.h"
#include "lib/confine.h"
#include "lib/full_io.h"

#define LOG	     STDIN_FILENO
#define FIRST	     1
#define CRIU_SOCKET  1
#define CRIU_END     2
#define CUT	     "[gpucr-drain: what was here before is gone: the log keeps its last part]\n"
#define ERROR_MARK   "Error (" /* in a line of CRIU's that tells of an error */
#define ERRORS_BYTES (32 << 10)
#define BUFFER_BYTES 65536

static size_t log_bytes = GCR_DRAIN_LOG_BYTES;	 /* the log's maximum size */
static size_t kept_bytes = GCR_DRAIN_KEPT_BYTES; /* of the last part */
static bool keeps_errors;

static char buffer[BUFFER_BYTES];
static char old_log[GCR_DRAIN_LOG_BYTES];
static char errors[ERRORS_BYTES];

/*
 * Appends to the log. On a full disk the output is lost: the program that writes it must not be
 * stopped.
 */
static void append(const char *bytes, size_t size)
{
	while (size) {
		ssize_t written = write(LOG, bytes, size);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return;
		bytes += written;
		size -= (size_t)written;
	}
}

/*
 * Copies the lines with errors in @text to `errors`, as many as fit. Returns the number of bytes in
 * `errors`.
 */
static size_t find_errors(const char *text, size_t size)
{
	const char *end = text + size;
	size_t found = 0;

	while (text < end) {
		const char *newline = memchr(text, '\n', (size_t)(end - text));
		size_t length = (size_t)((newline ? newline + 1 : end) - text);

		if (memmem(text, length, ERROR_MARK, strlen(ERROR_MARK)) &&
		    found + length <= sizeof(errors)) {
			memcpy(errors + found, text, length);
			found += length;
		}
		text += length;
	}
	return found;
}

/*
 * Shortens the log if @bytes more would exceed the limit: the last part stays, from the beginning
 * of a line on, and of a log of CRIU's the errors before it, too. Only this process writes to the
 * log.
 */
static void make_room(size_t bytes)
{
	const char *line, *last;
	struct stat stat;
	size_t size;
	ssize_t got;
	off_t from;

	if (fstat(LOG, &stat) < 0 || stat.st_size + (off_t)bytes <= (off_t)log_bytes)
		return;
	from = stat.st_size > (off_t)sizeof(old_log) ? stat.st_size - (off_t)sizeof(old_log) : 0;
	got = gcr_pread_all(LOG, old_log, sizeof(old_log), (uint64_t)from);
	size = got > 0 ? (size_t)got : 0;
	if (ftruncate(LOG, 0) < 0)
		return;
	last = old_log + (size > kept_bytes ? size - kept_bytes : 0);
	line = memchr(last, '\n', (size_t)(old_log + size - last));
	line = line ? line + 1 : last;
	if (keeps_errors)
		append(errors, find_errors(old_log, (size_t)(line - old_log)));
	append(CUT, sizeof(CUT) - 1);
	append(line, (size_t)(old_log + size - line));
}

/* Copies available output. False: the source is at its end. */
static bool drain(int fd)
{
	ssize_t got = read(fd, buffer, sizeof(buffer));

	if (got < 0 && (errno == EINTR || errno == EAGAIN))
		return true;
	if (got <= 0)
		return false;
	make_room((size_t)got);
	append(buffer, (size_t)got);
	return true;
}

static void drain_all(struct pollfd *sources, nfds_t count)
{
	nfds_t open = count;

	while (open) {
		if (poll(sources, count, -1) < 0 && errno != EINTR)
			return;
		for (nfds_t i = 0; i < count; i++)
			if (sources[i].fd >= 0 && sources[i].revents && !drain(sources[i].fd)) {
				sources[i].fd = -1;
				open--;
			}
	}
}

/*
 * Finds the descriptors that this program was given, which are numbered consecutively from FIRST.
 * *ret_sources, owned by the caller, is NULL if there are none. False: there is no memory.
 */
static bool find_sources(struct pollfd **ret_sources, nfds_t *ret_count)
{
	struct pollfd *sources = NULL;
	struct stat stat;
	nfds_t count = 0;

	while (fstat(FIRST + (int)count, &stat) == 0) {
		struct pollfd *more = reallocarray(sources, count + 1, sizeof(*sources));

		if (!more) {
			free(sources);
			return false;
		}
		sources = more;
		sources[count] = (struct pollfd){.fd = FIRST + (int)count, .events = POLLIN};
		count++;
	}
	*ret_count = count;
	*ret_sources = sources;
	return true;
}

/*
 * Forks the process that copies, again whenever that process was killed by a signal, until it has
 * ended by itself. Each process continues where the one before was killed.
 */
static void keep_draining(struct pollfd *sources, nfds_t count)
{
	int status;
	pid_t pid;

	do {
		pid = fork();
		if (pid <= 0)
			break;
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
	} while (WIFSIGNALED(status));
	if (pid > 0)
		return;
	/*
	 * An error of gcr_confine() is ignored: a program must not block because its output is not
	 * read.
	 */
	gcr_confine(GCR_CONFINE_DRAIN, NULL);
	drain_all(sources, count);
}

/*
 * Copies CRIU's log until CRIU has ended and all of the log has come, or nobody can write to it any
 * more.
 */
static void drain_criu(void)
{
	struct pollfd fds[] = {
		{.fd = CRIU_SOCKET, .events = POLLIN},
		{.fd = CRIU_END, .events = POLLIN},
	};
	char byte;

	for (;;) {
		ssize_t got;

		if (poll(fds, GCR_ARRAY_SIZE(fds), -1) < 0) {
			if (errno == EINTR)
				continue;
			return;
		}
		if (fds[1].revents) {
			if (read(CRIU_END, &byte, 1) == 1)
				shutdown(CRIU_SOCKET, SHUT_RDWR);
			fds[1].fd = -1;
			fds[1].revents = 0;
		}
		if (!fds[0].revents)
			continue;
		got = read(CRIU_SOCKET, buffer, sizeof(buffer));
		if (got > 0) {
			make_room((size_t)got);
			append(buffer, (size_t)got);
		} else if (got < 0 ? errno != EINTR && errno != EAGAIN
				   : (fds[0].revents & POLLHUP) != 0) {
			/* A message of no bytes looks like the end, but for POLLHUP. */
			return;
		}
	}
}

static void ignore_signals(void)
{
	/* Signals from a terminal or from stopping a service are meant for other processes. */
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	/* Output beyond a limit of file sizes is lost, as on a full disk. */
	signal(SIGXFSZ, SIG_IGN);
}

int main(int argc, char **argv)
{
	struct pollfd *sources;
	nfds_t count;
	pid_t pid;

	if (argc == 2 && !strcmp(argv[1], GCR_DRAIN_CRIU)) {
		log_bytes = GCR_CRIU_LOG_BYTES_MAX;
		kept_bytes = GCR_CRIU_LOG_BYTES_KEPT;
		keeps_errors = true;
		ignore_signals();
		/* An error is ignored, as in keep_draining(). */
		gcr_confine(GCR_CONFINE_DRAIN, NULL);
		drain_criu();
		return EXIT_SUCCESS;
	}
	if (argc != 1 || !find_sources(&sources, &count))
		return EXIT_FAILURE;
	pid = fork();
	if (pid) {
		free(sources);
		return pid < 0;
	}
	ignore_signals();
	keep_draining(sources, count);
	free(sources);
	return EXIT_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/*
 * gpucr-drain: copies the output that arrives at descriptors 1 and up (masters of terminals,
 * sockets and pipes) to descriptor 0, a log of limited size that keeps the last part, until no
 * program can write any more. Goes into the background at once, as two processes: a pipe that has
 * lost its reader would kill the program that writes to it, so the first process restarts the
 * second.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/image/drain.h"
#include "lib/cleanup.h"
#include "lib/confine.h"

#define LOG	     STDIN_FILENO
#define FIRST	     1
#define CUT	     "[gpucr-drain: what was here before is gone: the log keeps its last part]\n"
#define BUFFER_BYTES 65536

static char buffer[BUFFER_BYTES];
static char kept[GCR_DRAIN_KEPT_BYTES];

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
 * Shortens the log if @bytes more would exceed the limit: the last part stays, from the beginning
 * of a line on. Only this process writes to the log.
 */
static void make_room(size_t bytes)
{
	struct stat stat;
	const char *line;
	ssize_t got;

	if (fstat(LOG, &stat) < 0 || stat.st_size + (off_t)bytes <= GCR_DRAIN_LOG_BYTES)
		return;
	got = pread(LOG, kept, sizeof(kept), stat.st_size - (off_t)sizeof(kept));
	if (got < 0)
		got = 0;
	if (ftruncate(LOG, 0) < 0)
		return;
	line = memchr(kept, '\n', (size_t)got);
	line = line ? line + 1 : kept;
	append(CUT, sizeof(CUT) - 1);
	append(line, (size_t)(kept + got - line));
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

int main(void)
{
	struct pollfd *sources;
	nfds_t count;
	pid_t pid;

	if (!find_sources(&sources, &count))
		return EXIT_FAILURE;
	pid = fork();
	if (pid) {
		free(sources);
		return pid < 0;
	}
	/* Signals from a terminal or from stopping a service are meant for other processes. */
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	/* Output beyond a limit of file sizes is lost, as on a full disk. */
	signal(SIGXFSZ, SIG_IGN);
	keep_draining(sources, count);
	free(sources);
	return EXIT_SUCCESS;
}

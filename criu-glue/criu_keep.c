/* SPDX-License-Identifier: MIT */
/*
 * Keeping CRIU's log. While CRIU dumps a process, its code in that process writes to the log, so
 * that the process has a copy of CRIU's descriptor for a moment, which other processes of the same
 * user can take and keep (pidfd_getfd(2)). So that descriptor is no file of root's, but a socket,
 * from which a program of ours, gpucr-drain, fills the file up to a limit. Once CRIU has ended,
 * nothing can be written to the socket.
 *
 * The socket is of type SOCK_SEQPACKET: a process that writes to one without a reader gets an
 * error, and not SIGPIPE as from a pipe (the dumped process would die of it later). Unlike a
 * datagram socket, it cannot be connected to another one, which would then get messages from root.
 * Each write of CRIU's is one message. If gpucr-drain ends early, CRIU runs on without a log. If
 * the daemon ends, gpucr-drain keeps the log until the last copy of CRIU's descriptor is closed.
 *
 * Who has such a copy could send a descriptor, which gpucr-drain would be the last to close.
 * Closing a file of a FUSE filesystem that does not answer can wait unkillably in the kernel
 * (Linux 6.16 and newer). So the socket takes no descriptors where the kernel knows how, and
 * gpucr-drain is left behind if it does not end.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "criu-glue/criu_private.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/passing.h"

/* How long gpucr-drain may take for the rest of the log before it is killed. */
#define REST_USEC (5 * GCR_USEC_PER_SEC)
/* How long it may take to end then before it is left behind. */
#define KILL_USEC GCR_USEC_PER_SEC

/* Our ends of what gpucr-drain gets, and the file. */
struct ends {
	int drain[3]; /* its descriptors: the file, and its ends of the next two */
	int log;      /* the socket for CRIU */
	int end;      /* another socket, which tells that CRIU has ended */
};

static void close_ends(struct ends *ends)
{
	const int fds[] = {ends->drain[0], ends->drain[1], ends->drain[2], ends->log, ends->end};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static int make_pair(int *ret_its, int *ret_other)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	*ret_its = pair[0];
	*ret_other = pair[1];
	return 0;
}

/* Makes all of @ends, which close_ends() closes, also after an error. -errno. */
static int make_ends(int work_fd, const char *name, struct ends *ends)
{
	int r;

	*ends = (struct ends){{-1, -1, -1}, -1, -1};
	ends->drain[0] = openat(
		work_fd, name, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (ends->drain[0] < 0)
		return -errno;
	r = make_pair(&ends->drain[1], &ends->log);
	/* The processes that CRIU lends its end to must not block the reader with descriptors. */
	if (r == 0)
		gcr_passing_refuse(ends->drain[1]);
	return r < 0 ? r : make_pair(&ends->drain[2], &ends->end);
}

int gcr_criu_keep_log(const struct gcr_criu_program *criu, const struct gcr_criu_options *options,
		      struct gcr_criu_job *job, int *ret_fd, struct gcr_error *error)
{
	char name[] = GCR_DRAIN_PROGRAM, argument[] = GCR_DRAIN_CRIU;
	char *arguments[] = {name, argument, NULL};
	_cleanup_(close_ends) struct ends ends;
	struct gcr_error cause = {0};
	int r = make_ends(job->work_fd, job->log_name, &ends);

	if (r < 0)
		return gcr_error_set(error, -r, "CRIU's log %s cannot be made: %s", job->log_name,
				     strerror(-r));
	job->log = gcr_criu_new_job();
	if (!job->log)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	r = gcr_criu_start_program(criu, options->log_program, arguments, ends.drain,
				   GCR_ARRAY_SIZE(ends.drain), NULL, -1, job->log, &cause);
	if (r < 0)
		return gcr_error_set(error, EIO,
				     "%s, which keeps CRIU's log, cannot be started: %s",
				     options->log_program, cause.words);
	job->log_end_fd = TAKE_FD(ends.end);
	*ret_fd = TAKE_FD(ends.log);
	return 0;
}

static void forget(void *data)
{
	(void)data;
}

void gcr_criu_complete_log(struct gcr_criu_job *job)
{
	static const char byte = 'e';

	if (job->log_end_fd >= 0) {
		/* If it has ended already, nothing is to be told. */
		send(job->log_end_fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(TAKE_FD(job->log_end_fd));
	}
	if (!job->log)
		return;
	if (job->log->pidfd >= 0 && gcr_criu_wait(job->log, REST_USEC, -1) < 0) {
		gcr_criu_kill(job->log);
		if (gcr_criu_wait(job->log, KILL_USEC, -1) < 0) {
			gcr_criu_leave(TAKE_PTR(job->log), forget, NULL);
			return;
		}
	}
	gcr_criu_destroy(TAKE_PTR(job->log));
}

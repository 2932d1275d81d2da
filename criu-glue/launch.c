/* SPDX-License-Identifier: MIT */
/* The daemon's end of the conversation with gpucr-launch, and functions shared by both ends. */
#include "criu-glue/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* A buffer for the descriptors of one message, aligned for its header. */
union rights {
	struct cmsghdr header;
	char room[CMSG_SPACE(GCR_LAUNCH_FDS_MAX * sizeof(int))];
};

int gcr_launch_send(int connection, const void *bytes, size_t size, const int *fds, size_t count)
{
	struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	union rights rights = {};
	ssize_t sent;

	if (count) {
		message.msg_control = rights.room;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		rights.header.cmsg_level = SOL_SOCKET;
		rights.header.cmsg_type = SCM_RIGHTS;
		rights.header.cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(&rights.header), fds, count * sizeof(int));
	}
	do
		sent = sendmsg(connection, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return -errno;
	/* Messages of some tens of bytes always fit into an empty socket. */
	return (size_t)sent == size ? 0 : -EPIPE;
}

static void close_all(const int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		close(fds[i]);
}

/*
 * Takes the descriptors of one message and returns their number. Descriptors that do not fit are
 * closed.
 */
static size_t take_fds(struct msghdr *message, int *fds, size_t room)
{
	size_t taken = 0;

	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
	     header = CMSG_NXTHDR(message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
			if (taken < room)
				fds[taken++] = fd;
			else
				close(fd);
		}
	}
	return taken;
}

static int await(int connection, int timeout_msec)
{
	struct pollfd poll_fd = {.fd = connection, .events = POLLIN};
	int r;

	do
		r = poll(&poll_fd, 1, timeout_msec);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r ? 0 : -ETIMEDOUT;
}

int gcr_launch_receive(int connection, void *bytes, size_t size, int *ret_fds, size_t count,
		       int timeout_msec)
{
	int fds[GCR_LAUNCH_FDS_MAX];
	size_t taken = 0, done = 0;
	int r = 0;

	while (done < size && !r) {
		union rights rights;
		struct iovec vector = {.iov_base = (char *)bytes + done, .iov_len = size - done};
		struct msghdr message = {
			.msg_iov = &vector,
			.msg_iovlen = 1,
			.msg_control = rights.room,
			.msg_controllen = sizeof(rights.room),
		};
		ssize_t got;

		r = await(connection, timeout_msec);
		if (r < 0)
			break;
		got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
		if (got < 0 && errno == EINTR)
			continue;
		if (got > 0) {
			done += (size_t)got;
			taken += take_fds(&message, fds + taken, GCR_ARRAY_SIZE(fds) - taken);
		}
		if (got <= 0)
			r = got < 0 && errno != ECONNRESET ? -errno : -EPIPE;
		else if (message.msg_flags & MSG_CTRUNC)
			r = -EPROTO;
	}
	if (!r && taken != count)
		r = -EPROTO;
	if (r < 0)
		close_all(fds, taken);
	else if (count)
		memcpy(ret_fds, fds, count * sizeof(int));
	return r;
}

/* ---- the daemon's end ---- */

static int connect_to(const char *path, int *ret_connection)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int fd = -1;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	*ret_connection = TAKE_FD(fd);
	return 0;
}

static uint32_t write_strings(FILE *stream, char *const *strings)
{
	uint32_t count = 0;

	for (; strings[count]; count++)
		fwrite(strings[count], strlen(strings[count]) + 1, 1, stream);
	return count;
}

/* Makes the memfd that is sent with the request, and fills in the request's counts and sizes. */
static int make_data(const struct gcr_program *program, struct gcr_launch_request *request,
		     int *ret_fd)
{
	_cleanup_close_ int fd = memfd_create("gpucr-launch", MFD_CLOEXEC);
	_cleanup_fclose_ FILE *stream = NULL;
	int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	off_t end;

	if (copy < 0)
		return -errno;
	stream = fdopen(copy, "w");
	if (!stream) {
		close(copy);
		return -ENOMEM;
	}
	fwrite(program->path, strlen(program->path) + 1, 1, stream);
	request->arguments_count = write_strings(stream, program->arguments);
	request->environment_count = write_strings(stream, program->environment);
	request->fds_count = (uint32_t)program->fds_count;
	request->descriptors_count = program->cgroup_procs_fd > 0;
	request->flags = (program->cgroup_procs_fd > 0 ? GCR_LAUNCH_HAS_CGROUP : 0) |
			 (program->ends_with_starter ? GCR_LAUNCH_ENDS_WITH_DAEMON : 0);
	for (size_t i = 0; i < program->fds_count; i++) {
		fputc(program->fds[i] >= 0, stream);
		request->descriptors_count += program->fds[i] >= 0;
	}
	end = ftello(stream);
	if (fflush(stream) || ferror(stream) || end < 0)
		return -ENOSPC;
	if (end > GCR_LAUNCH_DATA_MAX)
		return -E2BIG;
	request->data_bytes = (uint32_t)end;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int send_fds(int connection, const struct gcr_program *program)
{
	static const char more = GCR_LAUNCH_MORE;
	int fds[GCR_LAUNCH_FDS_MAX];
	size_t count = 0;
	int r = 0;

	for (size_t i = 0; i <= program->fds_count && !r; i++) {
		int fd = i < program->fds_count ? program->fds[i] : program->cgroup_procs_fd;
		bool is_last = i == program->fds_count;

		if (is_last ? fd > 0 : fd >= 0)
			fds[count++] = fd;
		if (count == GCR_LAUNCH_FDS_MAX || (is_last && count)) {
			r = gcr_launch_send(connection, &more, 1, fds, count);
			count = 0;
		}
	}
	return r;
}

static int hear(int connection, enum gcr_launch_word word, int timeout_msec, int *ret_value,
		int *ret_pidfd)
{
	struct gcr_launch_reply reply;
	int r = gcr_launch_receive(connection, &reply, sizeof(reply), ret_pidfd, ret_pidfd ? 1 : 0,
				   timeout_msec);

	if (r < 0)
		return r;
	*ret_value = reply.value;
	if (reply.word == word)
		return 0;
	if (ret_pidfd)
		close(*ret_pidfd);
	return -EPROTO;
}

/*
 * Has the conversation of gcr_launch(). Returns errors of the conversation; *ret_failed: -errno of
 * the program's start. *ret_went, set also on errors: GO has been sent.
 */
static int converse(int connection, const struct gcr_program *program, int *ret_failed,
		    bool *ret_went, pid_t *ret_pid, int *ret_pidfd)
{
	struct gcr_launch_request request = {
		.magic = GCR_LAUNCH_MAGIC,
		.version = GCR_LAUNCH_VERSION,
		.ignored_signal = program->ignored_signal,
	};
	static const char go = GCR_LAUNCH_GO;
	_cleanup_close_ int data_fd = -1;
	struct gcr_launch_reply reply;
	int value;
	int r = make_data(program, &request, &data_fd);

	*ret_went = false;
	*ret_failed = r < 0 ? r : 0;
	if (r < 0)
		return 0;
	r = gcr_launch_send(connection, &request, sizeof(request), &data_fd, 1);
	if (!r)
		r = send_fds(connection, program);
	if (!r)
		r = hear(connection, GCR_LAUNCH_READY, GCR_LAUNCH_WAIT_MSEC, &value, NULL);
	if (!r)
		r = gcr_launch_send(connection, &go, 1, NULL, 0);
	/*
	 * From here on the program may be running. A launcher that does not answer kills it, or
	 * does not start it, when it notices that the connection has ended.
	 */
	*ret_went = !r;
	if (!r)
		r = await(connection, GCR_LAUNCH_WAIT_MSEC);
	if (r < 0)
		return r;
	if (recv(connection, &reply, sizeof(reply), MSG_PEEK) == sizeof(reply) &&
	    reply.word == GCR_LAUNCH_FAILED && reply.value < 0) {
		*ret_failed = reply.value;
		return 0;
	}
	r = hear(connection, GCR_LAUNCH_STARTED, GCR_LAUNCH_WAIT_MSEC, &value, ret_pidfd);
	if (!r)
		*ret_pid = value;
	return r;
}

int gcr_launch(const char *socket_path, const struct gcr_program *program, pid_t *ret_pid,
	       int *ret_pidfd, int *ret_connection, struct gcr_error *error)
{
	_cleanup_close_ int connection = -1;
	bool went = false;
	int failed = 0;
	int r = connect_to(socket_path, &connection);

	if (r < 0) {
		gcr_error_set(error, EIO,
			      "CRIU is started by way of %s, where nobody listens (%s): start "
			      "gpucrfs-criu.socket",
			      socket_path, strerror(-r));
		return -ECONNREFUSED;
	}
	r = converse(connection, program, &failed, &went, ret_pid, ret_pidfd);
	if (r < 0) {
		gcr_error_set(error, EIO,
			      "CRIU's launcher behind %s %s (%s): see the journal of "
			      "gpucrfs-criu@*.service",
			      socket_path,
			      went ? "does not tell whether it has started it"
				   : "has not started it",
			      strerror(-r));
		return -EPROTO;
	}
	if (failed < 0) {
		gcr_error_set(error, -failed, "%s", strerror(-failed));
		return failed;
	}
	*ret_connection = TAKE_FD(connection);
	return 0;
}

void gcr_launch_stop_writes(int connection)
{
	const char word = GCR_LAUNCH_NO_WRITES;

	gcr_launch_send(connection, &word, 1, NULL, 0);
}

int gcr_launch_status(int connection, int *ret_wait_status)
{
	struct gcr_launch_reply reply;
	int r;

	r = await(connection, 0);
	if (r == -ETIMEDOUT)
		return -EAGAIN;
	if (!r)
		r = gcr_launch_receive(connection, &reply, sizeof(reply), NULL, 0,
				       GCR_LAUNCH_WAIT_MSEC);
	if (r < 0 || reply.word != GCR_LAUNCH_ENDED)
		return -EPIPE;
	*ret_wait_status = reply.value;
	return 0;
}

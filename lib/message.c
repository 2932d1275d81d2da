/* SPDX-License-Identifier: MIT */
/*
 * One message over a SOCK_SEQPACKET socket. Received data is not trusted: every length and every
 * descriptor is accounted for before the caller sees the message. No locks, no memory allocation;
 * the preload library compiles this file too.
 */
#include "lib/message.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/clock.h"

/* Converts a positive errno of a socket to a result: -EPIPE for all that mean a closed peer. */
static int socket_error(int number)
{
	return number == ECONNRESET || number == ENOTCONN || number == ECONNREFUSED ? -EPIPE
										    : -number;
}

int gcr_message_send(int socket, uint16_t type, uint32_t sequence, const void *payload,
		     size_t payload_bytes, const int *fds, size_t fds_count)
{
	struct gcr_message_header header = {
		.magic = GCR_PROTOCOL_MAGIC,
		.version = GCR_PROTOCOL_VERSION,
		.type = type,
		.sequence = sequence,
		.length = (uint32_t)payload_bytes,
	};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * GCR_MESSAGE_FDS_MAX)];
	} control;
	struct iovec parts[2] = {
		{.iov_base = &header, .iov_len = sizeof(header)},
		{.iov_base = (void *)(uintptr_t)payload, .iov_len = payload_bytes},
	};
	struct msghdr packet = {.msg_iov = parts, .msg_iovlen = payload_bytes > 0 ? 2 : 1};

	if (payload_bytes > GCR_MESSAGE_PAYLOAD_MAX || fds_count > GCR_MESSAGE_FDS_MAX)
		return -EMSGSIZE;

	if (fds_count > 0) {
		struct cmsghdr *rights;

		memset(&control, 0, sizeof(control));
		packet.msg_control = &control;
		packet.msg_controllen = CMSG_SPACE(sizeof(int) * fds_count);
		rights = CMSG_FIRSTHDR(&packet);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * fds_count);
		memcpy(CMSG_DATA(rights), fds, sizeof(int) * fds_count);
	}

	for (;;) {
		if (sendmsg(socket, &packet, MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EINTR)
			return socket_error(errno);
	}
}

/* Waits until @socket is readable. 0, -ETIMEDOUT, or -EINTR if only @wake_fd is. */
static int wait_readable(int socket, int64_t deadline_usec, int wake_fd)
{
	for (;;) {
		struct pollfd polls[2] = {
			{.fd = socket, .events = POLLIN},
			{.fd = wake_fd, .events = POLLIN}, /* poll(2) skips negative descriptors */
		};
		struct timespec timeout, *limit = NULL;
		int count;

		if (deadline_usec >= 0) {
			int64_t left_usec = deadline_usec - gcr_clock_usec();

			if (left_usec < 0)
				left_usec = 0;
			timeout.tv_sec = (time_t)(left_usec / GCR_USEC_PER_SEC);
			timeout.tv_nsec = (long)(left_usec % GCR_USEC_PER_SEC) * 1000;
			limit = &timeout;
		}
		count = ppoll(polls, 2, limit, NULL);
		if (count < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (count == 0)
			return -ETIMEDOUT;
		/* A message that has arrived takes precedence over @wake_fd. */
		if (polls[0].revents)
			return 0;
		return -EINTR;
	}
}

/* Takes over every descriptor of the packet. False if some were lost or there were too many. */
static bool collect_fds(struct msghdr *packet, struct gcr_message *message)
{
	bool complete = !(packet->msg_flags & MSG_CTRUNC);

	for (struct cmsghdr *part = CMSG_FIRSTHDR(packet); part; part = CMSG_NXTHDR(packet, part)) {
		size_t bytes;

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		bytes = part->cmsg_len - CMSG_LEN(0);
		for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
			if (message->fds_count < GCR_MESSAGE_FDS_MAX) {
				message->fds[message->fds_count++] = fd;
			} else {
				close(fd);
				complete = false;
			}
		}
	}
	return complete;
}

/* Is the packet one well-formed message? */
static bool well_formed(const struct msghdr *packet, size_t bytes,
			const struct gcr_message_header *header)
{
	if (packet->msg_flags & MSG_TRUNC)
		return false;
	if (bytes < sizeof(*header))
		return false;
	if (header->magic != GCR_PROTOCOL_MAGIC)
		return false;
	if (header->version < 1 || header->version > GCR_PROTOCOL_VERSION)
		return false;
	return header->length == bytes - sizeof(*header);
}

int gcr_message_peek(int socket, int64_t timeout_usec, int wake_fd,
		     struct gcr_message_header *ret_header, bool *ret_has_fds)
{
	int64_t deadline_usec = timeout_usec < 0 ? -1 : gcr_clock_usec() + timeout_usec;

	for (;;) {
		struct iovec part = {.iov_base = ret_header, .iov_len = sizeof(*ret_header)};
		struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
		ssize_t bytes;
		int r = wait_readable(socket, deadline_usec, wake_fd);

		if (r < 0)
			return r;
		memset(ret_header, 0, sizeof(*ret_header));
		bytes = recvmsg(socket, &packet, MSG_PEEK | MSG_DONTWAIT);
		if (bytes < 0) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			return socket_error(errno);
		}
		*ret_has_fds = packet.msg_flags & MSG_CTRUNC;
		return bytes == 0 && !*ret_has_fds ? -EPIPE : 0;
	}
}

int gcr_message_receive(int socket, int64_t timeout_usec, int wake_fd,
			struct gcr_message *ret_message)
{
	int64_t deadline_usec = timeout_usec < 0 ? -1 : gcr_clock_usec() + timeout_usec;

	for (;;) {
		union {
			struct cmsghdr header;
			/* room for SCM_CREDENTIALS too, in case the socket has SO_PASSCRED */
			char space[CMSG_SPACE(sizeof(int) * GCR_MESSAGE_FDS_MAX) +
				   CMSG_SPACE(sizeof(struct ucred))];
		} control;
		struct iovec parts[2] = {
			{.iov_base = &ret_message->header, .iov_len = sizeof(ret_message->header)},
			{.iov_base = ret_message->payload, .iov_len = sizeof(ret_message->payload)},
		};
		struct msghdr packet = {
			.msg_iov = parts,
			.msg_iovlen = 2,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};
		bool complete;
		ssize_t bytes;
		int r;

		r = wait_readable(socket, deadline_usec, wake_fd);
		if (r < 0)
			return r;

		ret_message->fds_count = 0;
		ret_message->payload_bytes = 0;
		bytes = recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (bytes < 0) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			return socket_error(errno);
		}
		complete = collect_fds(&packet, ret_message);
		/* An empty packet cannot be told from end of file, and is treated as such. */
		if (bytes == 0) {
			gcr_message_close_fds(ret_message);
			return -EPIPE;
		}
		if (!complete || !well_formed(&packet, (size_t)bytes, &ret_message->header)) {
			gcr_message_close_fds(ret_message);
			return -EPROTO;
		}
		ret_message->payload_bytes = (size_t)bytes - sizeof(ret_message->header);
		return 0;
	}
}

void gcr_message_close_fds(struct gcr_message *message)
{
	for (size_t i = 0; i < message->fds_count; i++)
		if (message->fds[i] >= 0)
			close(message->fds[i]);
	message->fds_count = 0;
}

void gcr_message_payload(const struct gcr_message *message, void *ret, size_t bytes)
{
	size_t there = message->payload_bytes < bytes ? message->payload_bytes : bytes;

	memcpy(ret, message->payload, there);
	memset((char *)ret + there, 0, bytes - there);
}

/* SPDX-License-Identifier: MIT */
/*
 * A packet from an untrusted peer. First byte: number of descriptors sent with the packet; second
 * byte: odd if the header is made valid, so that the payload is parsed; the rest is the packet.
 */
#include "lib/message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/fuzz/fuzz.h"

#define PACKET_BYTES_MAX (sizeof(struct gcr_message_header) + GCR_MESSAGE_PAYLOAD_MAX + 4096)
#define FDS_MAX		 200
#define END_USEC	 (10 * GCR_USEC_PER_SEC)

static uint8_t packet[PACKET_BYTES_MAX];
static struct gcr_message message;

/* Returns the number of the next descriptor, which is higher if a descriptor has leaked. */
static int next_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	close(fd);
	return fd;
}

static void send_packet(int socket, size_t bytes, size_t fds_count)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
	} control = {.space = {0}};
	/*
	 * Not a socket: the kernel may keep sockets in flight a moment longer to look for cycles.
	 */
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct iovec part = {.iov_base = packet, .iov_len = bytes};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

	if (fds_count) {
		struct cmsghdr *rights = &control.header;

		header.msg_control = &control;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * fds_count);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * fds_count);
		for (size_t i = 0; i < fds_count; i++)
			memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(fd));
	}
	CHECK(fd >= 0);
	CHECK(sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes);
	close(fd);
}

/*
 * Checks that gcr_message_payload() fills a struct of @bytes completely and writes no further: the
 * struct ends with the heap block.
 */
static void check_payload(size_t bytes)
{
	uint8_t *copy = malloc(bytes);
	size_t there = message.payload_bytes < bytes ? message.payload_bytes : bytes;

	CHECK(copy);
	memset(copy, 0xa5, bytes);
	gcr_message_payload(&message, copy, bytes);
	CHECK(!memcmp(copy, message.payload, there));
	for (size_t i = there; i < bytes; i++)
		CHECK(!copy[i]);
	free(copy);
}

static void check_message(size_t bytes, size_t fds_count)
{
	CHECK(message.header.magic == GCR_PROTOCOL_MAGIC);
	CHECK(message.header.version >= 1 && message.header.version <= GCR_PROTOCOL_VERSION);
	CHECK(message.payload_bytes == message.header.length);
	CHECK(message.payload_bytes == bytes - sizeof(message.header));
	CHECK(!memcmp(message.payload, packet + sizeof(message.header), message.payload_bytes));
	CHECK(message.fds_count == fds_count);
	for (size_t i = 0; i < fds_count; i++)
		CHECK(fcntl(message.fds[i], F_GETFD) == FD_CLOEXEC);
	check_payload(sizeof(struct gcr_hello));
	check_payload(sizeof(struct gcr_control_request));
	check_payload(sizeof(struct gcr_reserve_request));
	check_payload(sizeof(struct gcr_result));
	check_payload(sizeof(struct gcr_gpus_reply));
	check_payload(sizeof(struct gcr_register));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t fds_count;
	size_t bytes;
	int first_fd;
	int pair[2];
	int result;

	if (size < 2 || size - 2 > sizeof(packet))
		return 0;
	bytes = size - 2;
	memcpy(packet, data + 2, bytes);
	fds_count = bytes ? data[0] % FDS_MAX : 0;
	if (data[1] & 1 && bytes >= sizeof(struct gcr_message_header)) {
		struct gcr_message_header header;

		memcpy(&header, packet, sizeof(header));
		header.magic = GCR_PROTOCOL_MAGIC;
		header.version = GCR_PROTOCOL_VERSION;
		header.length = (uint32_t)(bytes - sizeof(header));
		memcpy(packet, &header, sizeof(header));
	}
	first_fd = next_fd();
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	send_packet(pair[0], bytes, fds_count);

	result = gcr_message_receive(pair[1], 0, -1, &message);
	if (!result) {
		check_message(bytes, fds_count);
		gcr_message_close_fds(&message);
	} else {
		CHECK(result == (bytes ? -EPROTO : -EPIPE));
		CHECK(!message.fds_count);
	}
	/* After any packet the socket must still work for the next one. */
	CHECK(gcr_message_receive(pair[1], 0, -1, &message) == -ETIMEDOUT);
	CHECK(!gcr_message_send(pair[0], GCR_MESSAGE_QUERY, 7, NULL, 0, NULL, 0));
	CHECK(!gcr_message_receive(pair[1], 0, -1, &message) && message.header.sequence == 7);
	close(pair[0]);
	/* Another process's readlink(2) of /proc/PID/fd/N keeps the file a moment longer. */
	CHECK(gcr_message_receive(pair[1], END_USEC, -1, &message) == -EPIPE);
	close(pair[1]);
	CHECK(next_fd() == first_fd);
	return 0;
}

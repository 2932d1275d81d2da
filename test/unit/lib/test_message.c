/* SPDX-License-Identifier: MIT */
/* lib/message.c: sent messages arrive, and malformed packets leave no descriptor open. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/message.h"
#include "test/unit/descriptors.h"
#include "test/unit/test.h"

static struct gcr_message message; /* too large for each test's stack frame */

/* The results are the sockets of a new pair. */
static void make_pair(int *ret_one, int *ret_other)
{
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	*ret_one = pair[0];
	*ret_other = pair[1];
}

/* All of @fds become the same descriptor. */
static void fill(int *fds, size_t count, int fd)
{
	for (size_t i = 0; i < count; i++)
		fds[i] = fd;
}

/* Send a packet as a broken or hostile peer might. */
static void send_raw(int socket, const void *bytes, size_t length, int fd, size_t fds_count)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * 200)];
	} control = {.space = {0}};
	struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
	struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
	struct cmsghdr *rights;

	if (fds_count > 0) {
		packet.msg_control = &control;
		packet.msg_controllen = CMSG_SPACE(sizeof(int) * fds_count);
		rights = CMSG_FIRSTHDR(&packet);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * fds_count);
		for (size_t i = 0; i < fds_count; i++)
			memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(fd));
	}
	CHECK(sendmsg(socket, &packet, MSG_NOSIGNAL) == (ssize_t)length);
}

static void test_round_trip(void)
{
	static uint8_t payload[GCR_MESSAGE_PAYLOAD_MAX + 1];
	_cleanup_close_ int one = -1, other = -1;

	make_pair(&one, &other);
	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 7);

	CHECK(gcr_message_send(one, GCR_MESSAGE_QUERY, 7, NULL, 0, NULL, 0) == 0);
	CHECK(gcr_message_receive(other, -1, -1, &message) == 0);
	CHECK(message.header.type == GCR_MESSAGE_QUERY && message.header.sequence == 7);
	CHECK(message.payload_bytes == 0 && message.fds_count == 0);

	CHECK(gcr_message_send(one, GCR_MESSAGE_STATE, UINT32_MAX, payload, GCR_MESSAGE_PAYLOAD_MAX,
			       NULL, 0) == 0);
	CHECK(gcr_message_receive(other, 0, -1, &message) == 0);
	CHECK(message.header.sequence == UINT32_MAX);
	CHECK(message.payload_bytes == GCR_MESSAGE_PAYLOAD_MAX);
	CHECK(memcmp(message.payload, payload, GCR_MESSAGE_PAYLOAD_MAX) == 0);

	CHECK(gcr_message_send(one, GCR_MESSAGE_STATE, 1, payload, sizeof(payload), NULL, 0) ==
	      -EMSGSIZE);
	CHECK(gcr_message_receive(other, 0, -1, &message) == -ETIMEDOUT);
}

static void test_descriptors(void)
{
	_cleanup_close_ int one = -1, other = -1;
	int fds[GCR_MESSAGE_FDS_MAX + 1];
	size_t before;

	make_pair(&one, &other);
	fill(fds, GCR_ARRAY_SIZE(fds), one);
	before = count_descriptors();

	CHECK(gcr_message_send(one, 1, 1, NULL, 0, fds, GCR_MESSAGE_FDS_MAX) == 0);
	CHECK(gcr_message_receive(other, 0, -1, &message) == 0);
	CHECK(message.fds_count == GCR_MESSAGE_FDS_MAX);
	for (size_t i = 0; i < message.fds_count; i++)
		CHECK(fcntl(message.fds[i], F_GETFD) == FD_CLOEXEC);
	close(TAKE_FD(message.fds[3]));
	gcr_message_close_fds(&message);
	gcr_message_close_fds(&message);
	CHECK(count_descriptors() == before);

	CHECK(gcr_message_send(one, 1, 1, NULL, 0, fds, GCR_MESSAGE_FDS_MAX + 1) == -EMSGSIZE);
}

/* With SO_PASSCRED set, the control data also carries credentials. */
static void test_credentials(void)
{
	_cleanup_close_ int one = -1, other = -1;
	int fds[GCR_MESSAGE_FDS_MAX], on = 1;
	size_t before;

	make_pair(&one, &other);
	fill(fds, GCR_ARRAY_SIZE(fds), one);
	CHECK(setsockopt(other, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
	before = count_descriptors();

	CHECK(gcr_message_send(one, 1, 1, NULL, 0, fds, GCR_MESSAGE_FDS_MAX) == 0);
	CHECK(gcr_message_receive(other, 0, -1, &message) == 0);
	CHECK(message.fds_count == GCR_MESSAGE_FDS_MAX);
	gcr_message_close_fds(&message);
	CHECK(count_descriptors() == before);
}

static void test_malformed(void)
{
	struct {
		struct gcr_message_header header;
		uint8_t rest[8];
	} packet;
	const struct gcr_message_header good = {
		.magic = GCR_PROTOCOL_MAGIC,
		.version = GCR_PROTOCOL_VERSION,
		.type = 1,
		.length = sizeof(packet.rest),
	};
	static char huge[sizeof(good) + GCR_MESSAGE_PAYLOAD_MAX + 1];
	_cleanup_close_ int one = -1, other = -1;
	size_t before;

	make_pair(&one, &other);
	memset(&packet, 0, sizeof(packet));
	before = count_descriptors();

	for (int flaw = 0; flaw < 8; flaw++) {
		size_t bytes = sizeof(packet), fds_count = 2;
		const void *what = &packet;

		packet.header = good;
		switch (flaw) {
		case 0:
			packet.header.magic++;
			break;
		case 1:
			packet.header.version = GCR_PROTOCOL_VERSION + 1;
			break;
		case 2:
			packet.header.version = 0;
			break;
		case 3:
			packet.header.length--;
			break;
		case 4:
			packet.header.length = UINT32_MAX;
			break;
		case 5:
			bytes = sizeof(packet.header) - 1;
			break;
		case 6:
			fds_count = GCR_MESSAGE_FDS_MAX + 100;
			break;
		case 7:
			packet.header.length = sizeof(huge) - sizeof(good);
			memcpy(huge, &packet.header, sizeof(good));
			what = huge;
			bytes = sizeof(huge);
			break;
		}
		send_raw(one, what, bytes, one, fds_count);
		CHECK(gcr_message_receive(other, 0, -1, &message) == -EPROTO);
		CHECK(message.fds_count == 0);
		CHECK(count_descriptors() == before);
	}

	/* The socket is still usable. */
	CHECK(gcr_message_send(one, 5, 6, NULL, 0, NULL, 0) == 0);
	CHECK(gcr_message_receive(other, 0, -1, &message) == 0);
	CHECK(message.header.type == 5);
}

/* After the peer has closed, receiving and sending fail with EPIPE. */
static void test_end(void)
{
	_cleanup_close_ int one = -1, other = -1;
	size_t before;

	make_pair(&one, &other);

	/* Messages sent before the peer closed still arrive. */
	CHECK(gcr_message_send(other, 5, 6, NULL, 0, NULL, 0) == 0);
	before = count_descriptors();
	send_raw(other, "", 0, other, 1);
	close(TAKE_FD(other));
	CHECK(gcr_message_receive(one, -1, -1, &message) == 0);
	CHECK(gcr_message_receive(one, -1, -1, &message) == -EPIPE);
	CHECK(gcr_message_receive(one, -1, -1, &message) == -EPIPE);
	CHECK(count_descriptors() == before - 1);
	/* No SIGPIPE, which would end this test. */
	CHECK(gcr_message_send(one, 5, 6, NULL, 0, NULL, 0) == -EPIPE);
}

static void ignore(int number)
{
	(void)number;
}

static void test_waiting(void)
{
	struct sigaction action = {.sa_handler = ignore};
	_cleanup_close_ int one = -1, other = -1, wake = -1, waker = -1;
	int pipes[2];
	int64_t start_usec;

	make_pair(&one, &other);
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	wake = pipes[0];
	waker = pipes[1];

	start_usec = gcr_clock_usec();
	CHECK(gcr_message_receive(other, 20 * GCR_USEC_PER_MSEC, wake, &message) == -ETIMEDOUT);
	CHECK(gcr_clock_usec() - start_usec >= 20 * GCR_USEC_PER_MSEC);

	CHECK(write(waker, "x", 1) == 1);
	CHECK(gcr_message_receive(other, -1, wake, &message) == -EINTR);
	/* An answer already queued is received although the wake descriptor is readable. */
	CHECK(gcr_message_send(one, 5, 6, NULL, 0, NULL, 0) == 0);
	CHECK(gcr_message_receive(other, -1, wake, &message) == 0);
	CHECK(gcr_message_receive(other, -1, wake, &message) == -EINTR);

	/* A signal does not end the wait. */
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 5000}, NULL) == 0);
	start_usec = gcr_clock_usec();
	CHECK(gcr_message_receive(other, 20 * GCR_USEC_PER_MSEC, -1, &message) == -ETIMEDOUT);
	CHECK(gcr_clock_usec() - start_usec >= 20 * GCR_USEC_PER_MSEC);
}

/* Sending into a full non-blocking socket fails with EAGAIN. */
static void test_full_socket(void)
{
	_cleanup_close_ int one = -1, other = -1;
	int r = 0;

	make_pair(&one, &other);
	CHECK(fcntl(one, F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; r == 0 && i < 1000000; i++)
		r = gcr_message_send(one, 5, 6, NULL, 0, NULL, 0);
	CHECK(r == -EAGAIN);
}

/* A newer peer's longer payload is cut, an older peer's shorter one filled with zeros. */
static void test_versions(void)
{
	struct gcr_result result;
	_cleanup_close_ int one = -1, other = -1;
	struct {
		struct gcr_result result;
		char newer[100];
	} longer;

	make_pair(&one, &other);

	memset(&longer, 'x', sizeof(longer));
	longer.result.error = 5;
	CHECK(gcr_message_send(one, 5, 6, &longer, sizeof(longer), NULL, 0) == 0);
	CHECK(gcr_message_receive(other, 0, -1, &message) == 0);
	gcr_message_payload(&message, &result, sizeof(result));
	CHECK(result.error == 5 && result.words[GCR_WORDS_BYTES - 1] == 'x');
	gcr_message_terminate(result.words);
	CHECK(strlen(result.words) == GCR_WORDS_BYTES - 1);

	CHECK(gcr_message_send(one, 5, 6, &longer, sizeof(int32_t), NULL, 0) == 0);
	CHECK(gcr_message_receive(other, 0, -1, &message) == 0);
	gcr_message_payload(&message, &result, sizeof(result));
	CHECK(result.error == 5 && result.driver_result == 0 && result.words[0] == '\0');
}

int main(void)
{
	test_round_trip();
	test_descriptors();
	test_credentials();
	test_malformed();
	test_end();
	test_waiting();
	test_full_socket();
	test_versions();
	return 0;
}

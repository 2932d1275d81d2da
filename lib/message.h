/* SPDX-License-Identifier: MIT */
/* Sending and receiving one message of lib/protocol.h over a SOCK_SEQPACKET socket. */
#ifndef GCR_MESSAGE_H
#define GCR_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/protocol.h"

struct gcr_message {
	struct gcr_message_header header;
	size_t payload_bytes;	      /* the number of bytes received, equal to header.length */
	int fds[GCR_MESSAGE_FDS_MAX]; /* owned by the receiver; close-on-exec */
	size_t fds_count;
	uint8_t payload[GCR_MESSAGE_PAYLOAD_MAX] __attribute__((aligned(16)));
};

/*
 * Sends one whole message. @payload may be NULL if @payload_bytes is 0; @fds may be NULL if
 * @fds_count is 0, and the descriptors stay the caller's. Never raises SIGPIPE. Errors: -EPIPE the
 * peer has closed, -EMSGSIZE too large, -EAGAIN a non-blocking socket is full.
 */
int gcr_message_send(int socket, uint16_t type, uint32_t sequence, const void *payload,
		     size_t payload_bytes, const int *fds, size_t fds_count);

/*
 * Waits up to @timeout_usec (negative: for ever) for one message. If @wake_fd is not negative and
 * becomes readable first, -EINTR is returned (the descriptor is not read). Errors: -EPIPE the peer
 * has closed, -ETIMEDOUT, -EINTR, -EPROTO bad magic, unknown version, or a length that does not
 * match the bytes received (descriptors that came with the message are closed; the socket is still
 * usable).
 */
int gcr_message_receive(int socket, int64_t timeout_usec, int wake_fd,
			struct gcr_message *ret_message);

/*
 * Waits as gcr_message_receive() does, and returns the header of the next message without removing
 * the message: bytes of the header that are missing become 0, nothing is checked. *ret_has_fds:
 * descriptors come with it; none of them is installed or closed. Errors: -EPIPE, -ETIMEDOUT,
 * -EINTR.
 */
int gcr_message_peek(int socket, int64_t timeout_usec, int wake_fd,
		     struct gcr_message_header *ret_header, bool *ret_has_fds);

/* Closes the descriptors that came with @message and were not taken (set to -1). */
void gcr_message_close_fds(struct gcr_message *message);

/*
 * Copies the payload into the fixed-size struct @ret of @bytes by the version rule of protocol.h: a
 * longer payload is cut, a shorter one filled with zeros. Strings in it are untrusted: terminate
 * them with gcr_message_terminate().
 */
void gcr_message_payload(const struct gcr_message *message, void *ret, size_t bytes);

#define gcr_message_terminate(array) ((void)((array)[sizeof(array) - 1] = '\0'))

#endif

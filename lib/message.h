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
	size_t payload_bytes;	      /* what arrived, equals header.length */
	int fds[GCR_MESSAGE_FDS_MAX]; /* owned by the receiver; close-on-exec */
	size_t fds_count;
	uint8_t payload[GCR_MESSAGE_PAYLOAD_MAX] __attribute__((aligned(16)));
};

/*
 * Send one message whole. @payload may be NULL if @payload_bytes is 0; @fds may be NULL if
 * @fds_count is 0 and stay the caller's. Never raises SIGPIPE.
 * Errors: -EPIPE the peer is gone, -EMSGSIZE too large, -EAGAIN a non-blocking socket is full.
 */
int gcr_message_send(int socket, uint16_t type, uint32_t sequence, const void *payload,
		     size_t payload_bytes, const int *fds, size_t fds_count);

/*
 * Wait up to @timeout_usec (negative: for ever) for one message. If @wake_fd is not negative and
 * becomes readable first, -EINTR is returned (the descriptor is not read).
 * Errors: -EPIPE the peer is gone, -ETIMEDOUT, -EINTR, -EPROTO bad magic, unknown version, or a
 * length that does not match what arrived (its descriptors are closed; the socket is still usable).
 */
int gcr_message_receive(int socket, int64_t timeout_usec, int wake_fd,
			struct gcr_message *ret_message);

/*
 * Wait as gcr_message_receive() does, and look at the next message, which stays where it is: its
 * header, as far as it goes (the rest is 0; nothing is checked), and whether descriptors come with
 * it. None of them is installed or closed. Errors: -EPIPE, -ETIMEDOUT, -EINTR.
 */
int gcr_message_peek(int socket, int64_t timeout_usec, int wake_fd,
		     struct gcr_message_header *ret_header, bool *ret_has_fds);

/* Close the descriptors that came with @message and were not taken (set to -1). */
void gcr_message_close_fds(struct gcr_message *message);

/*
 * Copy the payload into the fixed-size struct @ret of @bytes by the version rule of protocol.h:
 * a longer payload is cut, a shorter one filled with zeros. Strings inside are not yet trusted:
 * terminate them with gcr_message_terminate().
 */
void gcr_message_payload(const struct gcr_message *message, void *ret, size_t bytes);

#define gcr_message_terminate(array) ((void)((array)[sizeof(array) - 1] = '\0'))

#endif

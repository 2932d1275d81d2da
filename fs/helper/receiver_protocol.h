/* SPDX-License-Identifier: MIT */
/*
 * The protocol between the daemon (fs/helper/receiver.c) and gpucr-receive
 * (fs/helper/gpucr_receive.c), in packets of lib/message.h: one request at a time, answered by one
 * reply of the same sequence.
 */
#ifndef GCR_FS_HELPER_RECEIVER_PROTOCOL_H
#define GCR_FS_HELPER_RECEIVER_PROTOCOL_H

#include <stdint.h>

#include "lib/protocol.h"

#define GCR_RECEIVER_SOCKET	3 /* the helper's descriptor of the socket */
#define GCR_RECEIVER_PROGRAM	"gpucr-receive"
#define GCR_RECEIVER_LINK_BYTES 96

enum gcr_receiver_type {			      /* must not overlap enum gcr_message_type */
			 GCR_RECEIVER_REQUEST = 1040, /* fd: the connection */
			 GCR_RECEIVER_CLOSE = 1041,   /* fd: a connection to close; not answered */
			 GCR_RECEIVER_REPLY = 1042,   /* with the message's descriptors */
};

enum gcr_receiver_kind {
	GCR_RECEIVER_NONE,   /* no descriptor is expected */
	GCR_RECEIVER_MEMORY, /* files in memory */
	GCR_RECEIVER_GPU,    /* GPUs' memory */
};

struct gcr_receiver_request {
	uint32_t kind;	   /* enum gcr_receiver_kind */
	uint32_t fds_most; /* expected at most with the message */
};

/*
 * Errors: EBADF a descriptor is not of the expected kind: the helper ends, and may block for ever
 * while it does; EPROTO the message is not well-formed; EPIPE; EAGAIN there is no message.
 */
struct gcr_receiver_reply {
	int32_t error; /* an errno, 0: the message follows */
	uint32_t reserved;
	char link[GCR_RECEIVER_LINK_BYTES]; /* EBADF: the kernel's name of the descriptor */
	struct gcr_message_header header;
};
/* The longest payload of a message that comes with descriptors. */
#define GCR_RECEIVER_PAYLOAD_MAX (GCR_MESSAGE_PAYLOAD_MAX - sizeof(struct gcr_receiver_reply))

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What the daemon (fs/helper/receiver.c) and gpucr-receive (fs/helper/gpucr_receive.c) say to each
 * other, in packets of lib/message.h: one request at a time, answered by one reply of the same
 * sequence.
 */
#ifndef GCR_FS_HELPER_RECEIVER_PROTOCOL_H
#define GCR_FS_HELPER_RECEIVER_PROTOCOL_H

#include <stdint.h>

#include "lib/protocol.h"

#define GCR_RECEIVER_SOCKET	3 /* where the helper finds its end */
#define GCR_RECEIVER_PROGRAM	"gpucr-receive"
#define GCR_RECEIVER_LINK_BYTES 96

enum gcr_receiver_type {			      /* beside enum gcr_message_type */
			 GCR_RECEIVER_REQUEST = 1040, /* fd: the connection */
			 GCR_RECEIVER_CLOSE = 1041,   /* fd: one to be closed; not answered */
			 GCR_RECEIVER_REPLY = 1042,   /* with the message's descriptors */
};

enum gcr_receiver_kind {
	GCR_RECEIVER_NONE,   /* no descriptor is due */
	GCR_RECEIVER_MEMORY, /* files in memory */
	GCR_RECEIVER_GPU,    /* the GPUs' */
};

struct gcr_receiver_request {
	uint32_t kind;	   /* enum gcr_receiver_kind */
	uint32_t fds_most; /* that may come with the message */
};

/*
 * Errors: EBADF a descriptor is none of the kind that is due: the helper ends, and may wait for
 * ever then; EPROTO the message is not well-formed; EPIPE; EAGAIN there is no message.
 */
struct gcr_receiver_reply {
	int32_t error; /* an errno, 0: the message follows */
	uint32_t reserved;
	char link[GCR_RECEIVER_LINK_BYTES]; /* EBADF: what the kernel calls the descriptor */
	struct gcr_message_header header;
};
/* Of a message that comes with descriptors. */
#define GCR_RECEIVER_PAYLOAD_MAX (GCR_MESSAGE_PAYLOAD_MAX - sizeof(struct gcr_receiver_reply))

#endif

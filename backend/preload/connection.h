/* SPDX-License-Identifier: MIT */
/*
 * The agent's connection to the daemon: finding it, registering, and a socket that is known to be
 * still ours. One thread at a time: cuInit's until the agent's has started, then the agent's.
 */
#ifndef GCR_PRELOAD_CONNECTION_H
#define GCR_PRELOAD_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/message.h"
#include "lib/protocol.h"

/* Remember where a daemon would be: the environment belongs to the program's threads. */
void gcr_connection_prepare(void);

/* Connect and register. Never blocks. -errno: there is no daemon, or it has no ear for us now. */
int gcr_connection_open(enum gcr_preload_phase phase, const char *generation);

bool gcr_connection_is_open(void);
void gcr_connection_close(void);

/* Is there still a daemon at its other end? Neither allocates nor locks. */
bool gcr_connection_is_alive(void);

/* Send a message without payload; not if that would have to wait. */
void gcr_connection_tell(uint16_t type);

/* To wait on, as wake_fd of others; -1 if there is none. */
int gcr_connection_fd(void);

/*
 * Wait for a message, as gcr_message_receive(). -EPIPE also if the program has closed the socket.
 * -EPROTO: one that makes no sense was dropped. -EINTR: a thread has woken the agent,
 * or what is held was touched.
 */
int gcr_connection_receive(struct gcr_message *ret_message);

/*
 * As gcr_message_send(), but waits while the daemon is slow. On failure (-EPIPE, -ETIMEDOUT) the
 * connection is of no use any more.
 */
int gcr_connection_send(uint16_t type, uint32_t sequence, const void *payload, size_t payload_bytes,
			const int *fds, size_t fds_count);

/* In the child of a fork. */
void gcr_connection_forget(void);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The agent's connection to the daemon: finding the daemon, registering, and checking before each
 * use that the socket still belongs to the library. Used by one thread at a time: by the thread
 * that calls cuInit until the agent has started, then by the agent.
 */
#ifndef GCR_PRELOAD_CONNECTION_H
#define GCR_PRELOAD_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/message.h"
#include "lib/protocol.h"

/* Stores the addresses of the daemon's possible sockets. The environment is read only here, since
 * the program's threads may change it later. */
void gcr_connection_prepare(void);

/*
 * Connects to a daemon and registers, with the library's phase and the generation of its freeze.
 * Never blocks. -errno: there is no daemon, or the daemon cannot take a connection now.
 */
int gcr_connection_open(enum gcr_preload_phase phase, const char *generation);

bool gcr_connection_is_open(void);
void gcr_connection_close(void);

/* Does a daemon still have the other end open? Allocates nothing and takes no lock. */
bool gcr_connection_is_alive(void);

/* Sends a message without payload. If sending would block, the message is dropped. */
void gcr_connection_tell(uint16_t type);

/* The socket, for use as a @wake_fd elsewhere; -1 if there is no connection. */
int gcr_connection_fd(void);

/*
 * Waits for a message, as gcr_message_receive() does. -EPIPE is also returned if the program has
 * closed the socket. -EPROTO: a malformed message was dropped. -EINTR: a thread has woken the
 * agent, or has touched held memory (hold.h).
 */
int gcr_connection_receive(struct gcr_message *ret_message);

/*
 * Sends as gcr_message_send() does, but waits while the daemon is slow. On failure (-EPIPE,
 * -ETIMEDOUT) the connection cannot be used any more.
 */
int gcr_connection_send(uint16_t type, uint32_t sequence, const void *payload, size_t payload_bytes,
			const int *fds, size_t fds_count);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Receiving messages from programs, which may send any descriptor. Closing such a descriptor,
 * inspecting it, and even discarding a message that contains it, can block for ever, since its
 * filesystem can be a user's own. So the daemon peeks at a message first, and lets a helper
 * (gpucr-receive) receive one that has descriptors. The helper passes on only files in memory, and
 * descriptors of GPUs with a HANDLES message that a verb waits for. A helper that has received any
 * other descriptor ends; it is not waited for, and is counted for the peer's user. While two of a
 * user's helpers have not ended, or have ended within the last second, no message with descriptors
 * is received from that user. Helpers that close a user's connections are counted likewise,
 * separately.
 */
#ifndef GCR_FS_HELPER_RECEIVER_H
#define GCR_FS_HELPER_RECEIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/error.h"
#include "lib/message.h"

struct gcr_daemon;
struct gcr_quota_charge;

/*
 * Starts the receivers, once, before the first connection is accepted; daemon->loop, ->quota and
 * the vendors' links exist already. One helper is started. Errors, with a message: -EIO it cannot
 * be started, -ENOMEM.
 */
int gcr_receivers_start(struct gcr_daemon *daemon, const char *helper_directory, bool keep_stderr,
			struct gcr_error *error);

/*
 * Stops the receivers; no other thread uses them, and the loop has stopped. Helpers that do not end
 * are left to init.
 */
void gcr_receivers_stop(void);

/*
 * As gcr_message_receive(), from a connection to the socket. -EPROTO: unexpected descriptors, or
 * the helper could not receive the message; the connection is shut down. -EINTR. Descriptors of a
 * GPU are expected with HANDLES while @awaits_handles, since closing one may release much VRAM, or
 * wait for the driver. Once there is a message, the call takes a second at most. While other
 * programs of the user have used up the helpers, it takes three seconds more, but no longer than
 * @timeout_usec.
 */
int gcr_receiver_receive(int socket, int64_t timeout_usec, int wake_fd, bool awaits_handles,
			 struct gcr_message *ret_message);

/*
 * Closes a connection to the socket with all messages not received. Does not wait. Takes @charge
 * over (NULL: none) and releases it once the connection is closed, which may be later. Without
 * memory the connection may stay open; then *charge stays as it is, and must not be released.
 */
void gcr_receiver_close(int socket, struct gcr_quota_charge *charge);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Receiving from programs that may send any descriptor. To close one, to ask about it, and even to
 * let go of a message that it is in, may wait for ever: its filesystem can be a user's own. So the
 * daemon looks at a message first, leaves one with descriptors to a helper (gpucr-receive), and
 * gets from that only files in memory, and descriptors of GPUs with HANDLES that a verb waits for.
 * A helper that has got another one ends, is not waited for, and is counted for the peer's user:
 * while two of a user's helpers have not ended, or have done so in the last second, no message of
 * that user's with descriptors is received. The same for those that close a user's connections, by
 * themselves.
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
 * Once, before the first connection is accepted; daemon->loop, ->quota and the vendors' links are
 * there. One helper is started. With words: -EIO it cannot be, -ENOMEM.
 */
int gcr_receivers_start(struct gcr_daemon *daemon, const char *helper_directory, bool keep_stderr,
			struct gcr_error *error);

/* No other thread is here, and the loop has stopped. Helpers that do not end are left to init. */
void gcr_receivers_stop(void);

/*
 * As gcr_message_receive(), from a connection to the socket. -EPROTO with descriptors that are not
 * due: that is logged, and the connection shut down. Those of a GPU are due with HANDLES while
 * @awaits_handles: to close one may let go of much VRAM, or wait for the driver. Takes a second at
 * most once there is a message; with a timeout, three seconds more (or the rest of the timeout)
 * while the user's other programs have spent the helpers.
 */
int gcr_receiver_receive(int socket, int64_t timeout_usec, int wake_fd, bool awaits_handles,
			 struct gcr_message *ret_message);

/*
 * Close a connection to the socket, whatever has not been received. Does not wait. @charge (NULL:
 * none) is given back once the connection is closed, which may be later; it is empty on return.
 */
void gcr_receiver_close(int socket, struct gcr_quota_charge *charge);

#endif

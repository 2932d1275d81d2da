/* SPDX-License-Identifier: MIT */
/*
 * The socket on which preload libraries register their process. The kernel identifies the peer
 * (SO_PEERCRED); messages are not trusted, and a peer that violates the protocol is disconnected.
 */
#ifndef GCR_FS_PROCESS_REGISTRY_H
#define GCR_FS_PROCESS_REGISTRY_H

#include "fs/daemon.h"
#include "lib/error.h"

struct gcr_registry;

/*
 * Listens on `socket` in the runtime directory. Errors, with a message: -ENOMEM, and those of
 * making the socket.
 */
int gcr_registry_create(struct gcr_daemon *daemon, struct gcr_registry **ret_registry,
			struct gcr_error *error);
void gcr_registry_destroy(struct gcr_registry *registry);

#endif

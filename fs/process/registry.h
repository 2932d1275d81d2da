/* SPDX-License-Identifier: MIT */
/*
 * The socket on which preload libraries register their process. A peer is who the kernel says it
 * is (SO_PEERCRED); what it sends is not trusted; one that sends something else is dropped.
 */
#ifndef GCR_FS_PROCESS_REGISTRY_H
#define GCR_FS_PROCESS_REGISTRY_H

#include "fs/daemon.h"
#include "lib/error.h"

struct gcr_registry;

/* The socket is `socket` in the runtime directory. */
int gcr_registry_create(struct gcr_daemon *daemon, struct gcr_registry **ret_registry,
			struct gcr_error *error);
void gcr_registry_destroy(struct gcr_registry *registry);

#endif

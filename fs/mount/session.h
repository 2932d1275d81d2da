/* SPDX-License-Identifier: MIT */
/* The FUSE session, which receives the kernel's requests. */
#ifndef GCR_FS_MOUNT_SESSION_H
#define GCR_FS_MOUNT_SESSION_H

#include "fs/daemon.h"
#include "lib/error.h"

/*
 * Creates the session (daemon->session) and mounts it; gcr_session_destroy() unmounts. @ready is
 * called by gcr_session_run() when the kernel has connected to the mount and accesses are answered.
 * Errors come with a message.
 */
int gcr_session_create(struct gcr_daemon *daemon, void (*ready)(struct gcr_daemon *daemon),
		       struct gcr_error *error);
void gcr_session_destroy(struct gcr_daemon *daemon);

/* Unmounts; waiting callers get an error. The session stays. */
void gcr_session_unmount(struct gcr_daemon *daemon);

/* Serves requests until gcr_session_stop() is called or the mount is unmounted from outside. */
int gcr_session_run(struct gcr_daemon *daemon);

/* Makes gcr_session_run() return. May be called from any thread, once. */
void gcr_session_stop(struct gcr_daemon *daemon);

#endif

/* SPDX-License-Identifier: MIT */
/* The FUSE session: requests of the kernel come in here. */
#ifndef GCR_FS_MOUNT_SESSION_H
#define GCR_FS_MOUNT_SESSION_H

#include "fs/daemon.h"
#include "lib/error.h"

/*
 * Mount. The session is daemon->session; gcr_session_destroy() unmounts. @ready is called, by
 * gcr_session_run(), when the kernel has come to the mount: whoever looks there is answered.
 */
int gcr_session_create(struct gcr_daemon *daemon, void (*ready)(struct gcr_daemon *daemon),
		       struct gcr_error *error);
void gcr_session_destroy(struct gcr_daemon *daemon);

/* Take the mount away; who waits for it gets an error. The session stays. */
void gcr_session_unmount(struct gcr_daemon *daemon);

/* Serve until gcr_session_stop() or an unmount from outside. */
int gcr_session_run(struct gcr_daemon *daemon);

/* Make gcr_session_run() return. Any thread; once. */
void gcr_session_stop(struct gcr_daemon *daemon);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Verbs written to the ctl of a place. `thaw` restores a tree of processes from the place: the
 * contents of the place are checked, CRIU restores the CPU side and leaves the tree stopped, every
 * GPU process gets its bytes as if it had been frozen here, and the GPU processes are thawed, all
 * or none. Only then the other processes are continued. An error before that ends the restored
 * tree, and the place is as before.
 */
#ifndef GCR_FS_IMAGE_RESTORE_H
#define GCR_FS_IMAGE_RESTORE_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>

#include "fs/base/credentials.h"
#include "fs/image/place.h"

/*
 * Carries out one write of @length bytes by @parties, whose right to write to the place has been
 * checked. The request is answered here or when the verb ends; with @nonblocking, when the verb has
 * been accepted.
 */
void gcr_restore_write(fuse_req_t request, const struct gcr_parties *parties,
		       struct gcr_place *place, const char *bytes, size_t length, bool nonblocking);

/*
 * Recover restores that an earlier daemon had not finished. The first function is called before any
 * record is read: trees that have not run yet are ended, and their places are as before. The second
 * is called when the records have been handled: trees that may have run continue, and their place
 * is another name of the process.
 */
void gcr_restores_recover(struct gcr_daemon *daemon);
void gcr_restores_recover_thawed(struct gcr_daemon *daemon);

/* Called when the daemon stops: cancels all restores under way and returns when they have ended. */
void gcr_restores_stop(struct gcr_daemon *daemon);

/* The phase for `status`: one static word; "-" if no restore is under way. Lock: place. */
const char *gcr_restore_phase_locked(const struct gcr_place *place);

#endif

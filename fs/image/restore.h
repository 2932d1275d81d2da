/* SPDX-License-Identifier: MIT */
/*
 * What is written to the ctl of a place. `thaw` makes a tree of processes of it: all that it
 * consists of is checked, CRIU restores the CPU side and leaves it stopped, every GPU process gets
 * its bytes as if it had been frozen here, and they are thawed, all or none. Only then the others
 * go on too. Whatever fails before ends what was made, and the place is what it was.
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
 * Carry out one write of @length bytes by these, who may write to the place. The request is
 * answered here or when the verb ends;
 * @nonblocking: when it has been accepted.
 */
void gcr_restore_write(fuse_req_t request, const struct gcr_parties *parties,
		       struct gcr_place *place, const char *bytes, size_t length, bool nonblocking);

/*
 * Places of which an earlier daemon was making processes as it died. First, before any record is
 * read: what has not run yet ends, and the place is what it was. Then, with the records settled:
 * what may have run goes on, and the place is another name of it.
 */
void gcr_restores_recover(struct gcr_daemon *daemon);
void gcr_restores_recover_thawed(struct gcr_daemon *daemon);

/* The daemon stops: those under way are given up; returns when they have ended. */
void gcr_restores_stop(struct gcr_daemon *daemon);

/* For status: one word, static; "-" if nothing is under way. Lock: place. */
const char *gcr_restore_phase_locked(const struct gcr_place *place);

#endif

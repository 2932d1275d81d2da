/* SPDX-License-Identifier: MIT */
/*
 * The verb `dump`: the GPU processes of a tree are frozen, and CRIU writes the CPU side of all of
 * the tree into a place in the store; then the tree ends, or (`leave`) stays frozen.
 *
 * Until the place is published, with all that is in it checked and written, nothing of the tree is
 * gone: whatever fails before leads back to where everybody was. From then on the place is the
 * process, and the tree is ended, by a next daemon if need be.
 */
#ifndef GCR_FS_IMAGE_DUMP_H
#define GCR_FS_IMAGE_DUMP_H

#include "fs/job/operation.h"

/*
 * For each GPU process of the tree whose root is task->command->root. 0: *ret_state is dumped
 * (it has ended), or frozen with `leave`. Errors as of an engine, and *ret_state tells where the
 * process is: normally where it came from.
 */
int gcr_dump(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * `freeze park`: likewise frozen, and then its library is parked, so that somebody else's CRIU can
 * dump it. All or none. What is frozen already is only parked.
 */
int gcr_freeze_and_park(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * At the start, before anything else is recovered: the trees of dumps that an earlier daemon did
 * not bring to their end go on if their place was not published, and end if it was.
 */
void gcr_dump_recover(struct gcr_daemon *daemon);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The verb `dump`: the GPU processes of a tree are frozen, and CRIU writes the CPU side of the
 * whole tree into a place (a named directory in the store, see place.h). Then the tree is ended,
 * or, with `leave`, stays frozen.
 *
 * The dump is committed when the place is published, with its contents checked and written. An
 * error before that is rolled back: every process returns to the state it had. After that the place
 * stands for the process, and the tree is ended, by the next daemon if this one dies.
 */
#ifndef GCR_FS_IMAGE_DUMP_H
#define GCR_FS_IMAGE_DUMP_H

#include "fs/job/operation.h"

/*
 * Carries out the verb for one GPU process of the tree whose root is task->command->root; each of
 * these processes has a task. 0: *ret_state is dumped (the process has ended), or frozen with
 * `leave`. Errors as of an engine's verbs; *ret_state then tells which state the process is in,
 * normally the one in which the verb found the process.
 */
int gcr_dump(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * `freeze park`: freezes the process as gcr_engine_freeze() does and then parks its preload
 * library, so that a CRIU that another program started can dump the process. Either all of the
 * command's processes are frozen and parked, or none. A process that is already frozen is only
 * parked.
 */
int gcr_freeze_and_park(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * Called at start, before anything else is recovered. Trees of dumps that an earlier daemon did not
 * finish continue to run if their place was not published. If the place was published, they are
 * ended or, with `leave`, continued.
 */
void gcr_dump_recover(struct gcr_daemon *daemon);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The verbs `pack` and `unpack`: make the files of frozen processes take less memory, on threads of
 * the lowest priority. They change no state, and delay no other verb: a verb that begins ends the
 * packing of its process within one piece. Packed files can be read and thawed as before.
 */
#ifndef GCR_FS_VERB_PACKING_H
#define GCR_FS_VERB_PACKING_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/process/process.h"
#include "fs/verb/ctl.h"
#include "lib/error.h"

struct gcr_cancellation;
struct gcr_snapshot;
struct gcr_task;
struct gcr_waiter;
struct gcr_packing; /* a packing: one write of one of these verbs; reference-counted */

/*
 * As gcr_operation_start(), for `pack` and `unpack`; but each process is handled by itself, and
 * nothing is rolled back. Errors, with a message: -EBUSY not frozen, or the other verb is under
 * way; -EOPNOTSUPP no files; -ENOMEM, -ESRCH, ...
 */
int gcr_packing_start(struct gcr_daemon *daemon, const struct gcr_command *command,
		      struct gcr_process *const *processes, size_t count, struct gcr_waiter *waiter,
		      struct gcr_error *error);

/*
 * `pack` of one process by the daemon itself: as gcr_packing_start(), with a deadline that allows
 * for the size. Files that are not packed by then can be packed in a later call.
 */
int gcr_packing_start_own(struct gcr_daemon *daemon, struct gcr_process *process,
			  struct gcr_error *error);

/* Is @verb (pack or unpack) under way for @process? */
bool gcr_packing_is_under_way(struct gcr_process *process, enum gcr_verb verb);

/*
 * `cancel`: end the packings that are under way for any of these processes, and return their
 * number. @cancellation (or NULL) waits until each has ended. Packings that @rights do not allow to
 * cancel continue: *ret_denied (both as in gcr_operation_cancel()).
 */
size_t gcr_packing_cancel(struct gcr_process *const *processes, size_t count,
			  const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			  bool *ret_denied);

/*
 * A verb has begun for @process: when this returns, no packing of it is under way, and none begins
 * as long as the process has a task.
 */
void gcr_packing_end(struct gcr_process *process);
/* The daemon stops: end all packings, and wait for that. */
void gcr_packings_stop(struct gcr_daemon *daemon);

/* ---- packing_undo.c ---- */

/*
 * For a verb that needs unpacked files, before it holds the snapshot: unpack all that is packed.
 * The verb's deadline allows for that. -ECANCELED: stopped; -ENOSPC, -EIO, ... with a message: some
 * files are still packed.
 */
int gcr_packing_undo(struct gcr_task *task, struct gcr_snapshot *snapshot, struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The verbs `pack` and `unpack`: the files of frozen processes take less memory, by threads that
 * leave the processors to others. They change no state, and they are in nobody's way: a verb that
 * begins ends them within a piece. What is packed reads and thaws as it was.
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
struct gcr_packing; /* one write of a verb; reference-counted */

/*
 * As gcr_operation_start(), for `pack` and `unpack`: each process for itself, what is done stays.
 * Errors, with words: -EBUSY not frozen, or the other verb is under way; -EOPNOTSUPP it has no
 * files; -ENOMEM, -ESRCH, ...
 */
int gcr_packing_start(struct gcr_daemon *daemon, const struct gcr_command *command,
		      struct gcr_process *const *processes, size_t count, struct gcr_waiter *waiter,
		      struct gcr_error *error);

/*
 * `pack` of one process because the daemon wants it: as gcr_packing_start(), with a deadline that
 * allows for its bytes. What is not packed by then can be begun again.
 */
int gcr_packing_start_own(struct gcr_daemon *daemon, struct gcr_process *process,
			  struct gcr_error *error);

/* Is @verb, one of these two, under way for it? */
bool gcr_packing_is_under_way(struct gcr_process *process, enum gcr_verb verb);

/*
 * `cancel`: end what is under way for any of these; how many that are. @cancellation, which may be
 * NULL, waits until each has ended. Those that @rights do not reach go on: *ret_denied (both as
 * gcr_operation_cancel()).
 */
size_t gcr_packing_cancel(struct gcr_process *const *processes, size_t count,
			  const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			  bool *ret_denied);

/*
 * A verb has begun for it: nothing is under way any more when this returns, nor begins as long as
 * the process has a task.
 */
void gcr_packing_end(struct gcr_process *process);
/* The daemon stops: all end. */
void gcr_packings_stop(void);

/* ---- packing_undo.c ---- */

/*
 * For a verb that needs the files as they were, before it holds them: unpack all that is packed.
 * The verb's deadline allows for it. -ECANCELED: it was stopped; -ENOSPC, -EIO, ... with words:
 * some of it is packed still.
 */
int gcr_packing_undo(struct gcr_task *task, struct gcr_snapshot *snapshot, struct gcr_error *error);

#endif

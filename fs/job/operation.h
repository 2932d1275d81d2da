/* SPDX-License-Identifier: MIT */
/*
 * A verb being carried out. An operation is what was written: one verb for one or several
 * processes, all or none, with those who wait for its end. It has one task per process, each with
 * a thread of its own that alone changes that process's state; the tasks vote before the point of
 * no return.
 */
#ifndef GCR_FS_JOB_OPERATION_H
#define GCR_FS_JOB_OPERATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/process/process.h"
#include "fs/verb/task.h"
#include "lib/error.h"

struct gcr_cancellation;
struct gcr_waiter;

/*
 * Start, join or refuse @command for @processes (references stay the caller's; with swap= the
 * second is the one to be frozen). On 0 the waiter
 * (reference taken) is answered when the operation ends; with @waiter NULL nobody waits.
 * *ret_done is true if there was nothing to do (they are in that state already): then nobody is
 * answered, the caller does it. Errors, with words: -EBUSY, -ENOMEM, -ESRCH.
 */
int gcr_operation_start(struct gcr_daemon *daemon, const struct gcr_command *command,
			struct gcr_process *const *processes, size_t count,
			struct gcr_waiter *waiter, bool *ret_done, struct gcr_error *error);

/*
 * `cancel`: stop what is under way on these processes; how many operations that is. @cancellation,
 * which may be NULL, waits until each has rolled back.
 */
size_t gcr_operation_cancel(struct gcr_process *const *processes, size_t count,
			    const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			    bool *ret_denied);

/*
 * Recovery of a process that an earlier daemon left in the middle of @verb, in two steps: the claim
 * keeps other verbs off the process while the caller restores what its record says; then the
 * recovery starts, or the claim is dropped. *ret_operation is valid until either.
 * -EBUSY: another verb has the process; -ESHUTDOWN: the daemon is stopping; -ENOMEM.
 */
int gcr_operation_claim_recovery(struct gcr_process *process, enum gcr_verb verb,
				 struct gcr_operation **ret_operation);
void gcr_operation_recover(struct gcr_operation *operation);
void gcr_operation_drop_recovery(struct gcr_operation *operation);

/* Before any: a process that ends stops the operation of its task. */
void gcr_operations_create(struct gcr_daemon *daemon);

/* Wait until no operation is under way, at most this long. For the start, after recovery began. */
void gcr_operations_wait(int64_t timeout_usec);

/* The daemon stops: roll back what has not passed its point of no return; wait for all to end. */
void gcr_operations_stop(struct gcr_daemon *daemon);

struct gcr_operation *gcr_operation_ref(struct gcr_operation *operation);
void gcr_operation_unref(struct gcr_operation *operation);

#endif

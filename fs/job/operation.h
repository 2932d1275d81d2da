/* SPDX-License-Identifier: MIT */
/*
 * An operation carries out one write to a ctl file: one verb for one or several processes, all or
 * none, with the writers that wait for its end. An operation has one task per process. Each task
 * has its own thread, which alone changes that process's state. The tasks vote before the point of
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
#include "lib/procfs.h"

struct gcr_cancellation;
struct gcr_waiter;

/*
 * Start, join or refuse @command for @processes (references stay the caller's; with swap= the
 * second is the one to be frozen). @programs: of each process, when its writer was found to have
 * the right to it; a process with another one is not locked (start_stack 0, or NULL: the program
 * that it has when its task begins). If this returns 0, @waiter (a reference is taken) is answered
 * when the operation ends; NULL: no writer waits. *ret_done is true if there was nothing to do
 * because the processes are in the wanted state already: then no operation is started, and the
 * caller answers the waiter. Errors, with a message: -EBUSY, -ENOMEM, -ESRCH, and
 * those of gcr_quota_take().
 */
int gcr_operation_start(struct gcr_daemon *daemon, const struct gcr_command *command,
			struct gcr_process *const *processes,
			const struct gcr_proc_program *programs, size_t count,
			struct gcr_waiter *waiter, bool *ret_done, struct gcr_error *error);

/*
 * `cancel`: stop the operations that are under way on these processes, and return their number.
 * @cancellation (or NULL) waits until each of them has rolled back. *ret_denied is set if @rights
 * do not allow to cancel one; that operation continues.
 */
size_t gcr_operation_cancel(struct gcr_process *const *processes, size_t count,
			    const struct gcr_rights *rights, struct gcr_cancellation *cancellation,
			    bool *ret_denied);

/*
 * Recovery of a process that an earlier daemon left in the middle of @verb, in two steps. The claim
 * keeps other verbs off the process while the caller restores the state in the record; then the
 * caller starts the recovery or drops the claim. *ret_operation is valid until one of these.
 * -EBUSY: another verb has the process; -ESHUTDOWN: the daemon is stopping; -ENOMEM.
 */
int gcr_operation_claim_recovery(struct gcr_process *process, enum gcr_verb verb,
				 struct gcr_operation **ret_operation);
void gcr_operation_recover(struct gcr_operation *operation);
void gcr_operation_drop_recovery(struct gcr_operation *operation);

/* To be called before all others. From then on a process that ends stops its task's operation. */
void gcr_operations_create(struct gcr_daemon *daemon);

/*
 * Wait until no operation is under way, for at most @timeout_usec. Used at the daemon's start,
 * after recovery began.
 */
void gcr_operations_wait(int64_t timeout_usec);

/*
 * The daemon stops: roll back all operations before their point of no return, and wait until all
 * have ended.
 */
void gcr_operations_stop(struct gcr_daemon *daemon);

struct gcr_operation *gcr_operation_ref(struct gcr_operation *operation);
void gcr_operation_unref(struct gcr_operation *operation);

#endif

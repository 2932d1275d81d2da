/* SPDX-License-Identifier: MIT */
/*
 * A task: one process of an operation (fs/job/operation.h). These functions are for the code that
 * carries out the verb: deadline, agreement with the operation's other tasks, and stopping.
 */
#ifndef GCR_FS_VERB_TASK_H
#define GCR_FS_VERB_TASK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/process/process.h"
#include "fs/verb/ctl.h"
#include "lib/error.h"
#include "lib/procfs.h"

struct gcr_swap;
struct gcr_operation; /* reference-counted; see fs/verb/operation_data.h */

struct gcr_task {
	struct gcr_operation *operation;
	struct gcr_process *process;
	const struct gcr_command *command;
	/* Of the process, when its writer was found to have the right to it; 0: unknown */
	struct gcr_proc_program program;
	enum gcr_state from;	     /* state of the process before the verb */
	int64_t started_usec;	     /* monotonic */
	_Atomic(const char *) phase; /* one word for status */
	atomic_bool
		control_pending; /* the writer has been answered, the driver's call still runs */
	uint64_t bytes;		 /* to move, as far as known */
	struct gcr_verb_timing timing; /* the engine's; copied to the process on success */
	bool recovery;		       /* no verb: recovers a process that an earlier daemon left */
	bool is_undoing;	       /* the verb has failed, and its undo runs to the end */
	bool has_passed;	       /* in a swap: committed, whatever the other task does */
	struct gcr_swap *swap;	       /* NULL: none */
	uint64_t unpacked_bytes; /* unpacked before the verb could begin; counts for the deadline */
	struct gcr_snapshot *held; /* no other thread changes it until the task ends; NULL: none */
};

/*
 * The time limit, in microseconds, of a verb whose writer waits: @duration_usec (0: without limit),
 * or less if the kernel does not wait that long for the answer to the request.
 */
int64_t gcr_operation_limit(const struct gcr_daemon *daemon, int64_t duration_usec);

/* ---- on the task's own thread ---- */

/*
 * 0, or the positive errno because of which the operation is to stop (EINTR, ETIMEDOUT, ...). Also
 * 0 for a task with has_passed or is_undoing, unless its process has ended (ESRCH).
 */
int gcr_task_stopped(const struct gcr_task *task);

/* The operation's stop reason (0: none), regardless of has_passed and is_undoing. */
int gcr_task_is_to_stop(const struct gcr_task *task);

/* The operation's deadline, monotonic. */
int64_t gcr_task_deadline_usec(const struct gcr_task *task);

/*
 * The client as which the task waits for what one verb uses at a time: see gcr_fair_client().
 */
uint64_t gcr_task_client(const struct gcr_task *task);

/* Note @bytes to move, and extend the deadline for them if the writer gave none. */
void gcr_task_set_bytes(struct gcr_task *task, uint64_t bytes);

/*
 * The deadline has passed, or the writers have given up, during a call that cannot be taken back:
 * answer them and keep waiting for the call. Only the first call for a task has an effect.
 */
void gcr_task_deadline_passed(struct gcr_task *task);

/*
 * The vote before the point of no return: wait until every task has called this. 0: all tasks have,
 * and this one has to complete its verb. -ECANCELED: roll back.
 */
int gcr_task_commit(struct gcr_task *task);

/*
 * The end of one part of a verb with several parts: wait until all tasks have called this, each
 * with the @result of its part. 0: all parts succeeded, and the next part can be stopped again.
 * Otherwise a negative errno: @result if it is one, else -ECANCELED: another task failed.
 */
int gcr_task_barrier(struct gcr_task *task, int result, struct gcr_error *error);

/*
 * For a task that acts for all, while the others wait in gcr_task_barrier(): the next step cannot
 * be taken back. 0: the operation cannot be stopped any more; -ECANCELED: it was stopped before.
 */
int gcr_task_decide(struct gcr_task *task);

/* The task has failed: stop the operation for that reason, even after gcr_task_decide(). */
void gcr_task_fail(struct gcr_task *task, const struct gcr_error *error);

/* Is this the first task, which does the steps that are done once for all tasks? */
bool gcr_task_is_first(const struct gcr_task *task);
/* The process of the task @index, NULL after the last; a borrowed reference. */
struct gcr_process *gcr_task_sibling(const struct gcr_task *task, unsigned int index);

/*
 * From now to the task's end, no other thread changes the files of @snapshot. Called before the
 * snapshot becomes the process's, or at the task's start. Errors, with a message, as of
 * gcr_snapshot_begin_verb(). Does nothing if the task holds a snapshot already.
 */
int gcr_task_hold_snapshot(struct gcr_task *task, struct gcr_snapshot *snapshot,
			   struct gcr_error *error);

/* Is there no other task whose vote depends on this one? True for a single task, and in a swap. */
bool gcr_task_is_alone(const struct gcr_task *task);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * One process of an operation (fs/job/operation.h), as those see it who carry out its verb: until
 * when, together with which others, and whether it is to stop.
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

struct gcr_exchange;
struct gcr_operation; /* reference-counted; see fs/verb/operation_data.h */

struct gcr_task {
	struct gcr_operation *operation;
	struct gcr_process *process;
	const struct gcr_command *command;
	enum gcr_state from;	       /* the state it was in before the verb */
	int64_t started_usec;	       /* monotonic */
	_Atomic(const char *) phase;   /* what it is doing, one word, for status */
	atomic_bool control_pending;   /* the writer has its answer, the driver's call goes on */
	uint64_t bytes;		       /* to move, as far as it is known */
	struct gcr_verb_timing timing; /* the engine's; it becomes the process's with success */
	bool recovery;		       /* no verb: settles what an earlier daemon left behind */
	bool is_undoing;	       /* its verb has failed, and is taken back to the end */
	bool has_passed; /* of an exchange: it has committed, whatever the other does */
	struct gcr_exchange *exchange; /* what it is one half of, NULL: none */
	uint64_t unpacked_bytes;       /* that had to be, before it could begin; takes time too */
	struct gcr_snapshot *held;     /* nobody changes it until the task ends; NULL: none */
};

/*
 * How long a verb may take whose writer waits: @duration_usec (0: as long as it likes), or less if
 * the kernel would not wait that long for the answer.
 */
int64_t gcr_operation_limit(const struct gcr_daemon *daemon, int64_t duration_usec);

/* ---- on the task's own thread ---- */

/* 0, or the positive errno because of which the operation is to stop (EINTR, ETIMEDOUT, ...). */
int gcr_task_stopped(const struct gcr_task *task);

/* The same, also for one that goes on: has_passed, is_undoing. */
int gcr_task_is_to_stop(const struct gcr_task *task);

/* When the operation has to be over, monotonic. */
int64_t gcr_task_deadline_usec(const struct gcr_task *task);

/* Set the deadline for @bytes to move, if the writer gave none. */
void gcr_task_set_bytes(struct gcr_task *task, uint64_t bytes);

/*
 * The deadline has passed, or the writers have given up, in a call that cannot be taken back:
 * answer them and go on waiting. Once per task; more calls do nothing.
 */
void gcr_task_deadline_passed(struct gcr_task *task);

/*
 * The vote before the point of no return: wait until every task has got here. 0: all have, this
 * one goes through with it whatever comes. Otherwise a negative errno: roll back.
 */
int gcr_task_commit(struct gcr_task *task);

/*
 * The end of one part of a verb that has several: wait until all tasks have got here, each with
 * what has become of its part. 0: all went well, and what follows may be stopped again. Otherwise a
 * negative errno, @result itself if that is one: -ECANCELED, another's failed.
 */
int gcr_task_barrier(struct gcr_task *task, int result, struct gcr_error *error);

/*
 * For one that acts for all, while the others wait in gcr_task_barrier(): what comes now cannot be
 * taken back. 0: nobody can stop it any more; -ECANCELED: it was stopped before.
 */
int gcr_task_decide(struct gcr_task *task);

/* It has failed: the operation is to stop because of that, also if it was decided before. */
void gcr_task_fail(struct gcr_task *task, const struct gcr_error *error);

/* The first of the tasks does what is to be done once for all. */
bool gcr_task_is_first(const struct gcr_task *task);
/* The process of the task @index, NULL after the last; a borrowed reference. */
struct gcr_process *gcr_task_sibling(const struct gcr_task *task, unsigned int index);

/*
 * From now to the task's end nobody else changes the files of @snapshot: before it becomes the
 * process's, or at the start. Errors, with words: as of gcr_snapshot_begin_verb().
 */
int gcr_task_hold_snapshot(struct gcr_task *task, struct gcr_snapshot *snapshot,
			   struct gcr_error *error);

/* Is it the only one of its write: does nobody wait for its vote? */
bool gcr_task_is_alone(const struct gcr_task *task);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Declarations shared by operation.c (which verb is under way for which process) and
 * operation_task.c (one process of an operation).
 */
#ifndef GCR_FS_JOB_OPERATION_PRIVATE_H
#define GCR_FS_JOB_OPERATION_PRIVATE_H

#include "fs/job/operation.h"
#include "fs/verb/operation_data.h"
#include "lib/cleanup.h"

GCR_DEFINE_CLEANUP(struct gcr_operation *, gcr_operation_unref);

/* ---- operation.c ---- */

/* All tasks have ended: answer the waiters. */
void gcr_operation_complete(struct gcr_operation *operation);

/* ---- operation_task.c ---- */

/* Thread function of a task. */
void *gcr_task_run(void *task);
/* End the task with @result and @error, and set its process's state to @state. */
void gcr_task_finish(struct gcr_task *task, int result, enum gcr_state state,
		     struct gcr_error *error);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What operation.c (which verb is under way for which process) and operation_task.c (one process of
 * it) share.
 */
#ifndef GCR_FS_JOB_OPERATION_PRIVATE_H
#define GCR_FS_JOB_OPERATION_PRIVATE_H

#include "fs/job/operation.h"
#include "fs/verb/operation_data.h"
#include "lib/cleanup.h"

GCR_DEFINE_CLEANUP(struct gcr_operation *, gcr_operation_unref);

/* ---- operation.c ---- */

/* All tasks have ended: who waits is answered. */
void gcr_operation_complete(struct gcr_operation *operation);

/* ---- operation_task.c ---- */

/* The thread of a task. */
void *gcr_task_run(void *task);
/* It has ended with @result and @error, and left its process in @state. */
void gcr_task_finish(struct gcr_task *task, int result, enum gcr_state state,
		     struct gcr_error *error);

#endif

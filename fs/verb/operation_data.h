/* SPDX-License-Identifier: MIT */
/*
 * The data of an operation, for its tasks (fs/verb/task.c), and its start and end
 * (fs/job/operation.c). No other file includes this one.
 */
#ifndef GCR_FS_VERB_OPERATION_DATA_H
#define GCR_FS_VERB_OPERATION_DATA_H

#include <stdbool.h>

#include "fs/base/quota.h"
#include "fs/verb/job.h"
#include "fs/verb/task.h"

struct gcr_operation {
	struct gcr_job job;
	struct gcr_quota_charge dump_charge;
	struct gcr_swap *swap; /* NULL: not a swap */

	/* Guarded by job.lock. */
	unsigned int votes;
	unsigned int ended;
	unsigned int at_barrier; /* tasks that wait in gcr_task_barrier() */
	unsigned int barriers_passed;
	bool barrier_failed;	/* the last barrier */
	struct gcr_error error; /* of the first task that failed */
	bool inconsistent;	/* some process is neither in its old state nor in the wanted one */

	struct gcr_task tasks[]; /* one for each of the job's processes */
};

/* ---- task.c ---- */

/*
 * The operation's deadline (monotonic) with @bytes to move: that of the writer, else the default.
 */
int64_t gcr_operation_deadline(const struct gcr_operation *operation, uint64_t bytes);
/* Let all tasks continue if each task that has not ended is at the barrier. Lock: operation. */
void gcr_operation_end_barrier_locked(struct gcr_operation *operation);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Unpacks a snapshot for a verb that waits for the files, with several threads of normal priority,
 * which stop within one piece when the verb is to stop.
 */
#include <errno.h>
#include <pthread.h>

#include "fs/pack/pack_table.h"
#include "fs/store/subtree.h"
#include "fs/store/pack_work.h"
#include "fs/store/store.h"
#include "fs/verb/packing.h"
#include "fs/verb/task.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

struct undo {
	const struct gcr_task *task;
	struct gcr_pack_work *work;

	pthread_mutex_t lock; /* guards the following fields */
	int result;	      /* the first result that is not 0 */
	struct gcr_error error;
};

static int result_of(struct undo *undo)
{
	GCR_LOCK_SCOPE(&undo->lock);
	return undo->result;
}

/*
 * Unpacks the next piece: 1, or 0 if there is none. -ECANCELED without a message: the task is to
 * stop. Other errors, with a message, also if a file has to stay packed.
 */
static int step(struct undo *undo, struct gcr_error *error)
{
	const struct gcr_process *process = undo->task->process;
	int result;

	if (gcr_task_stopped(undo->task))
		return -ECANCELED;
	result = gcr_pack_work_step(undo->work, NULL, NULL, error);
	if (result > 0)
		gcr_store_use_claim(process->daemon->store, process->pid, process->start_ticks,
				    GCR_PACK_PIECE_BYTES);
	return result < 0 || !gcr_pack_work_result(undo->work, error) ? result : -error->number;
}

static void *unpack(void *data)
{
	struct undo *undo = data;
	struct gcr_error error = {0};
	int result = 1;

	while (result > 0 && !result_of(undo))
		result = step(undo, &error);
	pthread_mutex_lock(&undo->lock);
	if (result < 0 && !undo->result) {
		undo->result = result;
		undo->error = error;
	}
	pthread_mutex_unlock(&undo->lock);
	return NULL;
}

static void *run(void *data)
{
	pthread_setname_np(pthread_self(), "gpucrfs-unpack");
	return unpack(data);
}

/* Run @count threads, this one included; if no other can be created, this one does all the work. */
static void run_all(struct undo *undo, unsigned int count)
{
	pthread_t threads[GCR_PACK_WORK_THREADS_MAX];
	unsigned int started = 0;

	while (started + 1 < count && !pthread_create(&threads[started], NULL, run, undo))
		started++;
	unpack(undo);
	while (started)
		pthread_join(threads[--started], NULL);
}

int gcr_packing_undo(struct gcr_task *task, struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	_cleanup_(gcr_pack_work_destroy_cleanup) struct gcr_pack_work *work = NULL;
	struct undo undo = {.task = task, .lock = PTHREAD_MUTEX_INITIALIZER};
	unsigned int count = gcr_pack_work_threads();
	struct gcr_pack_figures figures;
	int result;

	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &figures);
	if (!figures.pieces)
		return 0;
	atomic_store(&task->phase, "unpack");
	/* Even if the verb fails, there is something to pack again. */
	pthread_mutex_lock(&task->process->lock);
	task->process->was_packed = false;
	pthread_mutex_unlock(&task->process->lock);
	result = gcr_pack_work_create(snapshot, true, false, &work, error);
	if (result < 0)
		return result;
	undo.work = work;
	run_all(&undo, figures.pieces < count ? (unsigned int)figures.pieces : count);
	if (undo.result < 0)
		*error = undo.error;
	return undo.result;
}

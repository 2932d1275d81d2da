/* SPDX-License-Identifier: MIT */
/*
 * Registers files with workers. Requests are repeated until the worker reports that it has
 * registered all files.
 */
#include "fs/process/pin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/helper/helper.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* The worker answers at once and registers in the background. */
#define ANSWER_USEC (1 * GCR_USEC_PER_SEC)

struct pin_job {
	struct gcr_daemon *daemon;
	struct gcr_helpers *helpers;
	pid_t workers;	/* sum of their pids: a new worker changes it */
	bool only_look; /* only determine the workers */
	uint16_t type;	/* of the message: pin or unpin */
};

/* Files of one GPU, from a snapshot or else from the pool. */
struct pin_files {
	struct gcr_snapshot *snapshot;
	struct gcr_store *store;
	uint64_t *numbers;
	size_t next;
	size_t end;
};

/* Opens the next few files: all of them may exceed the daemon's descriptor limit. */
static size_t open_some(struct pin_files *files, int fds[GCR_MESSAGE_FDS_MAX])
{
	size_t count = 0;

	for (; files->next < files->end && count < GCR_MESSAGE_FDS_MAX; files->next++) {
		int fd = files->snapshot
				 ? gcr_snapshot_open_file(files->snapshot, files->next, true)
				 : gcr_store_open_pool_file(files->store,
							    files->numbers[files->next]);

		/* Descriptors become free after these files have been sent. */
		if (fd == -EMFILE && count)
			break;
		if (fd >= 0)
			fds[count++] = fd;
	}
	return count;
}

/* Has packing of the files begun? See gcr_unpin_files(). */
static bool is_packed(const struct pin_files *files)
{
	return files->snapshot && gcr_subtree_packs(gcr_snapshot_subtree(files->snapshot));
}

/*
 * Sends the files to one worker of the GPU. -EAGAIN: the worker has not finished, or is in use;
 * -EBUSY: packing of the files has begun.
 */
static int tell_one(struct pin_job *job, const uint8_t *uuid, bool is_second,
		    struct pin_files *files)
{
	struct gcr_helper *worker = NULL;
	int fds[GCR_MESSAGE_FDS_MAX];
	struct gcr_result answer = {0};
	struct gcr_error error;
	int result = gcr_helpers_borrow_worker(job->helpers, uuid, is_second, &worker);
	bool is_through = true;
	size_t count;

	while (!result && (count = open_some(files, fds))) {
		/*
		 * Stop: the packer waits for the end of this registration before the files are
		 * unregistered.
		 */
		if (job->type == GCR_MESSAGE_PIN && is_packed(files))
			result = -EBUSY;
		if (!result)
			result = gcr_helper_request_fds(worker, job->type, NULL, 0, fds, count,
							&error);
		if (!result)
			result = gcr_helper_result(worker, ANSWER_USEC, -1, &answer);
		/* EAGAIN is expected before all files have been sent. */
		if (!result && answer.error != EAGAIN)
			result = -answer.error;
		is_through = is_through && answer.error != EAGAIN;
		for (size_t i = 0; i < count; i++)
			close(fds[i]);
	}
	gcr_helper_put(worker);
	/*
	 * For pinning the last answer covers all files; for unpinning each answer covers its own.
	 */
	if (!result && job->type == GCR_MESSAGE_UNPIN)
		return is_through ? 0 : -EAGAIN;
	return result ? result : -answer.error;
}

/* Sends the files to each idle worker: after a swap there are two, and either may need them. */
static int tell(struct pin_job *job, const uint8_t *uuid, struct pin_files *files)
{
	size_t first = files->next;
	int result = tell_one(job, uuid, false, files);

	if (!gcr_helpers_idle_worker(job->helpers, uuid, true))
		return result;
	files->next = first;
	if (!result || result == -EAGAIN) {
		int second = tell_one(job, uuid, true, files);

		result = second ? second : result;
	}
	return result;
}

/* Has each running worker unregister the files. */
static int give_up(struct pin_job *job, const uint8_t *uuid, struct pin_files *files)
{
	size_t first = files->next;
	int result = 0;

	for (int is_second = 0; is_second < 2; is_second++) {
		int one;

		if (!gcr_helpers_has_worker(job->helpers, uuid, is_second))
			continue;
		files->next = first;
		one = tell_one(job, uuid, is_second, files);
		result = one ? one : result;
	}
	return result;
}

/*
 * Adds the pids of the idle workers to job->workers: the sum stands for these workers. -EAGAIN: the
 * first worker does not run, or is in use.
 */
static int look(struct pin_job *job, const uint8_t *uuid)
{
	pid_t pid = gcr_helpers_idle_worker(job->helpers, uuid, false);

	job->workers += pid + gcr_helpers_idle_worker(job->helpers, uuid, true);
	return pid ? 0 : -EAGAIN;
}

/* Handles the files of one GPU from @first on; *ret_next is the start of the next GPU's files. */
static int pin_some(struct pin_job *job, struct gcr_snapshot *snapshot, size_t first,
		    size_t *ret_next)
{
	const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, first);
	struct pin_files files = {.snapshot = snapshot, .next = first, .end = first};
	size_t count = gcr_snapshot_count(snapshot);

	while (files.end < count) {
		const struct gcr_extent *other = gcr_snapshot_extent(snapshot, files.end);

		if (memcmp(other->gpu, extent->gpu, GCR_UUID_BYTES) || other->kind != extent->kind)
			break;
		files.end++;
	}
	*ret_next = files.end;
	if (job->only_look)
		return look(job, extent->gpu);
	return job->type == GCR_MESSAGE_UNPIN ? give_up(job, extent->gpu, &files)
					      : tell(job, extent->gpu, &files);
}

static int pin_snapshot(struct pin_job *job, struct gcr_snapshot *snapshot)
{
	bool is_for_all = job->type == GCR_MESSAGE_UNPIN;
	size_t count = gcr_snapshot_count(snapshot);
	int result = 0;

	/* Managed memory, at the end of the table, does not pass through the worker. */
	for (size_t first = 0; first < count && (!result || is_for_all);) {
		int one;

		if (gcr_snapshot_extent(snapshot, first)->kind != GCR_MEMORY_DEVICE)
			break;
		one = pin_some(job, snapshot, first, &first);
		result = one ? one : result;
	}
	return result;
}

static int pin_pool(struct pin_job *job, const struct gcr_process *process, const uint8_t *uuid)
{
	_cleanup_free_ uint64_t *numbers = NULL;
	struct pin_files files = {.store = job->daemon->store};
	int result;

	if (job->only_look)
		return look(job, uuid);
	result = gcr_store_pool_files(files.store, process->pid, process->start_ticks, &numbers,
				      &files.end);
	files.numbers = numbers;
	return result < 0 ? result : tell(job, uuid, &files);
}

/*
 * Selects the files to register: the snapshot, with a reference, or, if that is NULL, the pool.
 * False: there are no files to register, or a verb or packing is under way. end_pinning() follows.
 */
static bool begin_pinning(struct gcr_process *process, struct gcr_snapshot **ret_snapshot,
			  uint8_t uuid[GCR_UUID_BYTES], pid_t *ret_pinned_by)
{
	GCR_LOCK_SCOPE(&process->lock);
	*ret_snapshot = NULL;
	if (process->task || process->packing)
		return false;
	if (process->snapshot && gcr_subtree_packs(gcr_snapshot_subtree(process->snapshot))) {
		/* Packed files are not read through their registration. */
		process->pinned_by = 0;
		return false;
	}
	if (process->snapshot)
		*ret_snapshot = gcr_snapshot_ref(process->snapshot);
	else if (process->state != GCR_STATE_RUNNING || !process->has_pool_gpu)
		return false;
	memcpy(uuid, process->pool_gpu, GCR_UUID_BYTES);
	*ret_pinned_by = process->pinned_by;
	process->is_pinning = true;
	return true;
}

/*
 * Ends a registration that begin_pinning() has begun. @was_told: the workers got all files;
 * @pinned_by, the sum of their pids, is kept then, unless a verb or packing has begun since, which
 * sets pinned_by itself.
 */
static void end_pinning(struct gcr_process *process, bool was_told, pid_t pinned_by)
{
	GCR_LOCK_SCOPE(&process->lock);
	process->is_pinning = false;
	if (was_told && !process->task && !process->packing)
		process->pinned_by = pinned_by;
}

void gcr_pin_files(struct gcr_daemon *daemon, struct gcr_process *process)
{
	struct pin_job job = {
		.daemon = daemon,
		.helpers = process->vendor->helpers,
		.only_look = true,
		.type = GCR_MESSAGE_PIN,
	};
	struct gcr_snapshot *snapshot;
	uint8_t uuid[GCR_UUID_BYTES];
	bool was_told = false;
	pid_t pinned_by;
	int result;

	if (!begin_pinning(process, &snapshot, uuid, &pinned_by))
		return;
	result = snapshot ? pin_snapshot(&job, snapshot) : pin_pool(&job, process, uuid);
	if (!result && job.workers != pinned_by) {
		was_told = true;
		job.only_look = false;
		result = snapshot ? pin_snapshot(&job, snapshot) : pin_pool(&job, process, uuid);
	}
	end_pinning(process, was_told, result < 0 ? 0 : job.workers);
	gcr_snapshot_unref(snapshot);
}

/*
 * Forgets the workers that have registered the files. The caller has begun to pack the snapshot, so
 * no file is registered again. False: a registration is still under way.
 */
static bool end_of_pinning(struct gcr_process *process)
{
	GCR_LOCK_SCOPE(&process->lock);
	if (!process->is_pinning)
		process->pinned_by = 0;
	return !process->is_pinning;
}

int gcr_unpin_files(struct gcr_process *process, struct gcr_snapshot *snapshot)
{
	struct pin_job job = {
		.helpers = process->vendor->helpers,
		.type = GCR_MESSAGE_UNPIN,
	};

	return end_of_pinning(process) ? pin_snapshot(&job, snapshot) : -EAGAIN;
}

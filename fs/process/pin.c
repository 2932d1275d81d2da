/* SPDX-License-Identifier: MIT */
/* A worker is asked until it says that it has registered all it was told of. */
#include "fs/process/pin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/helper/helper.h"
#include "fs/store/folder.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* It answers at once; what it has to do is done in the background. */
#define ANSWER_USEC (1 * GCR_USEC_PER_SEC)

struct pin_job {
	struct gcr_daemon *daemon;
	struct gcr_helpers *helpers;
	pid_t workers;	/* the sum of their pids: another one makes another sum */
	bool only_look; /* at who they are */
	uint16_t type;	/* of the message */
};

/* Files of one GPU, in a snapshot or else in the pool. */
struct pin_files {
	struct gcr_snapshot *snapshot;
	struct gcr_store *store;
	uint64_t *numbers;
	size_t next;
	size_t end;
};

/* A few of them at a time: there may be more than the daemon may have open. */
static size_t open_some(struct pin_files *files, int fds[GCR_MESSAGE_FDS_MAX])
{
	size_t count = 0;

	for (; files->next < files->end && count < GCR_MESSAGE_FDS_MAX; files->next++) {
		int fd = files->snapshot
				 ? gcr_snapshot_open_file(files->snapshot, files->next, true)
				 : gcr_store_open_pool_file(files->store,
							    files->numbers[files->next]);

		/* When those here have been told of, there are some again. */
		if (fd == -EMFILE && count)
			break;
		if (fd >= 0)
			fds[count++] = fd;
	}
	return count;
}

/* It has begun to be packed: see gcr_unpin_files(). */
static bool is_packed(const struct pin_files *files)
{
	return files->snapshot && gcr_folder_packs(gcr_snapshot_folder(files->snapshot));
}

/* Tell a worker of a GPU of files. -EAGAIN: it is not through, or somebody else has it. */
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
		/* Who is to give them up waits until these here have been told of. */
		if (job->type == GCR_MESSAGE_PIN && is_packed(files))
			result = -EBUSY;
		if (!result)
			result = gcr_helper_request_fds(worker, job->type, NULL, 0, fds, count,
							&error);
		if (!result)
			result = gcr_helper_result(worker, ANSWER_USEC, -1, &answer);
		/* Until all are told of, there is more to come anyway. */
		if (!result && answer.error != EAGAIN)
			result = -answer.error;
		is_through = is_through && answer.error != EAGAIN;
		for (size_t i = 0; i < count; i++)
			close(fds[i]);
	}
	gcr_helper_put(worker);
	/* Of what is registered the last answer tells; of what is given up each its own. */
	if (!result && job->type == GCR_MESSAGE_UNPIN)
		return is_through ? 0 : -EAGAIN;
	return result ? result : -answer.error;
}

/* Either of the two that an exchange leaves may be the one that needs them next. */
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

/* By each of the two that is there. */
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

/* -EAGAIN: the worker does not run, or is in use. */
static int look(struct pin_job *job, const uint8_t *uuid)
{
	pid_t pid = gcr_helpers_idle_worker(job->helpers, uuid, false);

	job->workers += pid + gcr_helpers_idle_worker(job->helpers, uuid, true);
	return pid ? 0 : -EAGAIN;
}

/* The files of one GPU from @first on; *ret_next is where those of another begin. */
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

	/* Managed memory, at the end of the table, does not go through the worker. */
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

/* What is to be registered: its snapshot, with a reference, or, if that is NULL, its pool. */
static bool begin_pinning(struct gcr_process *process, struct gcr_snapshot **ret_snapshot,
			  uint8_t uuid[GCR_UUID_BYTES], pid_t *ret_pinned_by)
{
	GCR_LOCK_SCOPE(&process->lock);
	*ret_snapshot = NULL;
	if (process->task || process->packing)
		return false;
	if (process->snapshot && gcr_folder_packs(gcr_snapshot_folder(process->snapshot))) {
		/* One that has been packed is not used from where it is registered. */
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

/* A verb, or packing, that has begun meanwhile says itself what is so. */
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

/* Nothing is registered any more from here on: @snapshot has its packs already. */
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

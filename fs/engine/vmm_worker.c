/* SPDX-License-Identifier: MIT */
/*
 * Sessions in the workers of a process's GPUs. A worker may be killed at any moment: until the
 * commit of a freeze the program has descriptors of its own, and on thaw the store has the bytes.
 */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/engine/swap.h"
#include "fs/pack/packs.h"
#include "fs/process/gpus.h"
#include "fs/store/subtree.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"

#define SLICE_USEC	     (100 * GCR_USEC_PER_MSEC)
/* How long a killed worker may take to be gone, with all its memory to free. */
#define ENDING_USEC	     (5 * GCR_USEC_PER_SEC)
/*
 * How long to wait for a copy that is no longer wanted. Copies of up to 40 GiB end by then, and a
 * new worker starts by then.
 */
#define COPY_GRACE_USEC	     GCR_USEC_PER_SEC
/* VRAM that a restore takes beyond the amount that NVML counted; see driver_memory.c. */
#define BALLAST_MARGIN_BYTES (64ull << 20)

/*
 * Kills a worker and waits for its end: until then the worker may write to the snapshot's files,
 * and has VRAM that the next worker will need. If it does not end in time, the snapshot is tainted.
 */
static void drop(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker)
{
	if (!worker->helper)
		return;
	gcr_helper_kill(worker->helper);
	if (gcr_helper_await_end(worker->helper, ENDING_USEC) < 0 && vmm->snapshot)
		gcr_snapshot_taint(vmm->snapshot);
	gcr_helper_put(TAKE_PTR(worker->helper));
	worker->is_copying = false;
}

static int gpu_index(struct gcr_vmm *vmm, const struct gcr_vmm_worker *worker)
{
	return gcr_gpus_index(vmm->driver.daemon->gpus, worker->uuid);
}

static int died(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker, struct gcr_error *error)
{
	drop(vmm, worker);
	return gcr_error_set(error, EIO, "the GPU's worker died");
}

/*
 * Waits for a worker's answer; the descriptors @fds that come with it are the caller's. -ESRCH: the
 * process has ended; -ECANCELED: the operation is to stop; -EIO: the worker has died; after these
 * three the worker is dropped. Else the worker's own error.
 */
static int await(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker, struct gcr_result *answer,
		 int fds[GCR_MESSAGE_FDS_MAX], size_t *fds_count, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;

	for (;;) {
		int result = gcr_helper_result_fds(worker->helper, SLICE_USEC,
						   driver->process->pidfd, answer, fds, fds_count);

		if (!result && answer->error)
			return gcr_error_set(error, answer->error, "%s", answer->words);
		if (!result)
			return 0;
		if (result == -EINTR) {
			drop(vmm, worker);
			return gcr_error_set(error, ESRCH, "process %d has ended",
					     (int)driver->process->pid);
		}
		if (result != -ETIMEDOUT)
			return died(vmm, worker, error);
		if (gcr_driver_session_must_leave(driver) || gcr_task_stopped(driver->task)) {
			drop(vmm, worker);
			return gcr_driver_session_stopped(error);
		}
		gcr_driver_check_deadline(driver);
	}
}

static void close_all(int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		close(fds[i]);
}

static int ask(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker, uint16_t type,
	       const void *payload, size_t bytes, const int *fds, size_t fds_count,
	       struct gcr_error *error)
{
	int extra[GCR_MESSAGE_FDS_MAX];
	struct gcr_result answer;
	size_t extra_count = 0;
	int result;

	if (!worker->helper)
		return gcr_error_set(error, EIO, "the GPU's worker died");
	result =
		gcr_helper_request_fds(worker->helper, type, payload, bytes, fds, fds_count, error);
	if (result < 0)
		return died(vmm, worker, error);
	result = await(vmm, worker, &answer, extra, &extra_count, error);
	close_all(extra, extra_count);
	return result;
}

/*
 * Sets the error for extents of one GPU that are not all next to each other, and leaves no worker
 * in vmm->workers, so that none has only a part of its GPU's memory. -EPROTO.
 */
static int refuse_order(struct gcr_vmm *vmm, struct gcr_error *error)
{
	vmm->workers_count = 0;
	return gcr_error_set(error, EPROTO, "its memory is not listed GPU by GPU");
}

int gcr_vmm_assign(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_vmm_worker *worker = NULL;

	vmm->workers_count = 0;
	for (size_t i = 0; i < vmm->device_count; i++) {
		const uint8_t *uuid = gcr_driver_destination(&vmm->driver, vmm->extents[i].gpu);

		if (!worker || memcmp(worker->uuid, uuid, GCR_UUID_BYTES)) {
			/* A second session on a GPU would wait for the first one to end. */
			for (unsigned int j = 0; j < vmm->workers_count; j++)
				if (!memcmp(vmm->workers[j].uuid, uuid, GCR_UUID_BYTES))
					return refuse_order(vmm, error);
			if (vmm->workers_count == GCR_GPUS_MAX)
				return refuse_order(vmm, error);
			worker = &vmm->workers[vmm->workers_count++];
			*worker = (struct gcr_vmm_worker){.first = (uint32_t)i};
			memcpy(worker->uuid, uuid, GCR_UUID_BYTES);
		}
		worker->count++;
	}
	return 0;
}

uint32_t gcr_vmm_gpu_mask(struct gcr_vmm *vmm)
{
	uint32_t mask = 0;

	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		int index = gpu_index(vmm, &vmm->workers[i]);

		if (index >= 0)
			mask |= 1u << index;
	}
	return mask;
}

/* Writes the table of the worker's extents; returns its descriptor or -errno. */
static int write_table(const struct gcr_vmm *vmm, const struct gcr_vmm_worker *worker)
{
	_cleanup_free_ struct gcr_extent *extents = calloc(worker->count + 1, sizeof(*extents));

	if (!extents)
		return -ENOMEM;
	for (uint32_t i = 0; i < worker->count; i++) {
		extents[i] = vmm->extents[worker->first + i];
		if (gcr_snapshot_is_known(vmm->snapshot, worker->first + i))
			extents[i].flags |= GCR_EXTENT_KNOWN;
		else
			extents[i].flags &= ~(uint32_t)GCR_EXTENT_KNOWN;
	}
	return gcr_extents_write(extents, worker->count);
}

static int open_session(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker, uint16_t type,
			uint32_t copies_in_flight, struct gcr_error *error)
{
	struct gcr_session session = {
		.count = worker->count,
		.copies_in_flight = copies_in_flight,
		.first_chunk = gcr_snapshot_first_chunk(vmm->snapshot, worker->first),
	};
	_cleanup_close_ int table = write_table(vmm, worker);
	struct gcr_subtree *subtree = gcr_snapshot_subtree(vmm->snapshot);
	struct gcr_packs *packs = gcr_subtree_packs(subtree);
	int fds[5] = {table, gcr_snapshot_directory(vmm->snapshot),
		      gcr_digest_buffer_fd(vmm->digests), gcr_subtree_tables(subtree)};
	size_t fds_count = 3;

	if (gcr_swap_thaws(vmm->driver.task))
		session.flags |= GCR_SESSION_IN_PARTS;
	if (vmm->driver.task->command->unverified)
		session.flags |= GCR_SESSION_UNVERIFIED;
	if (gcr_subtree_is_touched(subtree))
		session.flags |= GCR_SESSION_UNREGISTERED;
	/* A packed snapshot is never copied to. */
	if (packs && type == GCR_MESSAGE_SESSION_IN) {
		session.flags |= GCR_SESSION_PACKED;
		fds[4] = gcr_packs_directory(packs);
		fds_count = 5;
	}
	if (table < 0)
		return gcr_error_set(error, -table, "a table for the worker cannot be made: %s",
				     strerror(-table));
	return ask(vmm, worker, type, &session, sizeof(session), fds, fds_count, error);
}

/* A wait for a worker. */
struct wait {
	struct gcr_driver_session *driver;
	int64_t until_usec; /* before that the deadline is not looked at */
};

static bool must_stop(struct gcr_driver_session *driver)
{
	return gcr_task_stopped(driver->task) || gcr_driver_session_must_leave(driver);
}

static bool is_to_stop(void *data)
{
	struct wait *wait = data;
	struct gcr_driver_session *driver = wait->driver;

	if (must_stop(driver) || gcr_swap_gives_up(driver->task))
		return true;
	/* Copies of other tasks may take long, but those have deadlines of their own. */
	if (gcr_clock_usec() > wait->until_usec)
		gcr_driver_check_deadline(driver);
	return false;
}

/*
 * Takes one worker, and waits for its turn. -ECANCELED: the operation is to stop; -ETIMEDOUT: the
 * turn or the worker's hello did not come in time; errors of gcr_helpers_take_worker().
 */
static int take(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	struct wait data = {
		.driver = driver,
		.until_usec = gcr_clock_usec() + GCR_DRIVER_HELPER_WAIT_USEC,
	};
	bool holds = driver->admitted || driver->has_workers || driver->task->swap;
	struct gcr_worker_wait wait = {
		.client = gcr_task_client(driver->task),
		.is_urgent = holds,
		.timeout_usec = -1,
		.wake_fd = driver->process->pidfd,
		.is_to_stop = is_to_stop,
		.data = &data,
	};
	int result;

	worker->is_second = gcr_swap_needs_second(driver->task);
	result = gcr_helpers_take_worker(driver->vendor->helpers, worker->uuid, worker->is_second,
					 &wait, &worker->helper, error);
	if (holds)
		gcr_driver_note_queued(driver, wait.queued_usec);
	if (!result) {
		gcr_helper_set_user(worker->helper, driver->process->pid);
		driver->has_workers = true;
	}
	if (result != -ECANCELED)
		return result;
	if (must_stop(driver))
		return gcr_driver_session_stopped(error);
	return gcr_error_set(error, ETIMEDOUT, "the GPU's worker is not free");
}

int gcr_vmm_open_sessions(struct gcr_vmm *vmm, uint16_t type, uint32_t copies_in_flight,
			  struct gcr_error *error)
{
	unsigned int gpus_count = gcr_gpus_count(vmm->driver.daemon->gpus);
	int result = 0;

	/* Every task takes workers in the order of the GPUs' indexes: this prevents deadlock. */
	for (unsigned int index = 0; index < gpus_count && !result; index++)
		for (unsigned int i = 0; i < vmm->workers_count && !result; i++) {
			struct gcr_vmm_worker *worker = &vmm->workers[i];

			if (gpu_index(vmm, worker) != (int)index)
				continue;
			result = take(vmm, worker, error);
			if (!result)
				result = open_session(vmm, worker, type, copies_in_flight, error);
		}
	return result;
}

int gcr_vmm_import(struct gcr_vmm *vmm, uint32_t first, uint32_t count, const int *fds,
		   struct gcr_error *error)
{
	int result = 0;

	if (first > vmm->device_count || count > vmm->device_count - first)
		return gcr_error_set(error, EPROTO, "descriptors of memory that it does not have");
	for (unsigned int i = 0; i < vmm->workers_count && !result && count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];
		struct gcr_range range = {.first = first - worker->first, .count = count};

		if (first < worker->first || first >= worker->first + worker->count)
			continue;
		if (range.count > worker->count - range.first)
			range.count = worker->count - range.first;
		worker->has_imported = true;
		result = ask(vmm, worker, GCR_MESSAGE_IMPORT, &range, sizeof(range), fds,
			     range.count, error);
		for (uint32_t j = 0; j < range.count && !result; j++)
			vmm->imported_bytes += vmm->extents[first + j].bytes;
		first += range.count;
		count -= range.count;
		fds += range.count;
	}
	return result;
}

int gcr_vmm_begin_create(struct gcr_vmm *vmm, struct gcr_error *error)
{
	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];

		if (!worker->helper ||
		    gcr_helper_request(worker->helper, GCR_MESSAGE_CREATE, NULL, 0, error) < 0)
			return died(vmm, worker, error);
		worker->is_creating = true;
	}
	return 0;
}

int gcr_vmm_end_create(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int first = 0;

	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];
		int extra[GCR_MESSAGE_FDS_MAX];
		struct gcr_error one = {0};
		size_t extra_count = 0;
		struct gcr_result answer;
		int result;

		if (!worker->is_creating)
			continue;
		worker->is_creating = false;
		result = await(vmm, worker, &answer, extra, &extra_count, &one);
		close_all(extra, extra_count);
		if (result < 0 && !first) {
			first = result;
			*error = one;
		}
	}
	return first;
}

/* Bytes of VRAM that the driver's share will take on GPU @uuid, with a margin; 0: none. */
static uint64_t driver_bytes(struct gcr_vmm *vmm, const uint8_t uuid[GCR_UUID_BYTES])
{
	struct gcr_process *process = vmm->driver.process;
	uint64_t bytes = 0;

	pthread_mutex_lock(&process->lock);
	for (unsigned int i = 0; i < process->shares_count; i++)
		if (!memcmp(gcr_driver_destination(&vmm->driver, process->shares[i].uuid), uuid,
			    GCR_UUID_BYTES))
			bytes += process->shares[i].bytes + BALLAST_MARGIN_BYTES;
	pthread_mutex_unlock(&process->lock);
	return bytes;
}

int gcr_vmm_take_ballast(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = 0;

	for (unsigned int i = 0; i < vmm->workers_count && !result; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];
		struct gcr_reserve_request request = {.bytes = driver_bytes(vmm, worker->uuid)};

		/*
		 * The worker has its ballast from an earlier attempt, for which another GPU had too
		 * little VRAM.
		 */
		if (!request.bytes || vmm->driver.ballast & 1u << gpu_index(vmm, worker))
			continue;
		result = ask(vmm, worker, GCR_MESSAGE_RESERVE, &request, sizeof(request), NULL, 0,
			     error);
		if (result == -ENOMEM)
			gcr_error_set(error, ENOMEM,
				      "beside the contents the driver needs %" PRIu64
				      " MiB on GPU %d, which are not free; freeze or end another "
				      "process, then try again",
				      request.bytes >> 20, gpu_index(vmm, worker));
		if (!result)
			vmm->driver.ballast |= 1u << gpu_index(vmm, worker);
	}
	return result;
}

int gcr_vmm_drop_ballast(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = 0;

	for (unsigned int i = 0; i < vmm->workers_count && !result; i++)
		result = ask(vmm, &vmm->workers[i], GCR_MESSAGE_RELEASE, NULL, 0, NULL, 0, error);
	vmm->driver.ballast = 0;
	return result;
}

bool gcr_vmm_end_idle_workers(struct gcr_vmm *vmm)
{
	bool has_ended = false;

	for (unsigned int i = 0; i < vmm->workers_count; i++)
		if (gcr_driver_end_idle_worker(&vmm->driver, vmm->workers[i].uuid,
					       !vmm->workers[i].is_second))
			has_ended = true;
	return has_ended;
}

int gcr_vmm_begin_copy(struct gcr_vmm *vmm, struct gcr_error *error)
{
	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];

		if (!worker->helper ||
		    gcr_helper_request(worker->helper, GCR_MESSAGE_COPY, NULL, 0, error) < 0)
			return died(vmm, worker, error);
		worker->is_copying = true;
	}
	return 0;
}

int gcr_vmm_end_copy(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = 0;

	for (unsigned int i = 0; i < vmm->workers_count && !result; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];
		int extra[GCR_MESSAGE_FDS_MAX];
		size_t extra_count = 0;
		struct gcr_result answer = {0};

		if (!worker->helper)
			return gcr_error_set(error, EIO, "the GPU's worker died");
		if (!worker->is_copying)
			continue;
		result = await(vmm, worker, &answer, extra, &extra_count, error);
		close_all(extra, extra_count);
		worker->is_copying = false;
		vmm->timing.copied_bytes += answer.copied_bytes;
		vmm->timing.has_host_digests |= (answer.flags & GCR_RESULT_HOST_DIGESTS) != 0;
		if ((int64_t)answer.duration_usec > vmm->timing.copy_usec)
			vmm->timing.copy_usec = (int64_t)answer.duration_usec;
	}
	return result;
}

/* Gets the descriptors of one worker's extents. */
static int export_one(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker, struct gcr_error *error)
{
	struct gcr_range range = {0};
	int result = 0;

	while (range.first < worker->count && !result) {
		int fds[GCR_MESSAGE_FDS_MAX];
		size_t fds_count = 0;
		struct gcr_result answer;

		range.count = worker->count - range.first;
		if (range.count > GCR_MESSAGE_FDS_MAX)
			range.count = GCR_MESSAGE_FDS_MAX;
		if (!worker->helper || gcr_helper_request(worker->helper, GCR_MESSAGE_EXPORT,
							  &range, sizeof(range), error) < 0)
			return died(vmm, worker, error);
		result = await(vmm, worker, &answer, fds, &fds_count, error);
		if (!result && fds_count != range.count)
			result = gcr_error_set(error, EIO,
					       "the GPU's worker did not give every handle: is the "
					       "daemon's limit on descriptors too low?");
		if (result < 0) {
			close_all(fds, fds_count);
			return result;
		}
		memcpy(&vmm->handles[worker->first + range.first], fds, fds_count * sizeof(*fds));
		range.first += range.count;
	}
	return result;
}

int gcr_vmm_export(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = 0;

	if (!vmm->handles) {
		vmm->handles = malloc((vmm->device_count + 1) * sizeof(*vmm->handles));
		if (!vmm->handles)
			return gcr_error_set(error, ENOMEM, "out of memory");
		for (size_t i = 0; i < vmm->device_count; i++)
			vmm->handles[i] = -1;
	}
	for (unsigned int i = 0; i < vmm->workers_count && !result; i++)
		result = export_one(vmm, &vmm->workers[i], error);
	return result;
}

void gcr_vmm_drop_handles(struct gcr_vmm *vmm)
{
	for (size_t i = 0; vmm->handles && i < vmm->device_count; i++)
		if (vmm->handles[i] >= 0) {
			close(vmm->handles[i]);
			vmm->handles[i] = -1;
		}
	if (!vmm->transit)
		gcr_quota_release(&vmm->descriptors_charge);
}

void gcr_vmm_set_workers_aside(struct gcr_vmm *vmm)
{
	for (unsigned int i = 0; i < vmm->workers_count; i++)
		if (vmm->workers[i].helper)
			gcr_helper_set_aside(vmm->workers[i].helper);
}

int gcr_vmm_check_needs(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = 0;

	for (unsigned int i = 0; i < vmm->workers_count && !result; i++) {
		const struct gcr_vmm_worker *worker = &vmm->workers[i];
		uint64_t bytes = vmm->needs_control ? driver_bytes(vmm, worker->uuid) : 0;

		for (uint32_t j = 0; j < worker->count; j++)
			bytes += vmm->extents[worker->first + j].bytes;
		result = gcr_driver_check_needs(&vmm->driver, worker->uuid, bytes, error);
	}
	return result;
}

void gcr_vmm_begin_close(struct gcr_vmm *vmm)
{
	struct gcr_error error;

	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];
		struct gcr_result answer;

		/* Only its own end, or that of the worker, ends a copy. */
		if (worker->is_copying &&
		    gcr_helper_result(worker->helper, COPY_GRACE_USEC, -1, &answer) < 0)
			drop(vmm, worker);
		worker->is_copying = false;
		if (worker->helper && !worker->is_ending && !worker->has_ended &&
		    gcr_helper_request(worker->helper, GCR_MESSAGE_END, NULL, 0, &error) < 0)
			drop(vmm, worker);
		worker->is_ending = worker->helper && !worker->has_ended;
	}
}

static void end_session(struct gcr_vmm *vmm, struct gcr_vmm_worker *worker)
{
	struct gcr_result answer;
	bool ends;

	if (worker->is_ending &&
	    (gcr_helper_result(worker->helper, GCR_DRIVER_HELPER_WAIT_USEC, -1, &answer) < 0 ||
	     answer.error))
		drop(vmm, worker);
	worker->is_ending = false;
	/*
	 * On a roll-back, the memory that was moved out must find room again; the second worker's
	 * context may not have been there before.
	 */
	ends = worker->is_second && vmm->driver.rolling_back;
	if (worker->has_imported && vmm->driver.vendor->backend->may_keep_vram)
		ends = true;
	if (!worker->helper || worker->has_ended || !ends)
		return;
	gcr_helper_kill(worker->helper);
	gcr_helper_await_end(worker->helper, ENDING_USEC);
	worker->has_ended = true;
}

void gcr_vmm_end_workers(struct gcr_vmm *vmm)
{
	gcr_vmm_begin_close(vmm);
	for (unsigned int i = 0; i < vmm->workers_count; i++)
		end_session(vmm, &vmm->workers[i]);
}

void gcr_vmm_close_sessions(struct gcr_vmm *vmm)
{
	gcr_vmm_begin_close(vmm);
	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];

		end_session(vmm, worker);
		gcr_helper_put(TAKE_PTR(worker->helper));
		worker->has_ended = false;
	}
	vmm->driver.has_workers = false;
	gcr_driver_let_start(&vmm->driver);
}

/* SPDX-License-Identifier: MIT */
/* Host memory and VRAM that a freeze and a thaw need, checked before the driver is called. */
#include "fs/engine/driver_session.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/engine.h"
#include "fs/engine/swap.h"
#include "fs/process/gpus.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_cgroup.h"

/* Host memory for the control state: 546 MB in a context's default configuration (measured). */
#define CONTROL_STATE_BYTES (600ull << 20)
/*
 * VRAM that Restore needs beyond the amount that NVML counted for the process: for 2.5 GiB on an
 * H100, 6 MiB was enough and 2 MiB was not. A failed Restore is fatal, hence the larger margin.
 */
#define THAW_MARGIN_BYTES   (64ull << 20)
/* How long a killed worker may take to be gone. */
#define ENDING_USEC	    (5 * GCR_USEC_PER_SEC)
/* How long to wait for a worker with which files are being registered. */
#define BORROWED_USEC	    (2 * GCR_USEC_PER_SEC)
/* Interval between attempts to take the admission. */
#define ADMIT_LOOK_MSEC	    20

/* Takes the worker of a GPU for a question. Errors of gcr_helpers_take_worker(). */
static int take_worker(struct gcr_driver_session *driver, const uint8_t uuid[GCR_UUID_BYTES],
		       struct gcr_helper **ret_worker, struct gcr_error *error)
{
	struct gcr_worker_wait wait = {
		.client = gcr_task_client(driver->task),
		.is_urgent = true, /* the turn is short, and the caller may hold the admission */
		.timeout_usec = GCR_DRIVER_HELPER_WAIT_USEC,
		.wake_fd = driver->process->pidfd,
	};

	return gcr_helpers_take_worker(driver->vendor->helpers, uuid, false, &wait, ret_worker,
				       error);
}

/*
 * Checks the free VRAM of a GPU for which NVML does not report it: a worker allocates @bytes and
 * frees them.
 */
static int try_worker(struct gcr_driver_session *driver, const uint8_t uuid[GCR_UUID_BYTES],
		      uint64_t bytes, struct gcr_error *error)
{
	struct gcr_reserve_request request = {.bytes = bytes};
	struct gcr_helper *worker = NULL;
	struct gcr_result answer = {0};
	int result;

	result = take_worker(driver, uuid, &worker, error);
	if (!result)
		result = gcr_helper_request(worker, GCR_MESSAGE_RESERVE, &request, sizeof(request),
					    error);
	if (!result)
		result = gcr_helper_result(worker, GCR_DRIVER_HELPER_WAIT_USEC,
					   driver->process->pidfd, &answer);
	if (!result && answer.error)
		result = gcr_error_set(error, answer.error, "%s", answer.words);
	else if (!result)
		result = gcr_helper_request(worker, GCR_MESSAGE_RELEASE, NULL, 0, error);
	if (!result)
		result = gcr_helper_result(worker, GCR_DRIVER_HELPER_WAIT_USEC,
					   driver->process->pidfd, &answer);
	if (result < 0 && worker)
		gcr_helper_kill(worker);
	gcr_helper_put(worker);
	if (result < 0 && !error->number)
		gcr_error_set(error, -result, "the worker did not answer: %s", strerror(-result));
	return result;
}

const uint8_t *gcr_driver_destination(const struct gcr_driver_session *driver,
				      const uint8_t uuid[GCR_UUID_BYTES])
{
	for (uint32_t i = 0; i < driver->pairs_count; i++)
		if (!memcmp(driver->pairs[i].from, uuid, GCR_UUID_BYTES))
			return driver->pairs[i].to;
	return uuid;
}

static const struct gcr_gpu_info *find_gpu(const struct gcr_gpus_reply *reply,
					   const uint8_t uuid[GCR_UUID_BYTES])
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (!memcmp(reply->gpus[i].uuid, uuid, GCR_UUID_BYTES))
			return &reply->gpus[i];
	return NULL;
}

/* Is there room for @bytes on one GPU? -ENOMEM with the figures. */
static int check_room(struct gcr_driver_session *driver, const struct gcr_gpus_reply *reply,
		      const uint8_t uuid[GCR_UUID_BYTES], uint64_t bytes, struct gcr_error *error)
{
	const struct gcr_gpu_info *gpu = find_gpu(reply, uuid);
	int index = gcr_gpus_index(driver->daemon->gpus, uuid);
	int result;

	if (index < 0 || !gpu)
		return gcr_error_set(error, ENODEV, "a GPU that the process used is not here");
	bytes += THAW_MARGIN_BYTES;
	result = gcr_driver_check_needs(driver, uuid, bytes, error);
	if (result < 0)
		return result;
	if (!(gpu->flags & GCR_GPU_MEMORY))
		return try_worker(driver, uuid, bytes, error);
	if (gpu->free_bytes < bytes)
		return gcr_error_set(error, ENOMEM,
				     "GPU %d has %" PRIu64
				     " MiB free and the process needs %" PRIu64
				     " MiB; freeze or end another process, then try again",
				     index, gpu->free_bytes >> 20, bytes >> 20);
	return 0;
}

bool gcr_driver_end_idle_worker(struct gcr_driver_session *driver,
				const uint8_t uuid[GCR_UUID_BYTES], bool is_second)
{
	struct gcr_helper *worker = NULL;

	if (driver->ended_count == GCR_ARRAY_SIZE(driver->ended) ||
	    gcr_helpers_take_idle_worker(driver->vendor->helpers, uuid, is_second,
					 gcr_task_client(driver->task), BORROWED_USEC, &worker) < 0)
		return false;
	driver->ended_bytes += gcr_gpus_process_bytes(driver->daemon->gpus, gcr_helper_pid(worker));
	gcr_helper_kill(worker);
	gcr_helper_await_end(worker, ENDING_USEC);
	driver->ended[driver->ended_count++] = worker;
	return true;
}

void gcr_driver_let_start(struct gcr_driver_session *driver)
{
	while (driver->ended_count)
		gcr_helper_put(driver->ended[--driver->ended_count]);
	driver->ended_bytes = 0;
}

/*
 * Ends the idle workers of a GPU; if NVML gives no figures, only the second one. Returns false if
 * no worker was ended.
 */
static bool end_idle_workers(struct gcr_driver_session *driver, const struct gcr_gpus_reply *reply,
			     const uint8_t uuid[GCR_UUID_BYTES])
{
	const struct gcr_gpu_info *gpu = find_gpu(reply, uuid);
	bool has_ended = gcr_driver_end_idle_worker(driver, uuid, true);

	/* Without NVML's figures the first worker is needed, to be asked for the free VRAM. */
	if (gpu && gpu->flags & GCR_GPU_MEMORY && gcr_driver_end_idle_worker(driver, uuid, false))
		has_ended = true;
	return has_ended;
}

/*
 * Waits in turn for the admission of the GPUs that @waiter wants, and takes it. Errors of
 * wait_admission().
 */
static int wait_in_turn(struct gcr_driver_session *driver, struct gcr_fair_waiter *waiter,
			struct gcr_error *error)
{
	struct gcr_admission *admission = driver->daemon->admission;

	while (!gcr_admission_take_turn(admission, waiter, driver->process->pid)) {
		if (driver->rolling_back ? gcr_driver_session_must_leave(driver)
					 : gcr_task_stopped(driver->task) != 0)
			return gcr_error_set(error, ECANCELED,
					     "it was stopped while others were thawed on its GPU");
		if (!driver->rolling_back && gcr_swap_gives_up(driver->task))
			return gcr_error_set(error, ETIMEDOUT, "others are thawed on its GPU");
		if (driver->rolling_back)
			gcr_driver_check_deadline(driver);
		gcr_driver_session_pause(driver, ADMIT_LOOK_MSEC);
	}
	return 0;
}

/*
 * Waits for the admission of the GPUs of @mask and takes it. A roll-back waits too, since the
 * process must not be left frozen for want of it; only the end of the process or of the daemon ends
 * that wait. -ECANCELED; -ETIMEDOUT: an undone freeze gives up.
 */
static int wait_admission(struct gcr_driver_session *driver, uint32_t mask, struct gcr_error *error)
{
	struct gcr_admission *admission = driver->daemon->admission;
	uint32_t kept = gcr_swap_take_admission(driver->task);
	struct gcr_fair_waiter waiter = {
		.client = gcr_task_client(driver->task),
		.mask = mask,
		.is_urgent = driver->rolling_back,
	};
	int result;

	/* Keep the kept admission, and take the rest only if all of it is free at once. */
	if (kept && gcr_admission_take(admission, mask & ~kept, driver->process->pid)) {
		driver->admitted = kept | mask;
		return 0;
	}
	/* Take all GPUs at once: a task that holds one GPU and waits for another could deadlock. */
	if (kept)
		gcr_admission_leave(admission, kept);
	gcr_admission_join(admission, &waiter);
	result = wait_in_turn(driver, &waiter, error);
	gcr_admission_quit(admission, &waiter);
	if (!result)
		driver->admitted = mask;
	return result;
}

/*
 * Copies the VRAM that a thaw needs on each GPU, as noted in the process; returns the number of
 * GPUs. Takes process->lock.
 */
static unsigned int copy_shares(struct gcr_driver_session *driver,
				struct gcr_share shares[GCR_GPUS_MAX])
{
	unsigned int count;

	pthread_mutex_lock(&driver->process->lock);
	count = driver->process->shares_count;
	memcpy(shares, driver->process->shares, count * sizeof(*shares));
	pthread_mutex_unlock(&driver->process->lock);
	return count;
}

uint32_t gcr_driver_need_mask(struct gcr_driver_session *driver)
{
	struct gcr_share shares[GCR_GPUS_MAX];
	unsigned int count;
	uint32_t mask = 0;

	gcr_driver_assume_need(driver);
	count = copy_shares(driver, shares);
	for (unsigned int i = 0; i < count; i++) {
		int index = gcr_gpus_index(driver->daemon->gpus,
					   gcr_driver_destination(driver, shares[i].uuid));

		if (index >= 0)
			mask |= 1u << index;
	}
	return mask;
}

int gcr_driver_wait_turn(struct gcr_driver_session *driver, uint32_t mask, struct gcr_error *error)
{
	return driver->admitted || !mask ? 0 : wait_admission(driver, mask, error);
}

int gcr_driver_take_admission(struct gcr_driver_session *driver, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_share shares[GCR_GPUS_MAX];
	bool is_asked = false;
	unsigned int count;
	int result;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_driver_wait_turn(driver, gcr_driver_need_mask(driver), error);
	if (result < 0)
		return result;
	count = copy_shares(driver, shares);
	for (unsigned int i = 0; i < count && !result; i++) {
		const uint8_t *uuid = gcr_driver_destination(driver, shares[i].uuid);
		int index = gcr_gpus_index(driver->daemon->gpus, uuid);

		if (index >= 0 && driver->ballast & 1u << index)
			continue;
		if (!is_asked)
			result = gcr_driver_query(driver, reply, error);
		is_asked = true;
		if (!result)
			result = check_room(driver, reply, uuid, shares[i].bytes, error);
		if (result != -ENOMEM || !end_idle_workers(driver, reply, uuid))
			continue;
		*error = (struct gcr_error){0};
		result = 0;
		is_asked = false;
		i--;
	}
	return result;
}

void gcr_driver_leave_admission(struct gcr_driver_session *driver)
{
	const struct gcr_task *task = driver->task;
	/* An undone freeze has its VRAM again, and needs the admission no more. */
	bool is_back = task->is_undoing && !driver->rolling_back;

	if (task->swap && !is_back)
		gcr_swap_keep_admission(driver->task, driver->admitted);
	else if (driver->admitted)
		gcr_admission_leave(driver->daemon->admission, driver->admitted);
	driver->admitted = 0;
	gcr_admission_end_need(driver->daemon->admission, &driver->need);
}

void gcr_driver_session_finish(struct gcr_driver_session *driver)
{
	gcr_helper_put(TAKE_PTR(driver->helper));
	gcr_driver_let_start(driver);
	gcr_driver_leave_admission(driver);
}

/* Free VRAM of a GPU: from NVML if available, else from a worker. */
static int free_bytes(struct gcr_driver_session *driver, const struct gcr_gpu_info *gpu,
		      uint64_t *ret_bytes, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	struct gcr_helper *worker = NULL;
	int result;

	if (gpu->flags & GCR_GPU_MEMORY) {
		*ret_bytes = gpu->free_bytes;
		return 0;
	}
	reply = calloc(1, sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = take_worker(driver, gpu->uuid, &worker, error);
	if (!result)
		result = gcr_helper_request(worker, GCR_MESSAGE_QUERY, NULL, 0, error);
	if (!result)
		result = gcr_helper_gpus(worker, GCR_DRIVER_HELPER_WAIT_USEC,
					 driver->process->pidfd, reply);
	if (result < 0 && worker)
		gcr_helper_kill(worker);
	gcr_helper_put(worker);
	if (result < 0)
		return error->number
			       ? result
			       : gcr_error_set(error, -result, "the worker did not answer: %s",
					       strerror(-result));
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		if (memcmp(reply->gpus[i].uuid, gpu->uuid, GCR_UUID_BYTES) ||
		    !(reply->gpus[i].flags & GCR_GPU_MEMORY))
			continue;
		*ret_bytes = reply->gpus[i].free_bytes;
		return 0;
	}
	return gcr_error_set(error, EOPNOTSUPP,
			     "the free VRAM of a GPU cannot be found out, so a thaw could not be "
			     "admitted (is libnvidia-ml.so.1 missing?)");
}

/*
 * Size of the memory into which the driver has put VRAM: the process's anonymous memory, swapped
 * out or not. 0: not known.
 */
static uint64_t anonymous_bytes(pid_t pid)
{
	struct gcr_proc_status status;

	return gcr_proc_status(pid, &status) < 0 ? 0 : status.rss_anon_bytes + status.swap_bytes;
}

/*
 * After the checkpoint of a process that NVML does not list (in a container its pid is another):
 * the VRAM that became free is the VRAM that a thaw will need, unless others took memory at the
 * same time. The process's host memory has grown by the same sum; if less VRAM became free, that
 * sum is required of every GPU, but of none more than it has: a program can let its host memory
 * grow by itself.
 */
int gcr_driver_measure_freed(struct gcr_driver_session *driver, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	uint64_t freed[GCR_GPUS_MAX] = {0};
	uint64_t grown;
	uint64_t sum = 0;
	int result;

	if (!driver->need_unknown)
		return 0;
	reply = calloc(1, sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_driver_query(driver, reply, error);
	for (uint32_t i = 0; i < reply->gpus_count && !result; i++) {
		uint64_t now = 0;

		result = free_bytes(driver, &reply->gpus[i], &now, error);
		if (!result && now > driver->free_before[i])
			freed[i] = now - driver->free_before[i];
		sum += freed[i];
	}
	if (result < 0)
		return result;
	grown = anonymous_bytes(process->pid);
	grown = grown > driver->anonymous_before ? grown - driver->anonymous_before : 0;
	pthread_mutex_lock(&process->lock);
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		struct gcr_share *share = &process->shares[process->shares_count];

		if (sum < grown && freed[i] < grown)
			freed[i] = grown;
		if (reply->gpus[i].flags & GCR_GPU_MEMORY && freed[i] > reply->gpus[i].total_bytes)
			freed[i] = reply->gpus[i].total_bytes;
		if (!freed[i])
			continue;
		memcpy(share->uuid, reply->gpus[i].uuid, GCR_UUID_BYTES);
		share->bytes = freed[i];
		process->shares_count++;
	}
	pthread_mutex_unlock(&process->lock);
	return 0;
}

/*
 * See driver_session.h. The daemon of such a process died before it could measure the need. On
 * every GPU the need is at most the host memory that the process holds.
 */
void gcr_driver_assume_need(struct gcr_driver_session *driver)
{
	struct gcr_process *process = driver->process;
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	uint64_t bytes = anonymous_bytes(process->pid);

	if (!reply)
		return;
	gcr_gpus_snapshot(driver->daemon->gpus, reply);
	pthread_mutex_lock(&process->lock);
	if (process->shares_count)
		reply->gpus_count = 0;
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		struct gcr_share *share = &process->shares[process->shares_count];

		if (gcr_gpus_vendor(driver->daemon->gpus, i) != driver->vendor)
			continue;
		memcpy(share->uuid, reply->gpus[i].uuid, GCR_UUID_BYTES);
		share->bytes = bytes;
		process->shares_count++;
	}
	pthread_mutex_unlock(&process->lock);
}

/* Does the reply say for every GPU whether the process that was asked for is there? */
static bool lists_processes(const struct gcr_gpus_reply *reply)
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (!(reply->gpus[i].flags & GCR_GPU_PROCESSES))
			return false;
	return true;
}

int gcr_driver_take_stock(struct gcr_driver_session *driver, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_process *process = driver->process;
	uint64_t bytes = 0;
	bool mig = false;
	int result;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_driver_query(driver, reply, error);
	if (result < 0)
		return result;
	pthread_mutex_lock(&process->lock);
	process->shares_count = 0;
	for (uint32_t i = 0; i < reply->processes_count; i++) {
		const struct gcr_gpu_process *user = &reply->processes[i];
		struct gcr_share *share;

		if (user->pid != process->pid || user->gpu >= reply->gpus_count ||
		    process->shares_count == GCR_GPUS_MAX)
			continue;
		share = &process->shares[process->shares_count++];
		memcpy(share->uuid, reply->gpus[user->gpu].uuid, GCR_UUID_BYTES);
		share->bytes = user->bytes;
		bytes += user->bytes;
		mig = mig || (reply->gpus[user->gpu].flags & GCR_GPU_MIG);
	}
	/* Of a part of the GPUs alone, the thaw would find too little room on the others. */
	if (!lists_processes(reply))
		process->shares_count = 0;
	driver->need_unknown = !process->shares_count;
	if (driver->need_unknown)
		bytes = 0;
	pthread_mutex_unlock(&process->lock);
	for (uint32_t i = 0; i < reply->gpus_count && driver->need_unknown; i++) {
		result = free_bytes(driver, &reply->gpus[i], &driver->free_before[i], error);
		if (result < 0)
			return result;
		/* The process uses at most all VRAM that is in use. */
		if (reply->gpus[i].total_bytes > driver->free_before[i])
			bytes += reply->gpus[i].total_bytes - driver->free_before[i];
	}
	driver->anonymous_before = anonymous_bytes(process->pid);
	if (mig)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the process uses a GPU in MIG mode, which the driver cannot "
				     "checkpoint");
	driver->bytes = bytes;
	driver->patience_bytes = bytes;
	gcr_task_set_bytes(driver->task, bytes);
	return 0;
}

void gcr_driver_deduct(struct gcr_driver_session *driver, const uint8_t uuid[GCR_UUID_BYTES],
		       uint64_t bytes)
{
	struct gcr_process *process = driver->process;

	driver->bytes -= bytes < driver->bytes ? bytes : driver->bytes;
	pthread_mutex_lock(&process->lock);
	for (unsigned int i = 0; i < process->shares_count; i++) {
		struct gcr_share *share = &process->shares[i];

		if (!memcmp(share->uuid, uuid, GCR_UUID_BYTES))
			share->bytes -= bytes < share->bytes ? bytes : share->bytes;
	}
	pthread_mutex_unlock(&process->lock);
}

int gcr_driver_check_host_room(struct gcr_driver_session *driver, struct gcr_error *error)
{
	_cleanup_free_ char *what = NULL;
	uint64_t bytes = driver->bytes;
	uint64_t room;
	int result;

	result = gcr_proc_memory_room(driver->process->pid, &room, &what);
	if (result < 0)
		return gcr_error_set(error, -result, "its memory limits cannot be read: %s",
				     strerror(-result));
	if (room < bytes + CONTROL_STATE_BYTES)
		return gcr_error_set(error, ENOMEM,
				     "the driver puts %llu MiB into the process's own memory, "
				     "but %s leaves %" PRIu64 " MiB",
				     (unsigned long long)(bytes + CONTROL_STATE_BYTES) >> 20, what,
				     room >> 20);
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The `driver` engine: Lock, Checkpoint, Restore and Unlock through a control helper; the driver
 * keeps the VRAM's contents in the process's own memory.
 *
 * The driver serves the calls for one target one after the other, inside the target: whoever asks
 * for the state while a call runs gets it when that call has ended (measured). So a helper that
 * dies in the middle costs nothing but a new helper: its answer to GetState says how the call
 * ended. What must never happen is a Restore without enough VRAM: it cannot be repeated (measured).
 *
 * Points at which the process could be lost, each with a test that fires there: helper killed in
 * Lock, Checkpoint, Restore, Unlock; driver error from each; VRAM taken before a Restore, also that
 * of a roll-back; target killed in each; deadline in each; daemon killed in each.
 */
#include "fs/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "fs/gpus.h"
#include "fs/helper.h"
#include "fs/log.h"
#include "fs/record.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* Host memory for the control state: 546 MB in a context's default configuration (measured). */
#define CONTROL_STATE_BYTES (600ull << 20)
/*
 * VRAM that Restore needs beyond what NVML counted for the process: 6 MiB was enough and 2 MiB was
 * not for 2.5 GiB on an H100; Restore that fails is fatal, so more than that.
 */
#define THAW_MARGIN_BYTES (64ull << 20)

/* One Lock waits this long at first, then twice as long, so that a cancel soon gets its turn. */
#define LOCK_FIRST_MSEC 500
#define LOCK_MOST_MSEC 8000

/* A helper that has not said hello by then is not coming. */
#define HELPER_WAIT_USEC (20 * GCR_USEC_PER_SEC)
/* Pause before a call that failed is tried again on the way back. */
#define RETRY_MSEC 100
/* A daemon that is to stop waits this long for the driver; the next daemon goes on from there. */
#define STOPPING_WAIT_USEC (90 * GCR_USEC_PER_SEC)

/* A task in the hands of this engine. */
struct drive {
	struct gcr_task *task;
	struct gcr_process *process;
	struct gcr_daemon *daemon;
	struct gcr_helper *helper;
	struct gcr_record record;
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
	uint32_t pairs_count;
	uint32_t admitted; /* GPUs we hold the admission of */
	int64_t stopping_usec; /* when we noticed that the daemon is stopping, 0 before */
	bool pending_answered;
	bool need_unknown; /* NVML does not list the process: its VRAM is what a checkpoint frees */
	uint64_t free_before[GCR_GPUS_MAX];
};

static void drive_init(struct drive *drive, struct gcr_task *task)
{
	*drive = (struct drive){
		.task = task, .process = task->process, .daemon = task->process->daemon};
}

static void drive_finish(struct drive *drive)
{
	gcr_helper_put(TAKE_PTR(drive->helper));
	if (drive->admitted)
		gcr_gpus_leave(drive->daemon->gpus, drive->admitted);
	drive->admitted = 0;
}

static void set_phase(struct drive *drive, const char *phase)
{
	atomic_store(&drive->task->phase, phase);
}

static bool is_gone(struct drive *drive)
{
	return gcr_process_state(drive->process) == GCR_STATE_GONE;
}

/* Only for a deadline or a process that ended: a wait that must go on is not cut short by a cancel. */
static bool must_leave(struct drive *drive)
{
	if (is_gone(drive))
		return true;
	if (!atomic_load(&drive->daemon->stopping))
		return false;
	if (!drive->stopping_usec)
		drive->stopping_usec = gcr_clock_usec();
	return gcr_clock_usec() > drive->stopping_usec + STOPPING_WAIT_USEC;
}

static void pause_for(struct drive *drive, int msec)
{
	struct pollfd pidfd = {.fd = drive->process->pidfd, .events = POLLIN};

	poll(&pidfd, 1, msec);
}

static int need_helper(struct drive *drive, struct gcr_error *error)
{
	if (drive->helper)
		return 0;
	return gcr_helpers_take_control(drive->daemon->helpers, HELPER_WAIT_USEC, -1,
					&drive->helper, error);
}

static void drop_helper(struct drive *drive)
{
	if (!drive->helper)
		return;
	gcr_helper_kill(drive->helper);
	gcr_helper_put(TAKE_PTR(drive->helper));
}

/*
 * One call, waited for to its end: what the driver has begun cannot be taken back. When the
 * deadline passes meanwhile, the writers get their answer. -EPIPE: the helper died, and the call's
 * fate is to be asked of another; -ESRCH: the process has ended; -ECANCELED: the daemon must go.
 * Otherwise 0 with the driver's answer in *ret.
 */
static int call(struct drive *drive, uint16_t type, uint32_t timeout_ms, struct gcr_result *ret,
		struct gcr_error *error)
{
	struct gcr_control_request request = {.pid = drive->process->pid, .timeout_ms = timeout_ms};
	int result;

	if (type == GCR_MESSAGE_RESTORE) {
		request.pairs_count = drive->pairs_count;
		memcpy(request.pairs, drive->pairs, sizeof(request.pairs));
	}
	result = need_helper(drive, error);
	if (result < 0)
		return result;
	result = gcr_helper_request(drive->helper, type, &request, sizeof(request), error);
	while (!result) {
		/* The pidfd: a process that ends in the middle leaves a call that may never return. */
		result = gcr_helper_result(drive->helper, 250 * GCR_USEC_PER_MSEC,
					   drive->process->pidfd, ret);
		if (!result)
			return 0;
		if (must_leave(drive))
			result = is_gone(drive) ? -ESRCH : -ECANCELED;
		else if (result == -EINTR)
			/* It has ended, and the table is about to be told. */
			result = -ESRCH;
		else if (result == -ETIMEDOUT)
			result = 0;
		if (!result && !drive->pending_answered &&
		    gcr_task_stopped(drive->task) == ETIMEDOUT) {
			drive->pending_answered = true;
			gcr_task_deadline_passed(drive->task);
		}
	}
	drop_helper(drive);
	if (result == -ESRCH)
		gcr_error_set(error, ESRCH, "process %d has ended", (int)drive->process->pid);
	else if (result == -ECANCELED)
		gcr_error_set(error, EIO, "the daemon stopped before the driver had answered");
	else
		gcr_error_set(error, EIO, "the control helper died in the middle of the call");
	return result;
}

/* The driver's view of the process; a helper that dies is replaced, a few times. */
static int ask_state(struct drive *drive, enum gcr_control_state *ret_state,
		     struct gcr_error *error)
{
	struct gcr_result answer;
	int result = -EPIPE;

	for (int attempt = 0; attempt < 5 && result == -EPIPE; attempt++)
		result = call(drive, GCR_MESSAGE_STATE, 0, &answer, error);
	if (result < 0)
		return result;
	if (answer.error)
		return gcr_error_set(error, answer.error, "%s", answer.words);
	*ret_state = answer.state;
	return 0;
}

static int write_record(struct drive *drive, enum gcr_record_state state, struct gcr_error *error)
{
	struct gcr_process *process = drive->process;
	int result;

	drive->record.pid = process->pid;
	drive->record.start_ticks = process->start_ticks;
	drive->record.state = state;
	drive->record.since_usec = gcr_clock_real_usec();
	pthread_mutex_lock(&process->lock);
	memcpy(drive->record.generation, process->generation, sizeof(drive->record.generation));
	memcpy(drive->record.comm, process->comm, sizeof(drive->record.comm));
	drive->record.gpus_count = process->shares_count;
	for (unsigned int i = 0; i < process->shares_count; i++) {
		memcpy(drive->record.gpus[i].uuid, process->shares[i].uuid, GCR_UUID_BYTES);
		drive->record.gpus[i].bytes = process->shares[i].bytes;
	}
	pthread_mutex_unlock(&process->lock);
	snprintf(drive->record.engine, sizeof(drive->record.engine), "%s", gcr_engine_driver.name);
	result = gcr_record_write(drive->daemon->runtime_fd, &drive->record);
	if (result < 0)
		return gcr_error_set(error, -result,
				     "cannot write the record that a next daemon would need: %s",
				     strerror(-result));
	return 0;
}

static void remove_record(struct drive *drive)
{
	gcr_record_remove(drive->daemon->runtime_fd, drive->process->pid,
			  drive->process->start_ticks);
}

static int query(struct drive *drive, struct gcr_gpus_reply *reply, struct gcr_error *error)
{
	int result = need_helper(drive, error);

	if (!result)
		result = gcr_helper_request(drive->helper, GCR_MESSAGE_QUERY, NULL, 0, error);
	if (!result)
		result = gcr_helper_gpus(drive->helper, HELPER_WAIT_USEC, drive->process->pidfd,
					 reply);
	if (result < 0) {
		drop_helper(drive);
		return gcr_error_set(error, result == -EINTR ? ESRCH : EIO,
				     "the GPUs cannot be asked for their memory: %s",
				     strerror(-result));
	}
	if (reply->error)
		return gcr_error_set(error, reply->error, "%s", reply->words);
	gcr_gpus_update(drive->daemon->gpus, reply);
	return 0;
}

/* Free VRAM of a GPU that NVML does not tell: a worker takes @bytes and gives them back. */
static int try_worker(struct drive *drive, const uint8_t uuid[GCR_UUID_BYTES], uint64_t bytes,
		      struct gcr_error *error)
{
	struct gcr_reserve_request request = {.bytes = bytes};
	struct gcr_helper *worker = NULL;
	struct gcr_result answer = {0};
	int result;

	result = gcr_helpers_take_worker(drive->daemon->helpers, uuid, HELPER_WAIT_USEC,
					 drive->process->pidfd, &worker, error);
	if (!result)
		result = gcr_helper_request(worker, GCR_MESSAGE_RESERVE, &request, sizeof(request),
					    error);
	if (!result)
		result = gcr_helper_result(worker, HELPER_WAIT_USEC, drive->process->pidfd,
					   &answer);
	if (!result && answer.error)
		result = gcr_error_set(error, answer.error, "%s", answer.words);
	else if (!result)
		result = gcr_helper_request(worker, GCR_MESSAGE_RELEASE, NULL, 0, error);
	if (!result)
		result = gcr_helper_result(worker, HELPER_WAIT_USEC, drive->process->pidfd,
					   &answer);
	if (result < 0 && worker)
		gcr_helper_kill(worker);
	gcr_helper_put(worker);
	if (result < 0 && !error->number)
		gcr_error_set(error, -result, "the worker did not answer: %s", strerror(-result));
	return result;
}

/* Where the contents of GPU @uuid go on thaw. */
static const uint8_t *destination(const struct drive *drive, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < drive->pairs_count; i++)
		if (!memcmp(drive->pairs[i].from, uuid, GCR_UUID_BYTES))
			return drive->pairs[i].to;
	return uuid;
}

/* Is there room for @bytes on one GPU? -ENOMEM with the figures. */
static int check_room(struct drive *drive, const struct gcr_gpus_reply *reply,
		      const uint8_t uuid[GCR_UUID_BYTES], uint64_t bytes, struct gcr_error *error)
{
	int index = gcr_gpus_index(drive->daemon->gpus, uuid);
	const struct gcr_gpu_info *gpu;

	if (index < 0 || (uint32_t)index >= reply->gpus_count)
		return gcr_error_set(error, ENODEV, "a GPU that the process used is not here");
	gpu = &reply->gpus[index];
	bytes += THAW_MARGIN_BYTES;
	if (!(gpu->flags & GCR_GPU_MEMORY))
		return try_worker(drive, uuid, bytes, error);
	if (gpu->free_bytes < bytes)
		return gcr_error_set(error, ENOMEM,
				     "GPU %d has %" PRIu64 " MiB free and the process needs %" PRIu64
				     " MiB; freeze or end another process, then try again",
				     index, gpu->free_bytes >> 20, bytes >> 20);
	return 0;
}

/*
 * Before every Restore: alone on the GPUs concerned, and enough VRAM there. On success the
 * admission is held until drive_finish() or leave().
 */
static int admit(struct drive *drive, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_share shares[GCR_GPUS_MAX];
	unsigned int count;
	uint32_t mask = 0;
	int result;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_mutex_lock(&drive->process->lock);
	count = drive->process->shares_count;
	memcpy(shares, drive->process->shares, sizeof(shares));
	pthread_mutex_unlock(&drive->process->lock);
	for (unsigned int i = 0; i < count; i++) {
		int index = gcr_gpus_index(drive->daemon->gpus, destination(drive, shares[i].uuid));

		if (index >= 0)
			mask |= 1u << index;
	}
	if (!drive->admitted && mask) {
		result = gcr_gpus_admit(drive->daemon->gpus, mask, drive->task);
		if (result < 0)
			return result;
		drive->admitted = mask;
	}
	result = query(drive, reply, error);
	for (unsigned int i = 0; i < count && !result; i++)
		result = check_room(drive, reply, destination(drive, shares[i].uuid),
				    shares[i].bytes, error);
	return result;
}

static void leave(struct drive *drive)
{
	if (drive->admitted)
		gcr_gpus_leave(drive->daemon->gpus, drive->admitted);
	drive->admitted = 0;
}

/*
 * Did a Restore end so that no other can follow? The driver goes on calling the process
 * checkpointed, but answers every later Restore with an error: out of memory, shared handles and
 * legacy IPC all ended so (measured). What the helper refused itself (no driver result), "not in
 * this state" (EBUSY) and "not yours" (EACCES) say that nothing was tried.
 */
static bool is_lost(const struct gcr_result *answer)
{
	return answer->driver_result && answer->error != EBUSY && answer->error != EACCES;
}

static int lost(struct drive *drive, const struct gcr_result *answer, enum gcr_state *ret_state,
		struct gcr_error *error)
{
	*ret_state = GCR_STATE_FAILED;
	return gcr_error_set(error, EIO,
			     "the driver could not restore the process and cannot try again (%s); "
			     "all that is left is to end it",
			     answer->words);
}

/*
 * Roll back to running from wherever the driver is. It takes as long as it takes; only the end of
 * the process, of the daemon, or a lack of VRAM stops it. On failure *ret_state tells where the
 * process is left, and words why.
 */
static int back_to_running(struct drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	int attempts = 0;

	set_phase(drive, "rollback");
	drive->pairs_count = 0;
	for (;;) {
		enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
		struct gcr_result answer = {0};
		int result = ask_state(drive, &state, error);

		*ret_state = GCR_STATE_FAILED;
		if (result < 0)
			return result;
		if (state == GCR_CONTROL_RUNNING) {
			remove_record(drive);
			*ret_state = GCR_STATE_RUNNING;
			return 0;
		}
		if (state == GCR_CONTROL_LOCKED) {
			result = call(drive, GCR_MESSAGE_UNLOCK, 0, &answer, error);
		} else if (state == GCR_CONTROL_CHECKPOINTED) {
			*ret_state = GCR_STATE_FROZEN;
			result = admit(drive, error);
			if (result < 0) {
				gcr_error_prefix(error,
						 "it could not be rolled back and stays frozen, "
						 "intact");
				return result;
			}
			result = call(drive, GCR_MESSAGE_RESTORE, 0, &answer, error);
			if (!result && answer.error && is_lost(&answer))
				return lost(drive, &answer, ret_state, error);
		} else {
			return gcr_error_set(error, EIO, "the driver says the process has failed");
		}
		if (result < 0 && result != -EPIPE)
			return result;
		if ((result || answer.error) && ++attempts > 20)
			return gcr_error_set(error, EIO, "the driver does not let it go: %s",
					     answer.words);
		if (result || answer.error)
			pause_for(drive, RETRY_MSEC);
	}
}

/* Roll back to frozen from wherever the driver is, likewise. */
static int back_to_frozen(struct drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	int attempts = 0;

	set_phase(drive, "rollback");
	leave(drive);
	for (;;) {
		enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
		struct gcr_result answer = {0};
		int result = ask_state(drive, &state, error);

		*ret_state = GCR_STATE_FAILED;
		if (result < 0)
			return result;
		if (state == GCR_CONTROL_CHECKPOINTED) {
			*ret_state = GCR_STATE_FROZEN;
			if (write_record(drive, GCR_RECORD_FROZEN, error) < 0)
				gcr_log(LOG_WARNING, drive->process->pid, "%s", error->words);
			return 0;
		}
		if (state == GCR_CONTROL_RUNNING) {
			remove_record(drive);
			*ret_state = GCR_STATE_RUNNING;
			return 0;
		}
		if (state != GCR_CONTROL_LOCKED)
			return gcr_error_set(error, EIO, "the driver says the process has failed");
		result = call(drive, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
		if (result < 0 && result != -EPIPE)
			return result;
		if ((result || answer.error) && ++attempts > 20)
			return gcr_error_set(error, EIO, "the driver does not freeze it again: %s",
					     answer.words);
		if (result || answer.error)
			pause_for(drive, RETRY_MSEC);
	}
}

/*
 * End a verb that failed with @result and words in @error: undo it, keep the first words, add the
 * way back's if that failed too.
 */
static int undo(struct drive *drive, int result,
		int (*back)(struct drive *, enum gcr_state *, struct gcr_error *),
		enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_error back_error = {0};

	if (back(drive, ret_state, &back_error) < 0) {
		char first[GCR_ERROR_WORDS_MAX];

		snprintf(first, sizeof(first), "%s", error->words);
		gcr_error_set(error, -result, "%s%s%s", first, *first ? "; " : "",
			      back_error.words);
		gcr_log(LOG_ERR, drive->process->pid, "roll-back: %s", back_error.words);
	}
	return result;
}

/* Words are left empty: who stopped the operation explains it. */
static int stopped(struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	return -ECANCELED;
}

/* Free VRAM of a GPU: as NVML has it, else a worker is asked. */
static int free_bytes(struct drive *drive, const struct gcr_gpu_info *gpu, uint64_t *ret_bytes,
		      struct gcr_error *error)
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
	result = gcr_helpers_take_worker(drive->daemon->helpers, gpu->uuid, HELPER_WAIT_USEC,
					 drive->process->pidfd, &worker, error);
	if (!result)
		result = gcr_helper_request(worker, GCR_MESSAGE_QUERY, NULL, 0, error);
	if (!result)
		result = gcr_helper_gpus(worker, HELPER_WAIT_USEC, drive->process->pidfd, reply);
	gcr_helper_put(worker);
	for (uint32_t i = 0; i < reply->gpus_count && !result; i++) {
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
 * After the checkpoint of a process that NVML does not list (in a container its pid is another):
 * what became free is what a thaw will need. Somebody who freed memory meanwhile makes it more.
 */
static int measure_freed(struct drive *drive, struct gcr_error *error)
{
	struct gcr_process *process = drive->process;
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	int result;

	if (!drive->need_unknown)
		return 0;
	reply = calloc(1, sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = query(drive, reply, error);
	for (uint32_t i = 0; i < reply->gpus_count && !result; i++) {
		uint64_t now = 0;

		result = free_bytes(drive, &reply->gpus[i], &now, error);
		if (result < 0 || now <= drive->free_before[i])
			continue;
		pthread_mutex_lock(&process->lock);
		memcpy(process->shares[process->shares_count].uuid, reply->gpus[i].uuid,
		       GCR_UUID_BYTES);
		process->shares[process->shares_count++].bytes = now - drive->free_before[i];
		pthread_mutex_unlock(&process->lock);
	}
	return result;
}

/*
 * A process found frozen without a note of its need (its daemon died before it could measure):
 * no more than it holds in host memory, on whichever GPU.
 */
static void assume_need(struct drive *drive)
{
	struct gcr_process *process = drive->process;
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_proc_status status;

	if (!reply || gcr_proc_status(process->pid, &status) < 0)
		return;
	gcr_gpus_snapshot(drive->daemon->gpus, reply);
	pthread_mutex_lock(&process->lock);
	if (process->shares_count)
		reply->gpus_count = 0;
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		memcpy(process->shares[i].uuid, reply->gpus[i].uuid, GCR_UUID_BYTES);
		process->shares[i].bytes = status.rss_anon_bytes;
		process->shares_count++;
	}
	pthread_mutex_unlock(&process->lock);
}

/* What the process uses now is what a thaw will need. */
static int take_stock(struct drive *drive, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_process *process = drive->process;
	_cleanup_free_ char *what = NULL;
	uint64_t bytes = 0;
	uint64_t room;
	bool mig = false;
	int result;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = query(drive, reply, error);
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
	drive->need_unknown = !process->shares_count;
	pthread_mutex_unlock(&process->lock);
	for (uint32_t i = 0; i < reply->gpus_count && drive->need_unknown; i++) {
		result = free_bytes(drive, &reply->gpus[i], &drive->free_before[i], error);
		if (result < 0)
			return result;
	}
	if (mig)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the process uses a GPU in MIG mode, which the driver cannot "
				     "checkpoint");
	gcr_task_set_bytes(drive->task, bytes);

	result = gcr_proc_memory_room(process->pid, &room, &what);
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

/* Lock in slices until the GPU is idle, the deadline has passed or the operation is to stop. */
static int lock(struct drive *drive, struct gcr_error *error)
{
	uint32_t slice_msec = LOCK_FIRST_MSEC;

	set_phase(drive, "lock");
	for (;;) {
		struct gcr_result answer;
		int64_t left_usec;
		int result;

		if (gcr_task_stopped(drive->task))
			return stopped(error);
		left_usec = gcr_task_deadline_usec(drive->task) - gcr_clock_usec();
		if (left_usec < (int64_t)slice_msec * GCR_USEC_PER_MSEC)
			slice_msec = left_usec > 10 * GCR_USEC_PER_MSEC ?
					     (uint32_t)(left_usec / GCR_USEC_PER_MSEC) :
					     10;
		result = call(drive, GCR_MESSAGE_LOCK, slice_msec, &answer, error);
		if (result < 0)
			return result == -EPIPE ? -EIO : result;
		if (!answer.error)
			return 0;
		if (answer.error != ETIMEDOUT)
			return gcr_error_set(error, answer.error == EBUSY ? EIO : answer.error,
					     "%s", answer.words);
		if (gcr_task_stopped(drive->task) == ETIMEDOUT)
			return gcr_error_set(error, ETIMEDOUT,
					     "its GPU work did not come to an end in time: a kernel "
					     "that runs on, or a wait on the GPU (timeout=SEC allows "
					     "more)");
		if (slice_msec < LOCK_MOST_MSEC)
			slice_msec *= 2;
	}
}

/* Checkpoint; a helper that dies meanwhile is replaced, and the driver asked how it ended. */
static int checkpoint(struct drive *drive, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_result answer;
	int result;

	set_phase(drive, "checkpoint");
	result = call(drive, GCR_MESSAGE_CHECKPOINT, 0, &answer, error);
	if (result == -EPIPE) {
		result = ask_state(drive, &state, error);
		if (!result && state != GCR_CONTROL_CHECKPOINTED)
			result = gcr_error_set(error, EIO, "the control helper died before the "
							   "driver had begun");
		return result;
	}
	if (result < 0)
		return result;
	if (answer.error == EOPNOTSUPP)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the driver cannot checkpoint this process: it uses managed "
				     "memory or something else that the driver does not support (%s)",
				     answer.words);
	if (answer.error)
		return gcr_error_set(error, EIO, "%s", answer.words);
	return 0;
}

static void new_generation(struct gcr_process *process)
{
	_cleanup_fclose_ FILE *file = fopen("/proc/sys/kernel/random/uuid", "re");
	char generation[sizeof(process->generation)] = "";

	if (!file || !fgets(generation, sizeof(generation), file))
		return;
	pthread_mutex_lock(&process->lock);
	memcpy(process->generation, generation, sizeof(generation));
	snprintf(process->engine, sizeof(process->engine), "%s", gcr_engine_driver.name);
	pthread_mutex_unlock(&process->lock);
}

/* Where the process is before a freeze: only one that runs can be frozen. */
static int check_before_freeze(struct drive *drive, enum gcr_state *ret_state,
			       struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result = ask_state(drive, &state, error);

	if (result < 0)
		return result;
	switch (state) {
	case GCR_CONTROL_RUNNING:
		return 0;
	case GCR_CONTROL_CHECKPOINTED: /* and how much VRAM it needs, nobody can say */
	case GCR_CONTROL_LOCKED:
		return gcr_error_set(error, EBUSY,
				     "another tool has locked or checkpointed the process "
				     "(cuda-checkpoint?); let that tool restore it first");
	default:
		*ret_state = GCR_STATE_FAILED;
		return gcr_error_set(error, EIO, "the driver says the process has failed");
	}
}

static void set_frozen(struct drive *drive, enum gcr_state *ret_state)
{
	struct gcr_process *process = drive->process;
	struct gcr_error error;

	/* The record of the intent is there and leads a next daemon to the same end. */
	if (write_record(drive, GCR_RECORD_FROZEN, &error) < 0)
		gcr_log(LOG_WARNING, process->pid, "%s", error.words);
	pthread_mutex_lock(&process->lock);
	process->held_bytes = 0;
	for (unsigned int i = 0; i < process->shares_count; i++)
		process->held_bytes += process->shares[i].bytes;
	pthread_mutex_unlock(&process->lock);
	*ret_state = GCR_STATE_FROZEN;
}

static int freeze(struct drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_daemon *daemon = drive->daemon;
	struct gcr_hello hello = {0};
	int result;

	*ret_state = GCR_STATE_RUNNING;
	set_phase(drive, "preflight");
	result = need_helper(drive, error);
	if (result < 0)
		return result;
	gcr_helpers_hello(daemon->helpers, &hello);
	result = daemon->backend->preflight(drive->process->pid, daemon->device_directory,
					    hello.driver_version, error);
	if (!result)
		result = take_stock(drive, error);
	if (!result)
		result = check_before_freeze(drive, ret_state, error);
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	new_generation(drive->process);
	result = write_record(drive, GCR_RECORD_FREEZING, error);
	if (result < 0)
		return result;
	result = lock(drive, error);
	if (!result && gcr_task_stopped(drive->task))
		result = stopped(error);
	if (!result)
		result = checkpoint(drive, error);
	if (!result)
		result = measure_freed(drive, error);
	if (!result)
		result = gcr_task_commit(drive->task) < 0 ? stopped(error) : 0;
	if (result < 0)
		return undo(drive, result, back_to_running, ret_state, error);
	set_frozen(drive, ret_state);
	return 0;
}

/* gpu=OLD:NEW as the driver wants it: a destination for every GPU, each used once. */
static int make_pairs(struct drive *drive, struct gcr_error *error)
{
	const struct gcr_command *command = drive->task->command;
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	uint32_t to[GCR_GPUS_MAX];

	if (!command->gpu_pairs_count)
		return 0;
	reply = calloc(1, sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(drive->daemon->gpus, reply);
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		to[i] = i;
	for (unsigned int i = 0; i < command->gpu_pairs_count; i++) {
		uint32_t from = command->gpu_pairs[i].from;
		uint32_t wanted = command->gpu_pairs[i].to;
		uint32_t holder = 0;

		if (from >= reply->gpus_count || wanted >= reply->gpus_count)
			return gcr_error_set(error, ENODEV, "gpu=%u:%u: there are %u GPUs", from,
					     wanted, reply->gpus_count);
		while (to[holder] != wanted)
			holder++;
		to[holder] = to[from];
		to[from] = wanted;
	}
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		memcpy(drive->pairs[i].from, reply->gpus[i].uuid, GCR_UUID_BYTES);
		memcpy(drive->pairs[i].to, reply->gpus[to[i]].uuid, GCR_UUID_BYTES);
	}
	drive->pairs_count = reply->gpus_count;
	return 0;
}

/* Restore; on success the driver has the process locked, with its VRAM back. */
static int restore(struct drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_result answer;
	int result;

	set_phase(drive, "restore");
	result = call(drive, GCR_MESSAGE_RESTORE, 0, &answer, error);
	if (result == -EPIPE) {
		result = ask_state(drive, &state, error);
		if (!result && state != GCR_CONTROL_LOCKED)
			result = gcr_error_set(error, EIO, "the control helper died before the "
							   "driver had begun");
		return result;
	}
	if (result < 0 || !answer.error)
		return result;
	if (is_lost(&answer))
		return lost(drive, &answer, ret_state, error);
	return gcr_error_set(error, EIO, "%s", answer.words);
}

/* The last step: the program goes on. A helper that dies here is replaced. */
static int unlock(struct drive *drive, struct gcr_error *error)
{
	set_phase(drive, "unlock");
	for (int attempt = 0; attempt < 20; attempt++) {
		enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
		struct gcr_result answer = {0};
		int result = call(drive, GCR_MESSAGE_UNLOCK, 0, &answer, error);

		if (!result && !answer.error)
			return 0;
		if (result < 0 && result != -EPIPE)
			return result;
		if (answer.error)
			gcr_error_set(error, EIO, "%s", answer.words);
		result = ask_state(drive, &state, error);
		if (result < 0)
			return result;
		if (state == GCR_CONTROL_RUNNING)
			return 0;
		pause_for(drive, RETRY_MSEC);
	}
	return -EIO;
}

static int thaw(struct drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result;

	*ret_state = GCR_STATE_FROZEN;
	set_phase(drive, "admission");
	result = make_pairs(drive, error);
	if (!result)
		result = ask_state(drive, &state, error);
	if (result < 0)
		return result == -EPIPE ? -EIO : result;
	if (state == GCR_CONTROL_CHECKPOINTED) {
		gcr_task_set_bytes(drive->task, drive->process->held_bytes);
		result = admit(drive, error);
		if (result < 0)
			return result == -ECANCELED ? stopped(error) : result;
		if (gcr_task_stopped(drive->task))
			return stopped(error);
		result = write_record(drive, GCR_RECORD_THAWING, error);
		if (!result)
			result = restore(drive, ret_state, error);
		leave(drive);
		if (*ret_state == GCR_STATE_FAILED)
			return result;
	} else if (state != GCR_CONTROL_LOCKED && state != GCR_CONTROL_RUNNING) {
		*ret_state = GCR_STATE_FAILED;
		return gcr_error_set(error, EIO, "the driver says the process has failed");
	}
	if (!result)
		result = gcr_task_commit(drive->task) < 0 ? stopped(error) : 0;
	if (!result && state != GCR_CONTROL_RUNNING)
		result = unlock(drive, error);
	if (result < 0)
		return undo(drive, result, back_to_frozen, ret_state, error);
	remove_record(drive);
	*ret_state = GCR_STATE_RUNNING;
	return 0;
}

/*
 * An earlier daemon died, perhaps in the middle of a verb. Nobody waits for the verb any more:
 * what the driver has checkpointed is frozen, what is merely locked goes on.
 */
static int recover(struct drive *drive, enum gcr_state *ret_state, struct gcr_error *error)
{
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	int result;

	set_phase(drive, "recovery");
	*ret_state = gcr_process_state(drive->process);
	result = ask_state(drive, &state, error);
	if (result < 0)
		return result;
	if (state == GCR_CONTROL_CHECKPOINTED) {
		assume_need(drive);
		set_frozen(drive, ret_state);
		return 0;
	}
	return back_to_running(drive, ret_state, error);
}

static void forget_held(struct gcr_process *process)
{
	pthread_mutex_lock(&process->lock);
	process->held_bytes = 0;
	process->shares_count = 0;
	pthread_mutex_unlock(&process->lock);
}

static int run(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error,
	       int (*verb)(struct drive *, enum gcr_state *, struct gcr_error *))
{
	_cleanup_free_ struct drive *drive = malloc(sizeof(*drive));
	int result;

	*ret_state = gcr_transition_find(task->command->verb, GCR_STATE_RUNNING) ?
			     GCR_STATE_RUNNING :
			     GCR_STATE_FROZEN;
	if (!drive)
		return gcr_error_set(error, ENOMEM, "out of memory");
	drive_init(drive, task);
	result = verb(drive, ret_state, error);
	drive_finish(drive);
	if (*ret_state == GCR_STATE_RUNNING)
		forget_held(task->process);
	return result;
}

static int driver_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, freeze);
}

static int driver_thaw(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, thaw);
}

static int driver_recover(struct gcr_task *task, enum gcr_state *ret_state,
			  struct gcr_error *error)
{
	return run(task, ret_state, error, recover);
}

const struct gcr_engine gcr_engine_driver = {
	.name = "driver",
	.freeze = driver_freeze,
	.thaw = driver_thaw,
	.recover = driver_recover,
};

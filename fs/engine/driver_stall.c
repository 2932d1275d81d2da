/* SPDX-License-Identifier: MIT */
/*
 * Processes that do not answer in the middle of their verb: the process is stopped, or its library
 * does not respond. The verb keeps waiting, since it can neither be undone nor ended without the
 * process; but it no longer blocks other verbs on the GPUs: it gives up the admission and the turn
 * at the workers. VRAM that the verb has yet to take is reserved for it (fs/engine/admission.h).
 */
#include "fs/engine/driver_session.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/admission.h"
#include "fs/process/gpus.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"

/* Time after which a stopped process counts as stalled; a shorter stop may be a debugger's. */
#define STOPPED_USEC   (2 * GCR_USEC_PER_SEC)
/* Limit for all waits of a verb together, plus the driver's time per byte (1 GB/s). */
#define PATIENCE_USEC  (10 * GCR_USEC_PER_SEC)
#define BYTES_PER_USEC 1024
/*
 * The least of the limit that is left to a verb which has waited for workers: those that wait for
 * what it holds have waited all that time, too.
 */
#define LEAST_USEC     (3 * GCR_USEC_PER_SEC)
/* Limit for GPU work to end, in a swap. */
#define GATE_USEC      (60 * GCR_USEC_PER_SEC)
/* Extra time after the deadline: an answer that is due then may be a little late. */
#define LATE_USEC      (500 * GCR_USEC_PER_MSEC)
/* VRAM that a Restore needs beyond the amount that NVML counted; see driver_memory.c. */
#define MARGIN_BYTES   (64ull << 20)

void gcr_driver_begin_wait(struct gcr_driver_session *driver)
{
	driver->asked_usec = gcr_clock_usec();
	driver->stopped_usec = 0;
}

void gcr_driver_end_wait(struct gcr_driver_session *driver)
{
	int64_t *waited_usec = driver->is_gating ? &driver->gated_usec : &driver->waited_usec;

	if (driver->asked_usec)
		*waited_usec += gcr_clock_usec() - driver->asked_usec;
	driver->asked_usec = 0;
}

int gcr_driver_check_stopped(struct gcr_driver_session *driver, struct gcr_error *error)
{
	struct gcr_proc_status status;

	/*
	 * A tracer's stop does not count: CRIU keeps a restored process in one until the thaw is
	 * accepted.
	 */
	if (gcr_proc_status(driver->process->pid, &status) < 0 || status.state != 'T')
		return 0;
	return gcr_error_set(error, EOPNOTSUPP,
			     "process %d is stopped by a signal, and could not take its memory "
			     "back: continue it (kill -CONT %d), then thaw",
			     (int)driver->process->pid, (int)driver->process->pid);
}

/* Has a signal stopped any thread, even if a debugger or the daemon has stopped others? */
static bool has_stopped_thread(pid_t pid)
{
	_cleanup_closedir_ DIR *directory = NULL;
	struct gcr_proc_status status;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	directory = opendir(path);
	for (struct dirent *entry; directory && (entry = readdir(directory));)
		if (gcr_proc_status((pid_t)strtol(entry->d_name, NULL, 10), &status) == 0 &&
		    status.state == 'T')
			return true;
	return false;
}

bool gcr_driver_sees_stop(struct gcr_driver_session *driver)
{
	pid_t pid = driver->process->pid;
	struct gcr_proc_status status;

	if (driver->is_halted)
		return has_stopped_thread(pid);
	return gcr_proc_status(pid, &status) == 0 && (status.state == 'T' || status.state == 't');
}

/* Has the process been seen stopped for STOPPED_USEC? */
static bool is_stopped(struct gcr_driver_session *driver, int64_t now_usec)
{
	if (!gcr_driver_sees_stop(driver)) {
		driver->stopped_usec = 0;
		return false;
	}
	if (!driver->stopped_usec)
		driver->stopped_usec = now_usec;
	return now_usec >= driver->stopped_usec + STOPPED_USEC;
}

/*
 * How long the process may keep others waiting. The size that its library lists does not count: a
 * library that lies could delay others for as long as it likes.
 */
static int64_t find_patience(struct gcr_driver_session *driver)
{
	return PATIENCE_USEC - driver->queued_usec +
	       (int64_t)(driver->patience_bytes / BYTES_PER_USEC);
}

void gcr_driver_note_queued(struct gcr_driver_session *driver, int64_t queued_usec)
{
	int64_t left_usec = find_patience(driver) - driver->waited_usec;

	/* The time for the bytes is not shortened. */
	if (left_usec > PATIENCE_USEC - driver->queued_usec)
		left_usec = PATIENCE_USEC - driver->queued_usec;
	if (queued_usec > left_usec - LEAST_USEC)
		queued_usec = left_usec - LEAST_USEC;
	if (queued_usec > 0)
		driver->queued_usec += queued_usec;
}

static bool has_lost_patience(struct gcr_driver_session *driver, int64_t now_usec)
{
	int64_t waited_usec = now_usec - driver->asked_usec;
	int64_t left_usec;

	if (driver->is_gating)
		return driver->gated_usec + waited_usec > GATE_USEC;
	left_usec = find_patience(driver) - driver->waited_usec - waited_usec;
	/* Looking at what has been moved may take a while. */
	if (left_usec < 0 && driver->moved_bytes)
		left_usec += (int64_t)(driver->moved_bytes(driver) / BYTES_PER_USEC);
	return left_usec < 0;
}

static bool is_late(struct gcr_driver_session *driver, int64_t now_usec)
{
	struct gcr_task *task = driver->task;

	if (has_lost_patience(driver, now_usec))
		return true;
	return !task->recovery && now_usec > gcr_task_deadline_usec(task) + LATE_USEC;
}

void gcr_driver_add_need(struct gcr_driver_session *driver, struct gcr_process *process,
			 const struct gcr_snapshot *snapshot, struct gcr_need *need)
{
	struct gcr_gpus *gpus = driver->daemon->gpus;

	pthread_mutex_lock(&process->lock);
	for (unsigned int i = 0; i < process->shares_count; i++) {
		const uint8_t *uuid = process->shares[i].uuid;
		int index;

		if (process == driver->process)
			uuid = gcr_driver_destination(driver, uuid);
		index = gcr_gpus_index(gpus, uuid);
		if (index >= 0)
			need->bytes[index] += process->shares[i].bytes + MARGIN_BYTES;
	}
	pthread_mutex_unlock(&process->lock);
	for (size_t i = 0; snapshot && i < gcr_snapshot_count(snapshot); i++) {
		const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, i);
		int index = gcr_gpus_index(gpus, extent->gpu);

		if (index >= 0 && extent->kind == GCR_MEMORY_DEVICE)
			need->bytes[index] += extent->bytes;
	}
	need->owner = driver->task->operation;
	need->pid = process->pid;
}

/*
 * Turns the admission into a need: the VRAM that a Restore under way may still take on these GPUs.
 * Does nothing without an admission.
 */
static void give_admission_up(struct gcr_driver_session *driver)
{
	if (!driver->admitted)
		return;
	/* In a second Restore of the same verb the need is noted already. */
	if (!driver->need.is_noted) {
		memset(driver->need.bytes, 0, sizeof(driver->need.bytes));
		gcr_driver_add_need(driver, driver->process, NULL, &driver->need);
	}
	gcr_admission_give_up(driver->daemon->admission, driver->admitted, &driver->need);
	driver->admitted = 0;
}

/*
 * Lets others start workers again in place of those that were ended to make room for a Restore, but
 * only if the contexts of these workers leave enough VRAM for that Restore.
 */
static void give_places_up(struct gcr_driver_session *driver)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	struct gcr_gpus *gpus = driver->daemon->gpus;
	struct gcr_error unused;

	if (!driver->ended_count)
		return;
	reply = calloc(1, sizeof(*reply));
	if (!reply || gcr_gpus_ask(gpus, driver->vendor, &unused) < 0)
		return;
	gcr_gpus_snapshot(gpus, reply);
	for (unsigned int i = 0; i < reply->gpus_count; i++)
		if (driver->need.is_noted && driver->need.bytes[i] &&
		    (!(reply->gpus[i].flags & GCR_GPU_MEMORY) || !driver->ended_bytes ||
		     reply->gpus[i].free_bytes < driver->need.bytes[i] ||
		     reply->gpus[i].free_bytes - driver->need.bytes[i] < driver->ended_bytes))
			return;
	gcr_driver_let_start(driver);
}

void gcr_driver_check_stall(struct gcr_driver_session *driver)
{
	int64_t now_usec = gcr_clock_usec();
	bool stopped;

	if (!driver->asked_usec)
		return;
	/* A verb that holds nothing delays no other verb. */
	if (!driver->admitted && !driver->has_workers && !driver->task->swap) {
		driver->asked_usec = now_usec;
		return;
	}
	if (!driver->lets_others) {
		stopped = is_stopped(driver, now_usec);
		if (!stopped && !is_late(driver, now_usec))
			return;
		driver->lets_others = true;
		gcr_log(LOG_WARNING, driver->process->pid,
			"it %s in the phase `%s` of its %s: others use its GPUs until it goes on",
			stopped ? "is stopped" : "does not answer",
			atomic_load(&driver->task->phase),
			gcr_verb_name(driver->task->command->verb));
	}
	give_admission_up(driver);
	give_places_up(driver);
	if (driver->let_others)
		driver->let_others(driver);
}

int gcr_driver_check_needs(struct gcr_driver_session *driver, const uint8_t uuid[GCR_UUID_BYTES],
			   uint64_t bytes, struct gcr_error *error)
{
	int index = gcr_gpus_index(driver->daemon->gpus, uuid);
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	uint64_t needed = 0;
	int result;

	if (index >= 0)
		needed = gcr_admission_needed(driver->daemon->admission, (unsigned int)index,
					      driver->task->operation);
	if (!needed)
		return 0;
	reply = calloc(1, sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_driver_query(driver, reply, error);
	if (result < 0)
		return result;
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		const struct gcr_gpu_info *gpu = &reply->gpus[i];

		if (!memcmp(gpu->uuid, uuid, GCR_UUID_BYTES) && gpu->flags & GCR_GPU_MEMORY &&
		    gpu->free_bytes >= needed && gpu->free_bytes - needed >= bytes)
			return 0;
	}
	return gcr_error_set(error, ENOMEM,
			     "GPU %d has no room for %" PRIu64 " MiB beside the %" PRIu64
			     " MiB that are kept for a process which stands still in the middle of "
			     "its thaw; continue or end that one, then try again",
			     index, bytes >> 20, needed >> 20);
}

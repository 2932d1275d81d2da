/* SPDX-License-Identifier: MIT */
/*
 * The `vmm` and `hip` engines: the program's preload library hands its VRAM over to the workers of
 * its GPUs, which copy it into the store at the speed of the link, while the driver checkpoints the
 * rest; with `hip`, and with `freeze data`, the rest stays where it is.
 *
 * Location of the bytes, and the way back, at every point of a freeze:
 *   until HAND_OVER     in the program; its managed memory, from HOLD on, in files of which the
 *                       program has descriptors;
 *   until COMMIT        in VRAM, kept alive by the program's own descriptors: the program takes it
 *                       back itself, even if the daemon and the workers are dead;
 *   from the record "frozen" on, which comes before COMMIT: in the store, complete.
 * On thaw the bytes stay in the store until the program has opened its gate.
 *
 * The agent in the program calls the driver, so it cannot be sent requests while the driver has the
 * process locked or checkpointed: a roll-back first brings the driver back to running.
 *
 * Points at which the process could be lost, each with a test that fires there: gate, table, store
 * full, SAVE, HOLD, hand-over, worker, Lock, Checkpoint, copy, vote, record, COMMIT; CREATE,
 * ballast, EXPORT, Restore, Unlock, RECEIVE, copy in, vote, FINISH, GATE_OPEN: an error from each,
 * the helper, the worker, the daemon or the program killed in each, and a deadline or a cancel in
 * each.
 */
#include "fs/engine/engine.h"

#include <errno.h>
#include <stdio.h>

#include "fs/base/log.h"
#include "fs/engine/swap.h"
#include "fs/engine/vmm.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* How long to try to tell a library that the driver has deinitialised in its program. */
#define TELL_USEC (2 * GCR_USEC_PER_SEC)

/*
 * The process does not answer: releases the GPU resources that the verb holds. Called as
 * driver->let_others().
 */
static void let_others(struct gcr_driver_session *driver)
{
	struct gcr_vmm *vmm = (struct gcr_vmm *)((char *)driver - offsetof(struct gcr_vmm, driver));

	if (driver->task->swap)
		gcr_swap_let_others(driver, gcr_swap_freezes(driver->task) ? vmm->snapshot : NULL);
	gcr_vmm_set_workers_aside(vmm);
	gcr_vmm_give_usage_up(vmm);
}

/*
 * Bytes that have been moved by now, as driver->moved_bytes(): device memory of which workers have
 * handles, up to what the process can have (two handles can be of the same memory), and managed
 * memory that is in files.
 */
static uint64_t moved_bytes(struct gcr_driver_session *driver)
{
	struct gcr_vmm *vmm = (struct gcr_vmm *)((char *)driver - offsetof(struct gcr_vmm, driver));
	uint64_t bytes = vmm->imported_bytes;

	if (bytes > vmm->used_bytes)
		bytes = vmm->used_bytes;
	return vmm->transit ? bytes + gcr_transit_held_bytes(vmm->transit) : bytes;
}

void gcr_vmm_init(struct gcr_vmm *vmm, struct gcr_task *task)
{
	*vmm = (struct gcr_vmm){0};
	gcr_driver_session_init(&vmm->driver, task, task->process->vendor->backend->engine);
	vmm->driver.let_others = let_others;
	vmm->driver.moved_bytes = moved_bytes;
}

/*
 * Gives the verb's reference to the snapshot back. If the process has ended, its files are removed
 * too.
 */
static void let_go_of_snapshot(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_snapshot *snapshot = TAKE_PTR(vmm->snapshot);
	struct gcr_store *store = vmm->driver.daemon->store;

	if (!snapshot)
		return;
	if (gcr_process_has_ended(process))
		gcr_snapshot_discard(snapshot);
	else
		gcr_snapshot_unref(snapshot);
	if (!gcr_process_has_ended(process))
		return;
	gcr_store_pool_drop(store, process->pid, process->start_ticks);
	gcr_store_drop_kept(store, process->pid, process->start_ticks);
	gcr_store_drop_left(store, process->pid, process->start_ticks);
}

void gcr_vmm_finish(struct gcr_vmm *vmm)
{
	gcr_vmm_close_sessions(vmm);
	gcr_vmm_drop_handles(vmm);
	free(vmm->handles);
	gcr_digest_buffer_destroy(vmm->digests);
	gcr_vmm_drop_transit(vmm);
	gcr_quota_release(&vmm->descriptors_charge);
	gcr_library_put(TAKE_PTR(vmm->library));
	let_go_of_snapshot(vmm);
	free(vmm->own_extents);
	gcr_driver_session_finish(&vmm->driver);
}

int gcr_vmm_map_error(int result, struct gcr_error *error)
{
	if (result == -EMFILE)
		error->number = EOPNOTSUPP;
	else if (result == -EPIPE || result == -ENOTCONN || result == -EPROTO ||
		 result == -ENOTRECOVERABLE || result == -E2BIG)
		error->number = EIO;
	else
		return result;
	return -error->number;
}

int64_t gcr_vmm_elapsed(int64_t *since_usec)
{
	int64_t now_usec = gcr_clock_usec();
	int64_t duration_usec = now_usec - *since_usec;

	*since_usec = now_usec;
	return duration_usec;
}

/* ---- roll-back ---- */

void gcr_vmm_add_words(struct gcr_vmm *vmm, const struct gcr_error *back_error,
		       struct gcr_error *error)
{
	char first[GCR_ERROR_WORDS_MAX];

	snprintf(first, sizeof(first), "%s", error->words);
	gcr_error_set(error, error->number ? error->number : back_error->number, "%s%s%s", first,
		      *first ? "; " : "", back_error->words);
	gcr_log(LOG_ERR, vmm->driver.process->pid, "roll-back: %s", back_error->words);
}

/*
 * Gives the program its memory back and opens its gate. The driver must have the process running.
 */
static int memory_to_running(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_error unused;
	int result = gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);

	if (result < 0)
		return result;
	/* A HOLD that was not answered may have been carried out all the same. */
	if (vmm->phase == GCR_PRELOAD_GATED && vmm->count > vmm->device_count)
		gcr_vmm_ask(vmm, GCR_MESSAGE_TAKE_BACK, &unused);
	if (vmm->phase == GCR_PRELOAD_HANDED || vmm->phase == GCR_PRELOAD_HELD) {
		/*
		 * Send the files again: most likely the library still has them, and it reports a
		 * missing one itself. Separate transit files that an earlier daemon gave to the
		 * library exist only there, and cannot be made again.
		 */
		if (!vmm->transit && vmm->snapshot && !gcr_transit_is_apart(vmm->snapshot))
			gcr_vmm_make_transit(vmm, GCR_TRANSIT_OUT, &unused);
		gcr_vmm_send_files(vmm, &unused);
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_TAKE_BACK, error);
	}
	/* Also sent to a running library: a gate that was closed in vain stays closed. */
	if (!result)
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_GATE_OPEN, error);
	return result;
}

int gcr_vmm_back_to_running(struct gcr_vmm *vmm, bool by_driver, enum gcr_state *ret_state,
			    struct gcr_error *error)
{
	int result = 0;

	gcr_vmm_close_sessions(vmm);
	gcr_driver_session_set_phase(&vmm->driver, "rollback");
	vmm->driver.rolling_back = true;
	if (by_driver)
		result = gcr_driver_to_running(&vmm->driver, ret_state, error);
	/* The library may never answer: give the admission back before the request. */
	gcr_driver_leave_admission(&vmm->driver);
	if (vmm->transit)
		gcr_transit_stop(vmm->transit);
	if (!result)
		result = memory_to_running(vmm, error);
	if (result < 0) {
		*ret_state = GCR_STATE_FAILED;
		return result;
	}
	vmm->needs_transit = false;
	*ret_state = GCR_STATE_RUNNING;
	gcr_driver_remove_record(&vmm->driver);
	if (vmm->snapshot)
		gcr_snapshot_discard(TAKE_PTR(vmm->snapshot));
	vmm->extents = NULL;
	return 0;
}

void gcr_vmm_let_workers_go(struct gcr_vmm *vmm)
{
	struct gcr_driver_session *driver = &vmm->driver;

	if (gcr_task_is_alone(driver->task) && !driver->need_unknown)
		gcr_vmm_begin_close(vmm);
	else
		gcr_vmm_close_sessions(vmm);
}

/* ---- freeze and thaw ---- */

void gcr_vmm_set_running(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_snapshot *snapshot;
	uint64_t given_bytes = 0;
	bool may_keep;

	/* After a freeze that was rolled back there are none: the program has its own memory. */
	for (size_t i = 0; vmm->extents && i < vmm->device_count; i++)
		given_bytes += vmm->extents[i].bytes;
	gcr_driver_remove_record(&vmm->driver);
	pthread_mutex_lock(&process->lock);
	snapshot = TAKE_PTR(process->snapshot);
	process->pinned_by = 0;
	process->was_handed_over = true;
	if (given_bytes)
		process->given_bytes = given_bytes;
	pthread_mutex_unlock(&process->lock);
	/* The files of managed memory may no longer match the metadata. */
	may_keep = vmm->is_verified && vmm->device_count == vmm->count;
	gcr_snapshot_unref(TAKE_PTR(vmm->snapshot));
	vmm->extents = NULL;
	if (snapshot && (!may_keep || gcr_store_keep(snapshot, &vmm->digests) < 0))
		gcr_snapshot_discard(snapshot);
	/*
	 * The end of the process, or of its program by execve(2), was handled before the snapshot
	 * was kept: drop it here.
	 */
	if (may_keep &&
	    (gcr_process_has_ended(process) || gcr_driver_sees_other_program(&vmm->driver)))
		gcr_process_drop_kept(process);
}

void gcr_vmm_use_snapshot(struct gcr_vmm *vmm)
{
	vmm->count = gcr_snapshot_count(vmm->snapshot);
	vmm->extents = vmm->count ? gcr_snapshot_extent(vmm->snapshot, 0) : NULL;
	vmm->device_count = 0;
	while (vmm->device_count < vmm->count &&
	       vmm->extents[vmm->device_count].kind == GCR_MEMORY_DEVICE)
		vmm->device_count++;
	vmm->timing.bytes = gcr_snapshot_bytes(vmm->snapshot);
}

/*
 * The program is ending: removes the memory that it has handed over from the store, and releases
 * its threads from the gate.
 */
static void let_program_go(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_snapshot *snapshot;
	struct gcr_error unused;

	gcr_vmm_close_sessions(vmm);
	/*
	 * The library may not know: then the program's threads wait at the gate, perhaps in its
	 * exit.
	 */
	if (!gcr_library_is_ending(process) && gcr_vmm_connect(vmm, TELL_USEC, &unused) == 0)
		gcr_vmm_ask(vmm, GCR_MESSAGE_DRIVER_GONE, &unused);
	pthread_mutex_lock(&process->lock);
	snapshot = TAKE_PTR(process->snapshot);
	process->pinned_by = 0;
	pthread_mutex_unlock(&process->lock);
	if (!snapshot)
		snapshot = TAKE_PTR(vmm->snapshot);
	gcr_snapshot_unref(TAKE_PTR(vmm->snapshot));
	vmm->extents = NULL;
	gcr_snapshot_discard(snapshot);
}

/* ---- the engine ---- */

/*
 * Called after every verb: a frozen process holds its files and the driver's share, a running one
 * nothing.
 */
static void set_held(struct gcr_process *process, enum gcr_state state)
{
	pthread_mutex_lock(&process->lock);
	if (state == GCR_STATE_RUNNING)
		process->shares_count = 0;
	process->held_bytes = process->snapshot ? gcr_snapshot_bytes(process->snapshot) : 0;
	for (unsigned int i = 0; i < process->shares_count; i++)
		process->held_bytes += process->shares[i].bytes;
	pthread_mutex_unlock(&process->lock);
}

static int run(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error,
	       int (*verb)(struct gcr_vmm *, enum gcr_state *, struct gcr_error *))
{
	_cleanup_free_ struct gcr_vmm *vmm = malloc(sizeof(*vmm));
	int result;

	*ret_state = gcr_state_is_transition(task->from) ? GCR_STATE_FAILED : task->from;
	if (!vmm)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_vmm_init(vmm, task);
	result = verb(vmm, ret_state, error);
	/* Any failure may be a consequence of the process's end. */
	if (result < 0)
		result = gcr_driver_explain_end(&vmm->driver, result, error);
	if (gcr_driver_let_go(&vmm->driver, result, ret_state))
		let_program_go(vmm);
	task->timing = vmm->timing;
	gcr_vmm_finish(vmm);
	set_held(task->process, *ret_state);
	return result;
}

static int vmm_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, gcr_vmm_freeze);
}

static int vmm_thaw(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, gcr_vmm_thaw);
}

static int vmm_recover(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, gcr_vmm_recover);
}

const struct gcr_engine gcr_engine_hip = {
	.name = "hip",
	.freeze = vmm_freeze,
	.thaw = vmm_thaw,
	.recover = vmm_recover,
};

const struct gcr_engine gcr_engine_vmm = {
	.name = "vmm",
	.freeze = vmm_freeze,
	.thaw = vmm_thaw,
	.recover = vmm_recover,
};

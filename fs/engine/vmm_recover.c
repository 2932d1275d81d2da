/* SPDX-License-Identifier: MIT */
/*
 * Recovery of the vmm engine, after an earlier daemon died or a roll-back failed. The program's
 * library and the store together tell where the program's memory is.
 */
#include "fs/engine/vmm.h"

#include <errno.h>

#include "fs/base/log.h"

int gcr_vmm_reach(struct gcr_vmm *vmm, enum gcr_control_state *control, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	enum gcr_state state;
	int result = gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);

	if (result != -ENOTCONN || *control != GCR_CONTROL_CHECKPOINTED)
		return result;
	if (gcr_driver_to_running(driver, &state, error) < 0)
		return -EIO;
	gcr_driver_let_start(driver);
	gcr_driver_leave_admission(driver);
	driver->rolling_back = false;
	*control = GCR_CONTROL_RUNNING;
	return gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);
}

/* Opens the snapshot that the earlier daemon wrote, as vmm->snapshot; logs why it cannot. */
static void find_snapshot(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_error error = {0};

	if (gcr_snapshot_open(vmm->driver.daemon->store, process->pid, process->start_ticks,
			      process->generation, &vmm->snapshot, &error) < 0)
		gcr_log(LOG_WARNING, process->pid, "%s", error.words);
	else
		gcr_vmm_use_snapshot(vmm);
}

static void publish(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_error unused;

	/* Errors in its files are reported by the thaw. */
	if (vmm->snapshot)
		gcr_task_hold_snapshot(vmm->driver.task, vmm->snapshot, &unused);
	pthread_mutex_lock(&process->lock);
	if (!process->snapshot && vmm->snapshot && process->state != GCR_STATE_GONE)
		process->snapshot = gcr_snapshot_ref(vmm->snapshot);
	pthread_mutex_unlock(&process->lock);
}

int gcr_vmm_recover_to_running(struct gcr_vmm *vmm, enum gcr_state *ret_state,
			       struct gcr_error *error)
{
	int result = gcr_vmm_back_to_running(vmm, true, ret_state, error);

	if (!result)
		gcr_vmm_set_running(vmm);
	return result;
}

int gcr_vmm_recover(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	enum gcr_state from = driver->task->from;
	enum gcr_control_state control = GCR_CONTROL_UNKNOWN;
	/* A freeze whose files may be incomplete. */
	bool is_freezing = from == GCR_STATE_FREEZING || from == GCR_STATE_FAILED;
	int result;

	gcr_driver_session_set_phase(driver, "recovery");
	*ret_state = from == GCR_STATE_FROZEN ? GCR_STATE_FROZEN : GCR_STATE_FAILED;
	find_snapshot(vmm);
	if (!is_freezing)
		publish(vmm);
	result = gcr_driver_ask_state(driver, &control, error);
	if (!result)
		gcr_driver_recover_places(driver, control);
	/*
	 * Only an earlier daemon can have locked the process, and the agent cannot work while it is
	 * locked.
	 */
	if (!result && control == GCR_CONTROL_LOCKED) {
		result = gcr_driver_unlock(driver, error);
		control = GCR_CONTROL_RUNNING;
	}
	if (!result)
		result = gcr_vmm_reach(vmm, &control, error);
	if (result < 0)
		return gcr_vmm_map_error(result, error);
	if (vmm->phase == GCR_PRELOAD_INCOMING)
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_LET_GO, error);
	/*
	 * Before COMMIT, VRAM still has all bytes: a process whose files are lost goes back to
	 * running.
	 */
	if (!result && !is_freezing && vmm->snapshot && vmm->phase == GCR_PRELOAD_HANDED)
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_COMMIT, error);
	if (result < 0)
		return gcr_vmm_map_error(result, error);
	if (vmm->phase != GCR_PRELOAD_OUT)
		return gcr_vmm_recover_to_running(vmm, ret_state, error);
	if (!vmm->snapshot)
		return gcr_error_set(error, EIO, "its bytes are no longer in the store");
	/*
	 * In the thaw that did not end, threads may have written to pages that were already back.
	 */
	if (from == GCR_STATE_THAWING && vmm->device_count < vmm->count &&
	    (gcr_vmm_read_digests(vmm, error) < 0 || gcr_vmm_seal_again(vmm, error) < 0))
		gcr_log(LOG_WARNING, driver->process->pid, "%s", error->words);
	publish(vmm);
	*ret_state = GCR_STATE_FROZEN;
	if (gcr_driver_write_record(driver, GCR_RECORD_FROZEN, error) < 0)
		gcr_log(LOG_WARNING, driver->process->pid, "%s", error->words);
	return 0;
}

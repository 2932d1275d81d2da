/* SPDX-License-Identifier: MIT */
/*
 * The thaw of the vmm engine: first VRAM for all extents, then control state and bytes at the same
 * time, while the program maps the memory behind its gate. The gate opens when everything has been
 * verified.
 */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/swap.h"
#include "fs/engine/park.h"
#include "lib/clock.h"

/*
 * If the library had the files, copies the changes that the program's threads may have made to
 * restored pages back to the store.
 */
static int keep_changes(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result;

	if (!vmm->has_given_files)
		return 0;
	result = gcr_vmm_return_transit(vmm, error);
	if (!result)
		return gcr_vmm_seal_again(vmm, error);
	/*
	 * The files may still be those of the freeze, and must not be taken for all that the
	 * program has. A library that has truncated its files (-EIO) has none of its own changes
	 * left.
	 */
	if (result != -EIO && gcr_snapshot_unseal(vmm->snapshot) < 0)
		gcr_log(LOG_ERR, vmm->driver.process->pid, "its manifest cannot be removed");
	return result;
}

/*
 * Rolls back from any point before FINISH to frozen. @control: the driver's state of the process
 * before the thaw. The driver's own share stays in VRAM if it cannot be checkpointed again.
 *
 * While the program has VRAM that was handed over, the process must not be checkpointed, since it
 * could never be restored. So a program that has all its memory keeps running (*ret_state is
 * running). A process whose library does not answer has failed; the store's bytes and the record
 * stay in place.
 */
static void back_to_frozen(struct gcr_vmm *vmm, enum gcr_control_state control,
			   enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_error back_error = {0};
	int result;

	gcr_driver_session_set_phase(driver, "rollback");
	driver->rolling_back = true;
	gcr_driver_leave_admission(driver);
	gcr_vmm_close_sessions(vmm);
	gcr_vmm_drop_handles(vmm);
	*ret_state = GCR_STATE_FROZEN;
	result = gcr_driver_ask_state(driver, &state, &back_error);
	if (result < 0 ? vmm->phase == GCR_PRELOAD_INCOMING : state == GCR_CONTROL_RUNNING) {
		/*
		 * The program releases the memory that it has been given, unless it has all of it.
		 */
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_LET_GO, &back_error);
		if (!result && gcr_vmm_has_its_memory(vmm)) {
			*ret_state = GCR_STATE_RUNNING;
			return;
		}
		if (result < 0) {
			*ret_state = GCR_STATE_FAILED;
			gcr_vmm_add_words(vmm, &back_error, error);
			if (keep_changes(vmm, &back_error) < 0)
				gcr_log(LOG_WARNING, driver->process->pid, "%s", back_error.words);
			return;
		}
	}
	if (!result && control == GCR_CONTROL_CHECKPOINTED)
		result = gcr_driver_to_checkpointed(driver, &back_error);
	if (result < 0)
		gcr_vmm_add_words(vmm, &back_error, error);
	/* Whatever the driver says: the program has these changes nowhere else. */
	if (keep_changes(vmm, &back_error) < 0)
		gcr_vmm_add_words(vmm, &back_error, error);
	driver->record.swap_pid = 0;
	if (gcr_driver_write_record(driver, GCR_RECORD_FROZEN, &back_error) < 0)
		gcr_log(LOG_WARNING, driver->process->pid, "%s", back_error.words);
}

/*
 * Notes in the record, before the freeze begins, which process is frozen for this one: a next
 * daemon that finds both processes frozen then knows why.
 */
static int note_swap(struct gcr_driver_session *driver, struct gcr_error *error)
{
	const struct gcr_process *frozen;

	if (!gcr_swap_thaws(driver->task))
		return 0;
	frozen = gcr_task_sibling(driver->task, 1);
	driver->record.swap_pid = frozen->pid;
	driver->record.swap_start_ticks = frozen->start_ticks;
	return gcr_driver_write_record(driver, GCR_RECORD_FROZEN, error);
}

/* Makes the workers allocate VRAM for all extents. -ENOMEM. */
static int create(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_error create_error = {0};
	int result = gcr_vmm_begin_create(vmm, error);
	int created = gcr_vmm_end_create(vmm, &create_error);

	if (result < 0 || !created)
		return result;
	*error = create_error;
	return created;
}

static int open_sessions(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = gcr_vmm_open_sessions(vmm, GCR_MESSAGE_SESSION_IN,
					   vmm->needs_control ? GCR_VMM_COPIES_IN_FLIGHT : 0,
					   error);

	if (result == -ENOMEM)
		gcr_vmm_close_sessions(vmm);
	return result;
}

static int take_ballast(struct gcr_vmm *vmm, struct gcr_error *error)
{
	return vmm->needs_control ? gcr_vmm_take_ballast(vmm, error) : 0;
}

/*
 * gcr_driver_take_admission(), also for GPUs on which the process has only the driver's share. Does
 * nothing if the driver's state is not restored.
 */
static int admit(struct gcr_vmm *vmm, struct gcr_error *error)
{
	return vmm->needs_control ? gcr_driver_take_admission(&vmm->driver, error) : 0;
}

/*
 * Carries out @step, one step of allocating VRAM. If that gives -ENOMEM, repeats it when the other
 * task of a swap has released some VRAM, or when idle workers have been ended.
 */
static int take(struct gcr_vmm *vmm, int (*step)(struct gcr_vmm *, struct gcr_error *),
		struct gcr_error *error)
{
	struct gcr_task *task = vmm->driver.task;

	for (;;) {
		bool may_wait = gcr_swap_may_wait(task);
		int result = step(vmm, error);

		if (result != -ENOMEM || (!may_wait && !gcr_vmm_end_idle_workers(vmm)))
			return result;
		*error = (struct gcr_error){0};
		if (may_wait && gcr_swap_wait_room(task) < 0)
			return gcr_driver_session_stopped(error);
	}
}

/*
 * Bytes of VRAM that a thaw fills: device memory, and the driver's share if that is restored.
 * Managed memory is not included; driver->moved_bytes() counts that part of it that is in files.
 */
static uint64_t frozen_bytes(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->driver.process;
	uint64_t bytes = 0;

	for (size_t i = 0; i < vmm->device_count; i++)
		bytes += vmm->extents[i].bytes;
	pthread_mutex_lock(&process->lock);
	for (unsigned int i = 0; vmm->needs_control && i < process->shares_count; i++)
		bytes += process->shares[i].bytes;
	pthread_mutex_unlock(&process->lock);
	return bytes;
}

/* Takes VRAM for the whole process. Until then nothing of the process is touched. */
static int take_vram(struct gcr_vmm *vmm, enum gcr_control_state control, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	int64_t since_usec = gcr_clock_usec();
	uint32_t mask;
	int result;

	vmm->needs_control = control == GCR_CONTROL_CHECKPOINTED;
	mask = vmm->needs_control ? gcr_driver_need_mask(driver) : 0;
	mask |= gcr_swap_gpus(driver->task);
	gcr_task_set_bytes(driver->task, gcr_snapshot_bytes(vmm->snapshot));
	driver->patience_bytes = frozen_bytes(vmm);
	result = gcr_vmm_assign(vmm, error);
	/* Users may have written the metadata: other thaws do not wait while they are read. */
	if (!result)
		result = gcr_vmm_read_digests(vmm, error);
	if (!result)
		result = gcr_driver_wait_turn(driver, mask | gcr_vmm_gpu_mask(vmm), error);
	if (!result)
		result = note_swap(driver, error);
	if (!result && gcr_swap_begin_thaw(driver->task) < 0)
		result = gcr_driver_session_stopped(error);
	if (!result)
		result = take(vmm, open_sessions, error);
	if (!result)
		result = take(vmm, gcr_vmm_check_needs, error);
	if (!result)
		result = take(vmm, create, error);
	if (!result)
		result = take(vmm, take_ballast, error);
	if (!result)
		result = take(vmm, admit, error);
	vmm->timing.map_usec = gcr_vmm_elapsed(&since_usec);
	return result;
}

/*
 * Restores the control state and copies the bytes at the same time; the workers began to copy when
 * they had VRAM. The program maps the memory while it is being filled: its gate is closed.
 */
static int move_in(struct gcr_vmm *vmm, enum gcr_control_state control, enum gcr_state *ret_state,
		   struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	int64_t since_usec = gcr_clock_usec();
	int result = gcr_vmm_export(vmm, error);

	vmm->timing.handover_usec = gcr_vmm_elapsed(&since_usec);
	if (!result && control == GCR_CONTROL_CHECKPOINTED)
		result = gcr_vmm_drop_ballast(vmm, error);
	if (!result && control == GCR_CONTROL_CHECKPOINTED) {
		result = gcr_driver_restore(driver, ret_state, error);
		vmm->timing.control_usec = gcr_vmm_elapsed(&since_usec);
	}
	/* From here on the number of queued copies need not be limited. */
	if (!result)
		result = gcr_vmm_begin_copy(vmm, error);
	gcr_driver_leave_admission(driver);
	if (!result && control != GCR_CONTROL_RUNNING)
		result = gcr_driver_unlock(driver, error);
	if (!result) {
		gcr_driver_session_set_phase(driver, "map");
		result = gcr_vmm_receive(vmm, error);
	}
	vmm->timing.map_usec += gcr_vmm_elapsed(&since_usec);
	if (!result) {
		gcr_driver_session_set_phase(driver, "copy");
		result = gcr_vmm_verify_managed(vmm, error);
	}
	if (!result)
		result = gcr_vmm_end_transit(vmm, error);
	if (!result)
		result = gcr_vmm_end_copy(vmm, error);
	vmm->is_verified = !result && !driver->task->command->unverified;
	gcr_vmm_let_workers_go(vmm);
	return result;
}

/* FINISH: gives the library its files, and the program its managed memory back. */
static int give_back(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int64_t since_usec = gcr_clock_usec();
	int result;

	gcr_driver_session_set_phase(&vmm->driver, "map");
	vmm->has_given_files = vmm->count > vmm->device_count;
	result = gcr_vmm_send_files(vmm, error);
	if (!result)
		result = gcr_vmm_bring_in(vmm, GCR_MESSAGE_FINISH, error);
	vmm->timing.map_usec += gcr_vmm_elapsed(&since_usec);
	return result;
}

/*
 * GATE_OPEN: the program has its memory, so there is no roll-back, and a failure is tried again. 0
 * also if the library has opened the gate by itself; errors of gcr_vmm_request_until_answered().
 */
static int go_on(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int64_t since_usec = gcr_clock_usec();
	int result = gcr_vmm_ask(vmm, GCR_MESSAGE_GATE_OPEN, error);

	/* A gated library without a daemon opens the gate by itself. */
	if (result == -ENOTCONN)
		result = 0;
	if (result < 0)
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_GATE_OPEN, error);
	vmm->timing.map_usec += gcr_vmm_elapsed(&since_usec);
	return result;
}

/*
 * Checks that the library of a process that CRIU has restored names the freeze whose bytes the
 * process will get. -EIO: it names another one.
 */
static int check_generation(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_process *process = vmm->driver.process;
	char its[40] = "";
	bool is_same = true;

	gcr_library_generation(process, its);
	pthread_mutex_lock(&process->lock);
	if (process->is_restored)
		is_same = !strcmp(its, process->generation);
	pthread_mutex_unlock(&process->lock);
	return is_same ? 0
		       : gcr_error_set(error, EIO,
				       "its library says that its memory is of another freeze (%s)",
				       *its ? its : "none");
}

int gcr_vmm_thaw(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	enum gcr_control_state control = GCR_CONTROL_UNKNOWN;
	int result = 0;

	*ret_state = driver->task->from;
	pthread_mutex_lock(&driver->process->lock);
	vmm->snapshot = driver->process->snapshot ? gcr_snapshot_ref(driver->process->snapshot)
						  : NULL;
	pthread_mutex_unlock(&driver->process->lock);
	if (vmm->snapshot)
		gcr_vmm_use_snapshot(vmm);
	else if (driver->task->from == GCR_STATE_FAILED || driver->task->from == GCR_STATE_FROZEN)
		/* Recovery could not open its snapshot. */
		result = gcr_vmm_recover(vmm, ret_state, error);
	/* If recovery found the process frozen, it still has to be thawed. */
	if (result < 0 || *ret_state == GCR_STATE_RUNNING)
		return result;
	if (!driver->task->is_undoing) {
		result = gcr_driver_check_stopped(driver, error);
		if (result < 0)
			return result;
	}
	gcr_unpark(driver->process);
	gcr_driver_session_set_phase(driver, "admission");
	result = vmm->snapshot ? gcr_driver_ask_state(driver, &control, error)
			       : gcr_error_set(error, EIO, "its bytes are not in the store");
	if (!result)
		gcr_driver_recover_places(driver, control);
	if (!result)
		result = gcr_driver_make_pairs(driver, error);
	if (!result && control == GCR_CONTROL_FAILED)
		result = gcr_error_set(error, EIO, "the driver says the process has failed");
	if (!result)
		result = gcr_vmm_make_digests(vmm, error);
	if (!result)
		result = gcr_vmm_reach(vmm, &control, error);
	if (!result)
		result = gcr_driver_follow_context(driver, control, error);
	if (!result)
		result = check_generation(vmm, error);
	/* Before COMMIT, VRAM still has all bytes, whatever has become of the files. */
	if (!result && vmm->phase == GCR_PRELOAD_HANDED)
		result = gcr_vmm_read_digests(vmm, error);
	if (!result && vmm->phase == GCR_PRELOAD_HANDED)
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_COMMIT, error);
	if (!result && vmm->phase == GCR_PRELOAD_INCOMING)
		result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_LET_GO, error);
	if (result < 0)
		return gcr_vmm_map_error(result, error);
	if (vmm->phase != GCR_PRELOAD_OUT)
		return gcr_vmm_recover_to_running(vmm, ret_state, error);
	result = take_vram(vmm, control, error);
	if (!result && gcr_task_stopped(driver->task))
		result = gcr_driver_session_stopped(error);
	if (!result)
		result = gcr_driver_write_record(driver, GCR_RECORD_THAWING, error);
	*ret_state = GCR_STATE_FROZEN;
	if (!result)
		result = gcr_vmm_make_transit(vmm, GCR_TRANSIT_IN, error);
	if (!result)
		result = gcr_vmm_begin_transit(vmm, GCR_TRANSIT_IN, error);
	if (!result)
		result = move_in(vmm, control, ret_state, error);
	if (*ret_state == GCR_STATE_FAILED)
		return result;
	if (!result)
		result = gcr_swap_commit(driver->task) < 0 ? gcr_driver_session_stopped(error) : 0;
	if (!result)
		result = give_back(vmm, error);
	/* An ending program cannot be frozen again: the caller releases it. */
	if (result < 0 && gcr_driver_sees_end(driver))
		return gcr_vmm_map_error(result, error);
	if (result < 0) {
		back_to_frozen(vmm, control, ret_state, error);
		if (*ret_state != GCR_STATE_RUNNING)
			return gcr_vmm_map_error(result, error);
	}
	result = go_on(vmm, error);
	gcr_vmm_close_sessions(vmm);
	if (result < 0) {
		*ret_state = GCR_STATE_FAILED;
		return gcr_vmm_map_error(result, error);
	}
	gcr_vmm_set_running(vmm);
	*ret_state = GCR_STATE_RUNNING;
	return 0;
}

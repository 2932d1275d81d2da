/* SPDX-License-Identifier: MIT */
/*
 * The `vmm` engine: the program's preload library hands its VRAM over to the workers of its GPUs,
 * which copy it into the store at the speed of the link, while the driver checkpoints what is left.
 *
 * Where the bytes are, and who can bring them back, at every point of a freeze:
 *   until HAND_OVER     in the program; its managed memory, from HOLD on, in files that it has
 * descriptors of;
 *   until COMMIT        in VRAM, which the program's own descriptors keep: it takes them back
 * itself, also if the daemon and the workers are dead; from the record "frozen" on, which comes
 * before COMMIT: in the store, complete. On thaw they stay in the store until the program has
 * opened its gate.
 *
 * The agent in the program calls the driver, and so cannot be asked to while the driver has the
 * process locked or checkpointed: the way back first brings the driver back.
 *
 * Points at which the process could be lost, each with a test that fires there: gate, table, store
 * full, SAVE, HOLD, hand-over, worker, Lock, Checkpoint, copy, vote, record, COMMIT; CREATE,
 * ballast, Restore, copy in, EXPORT, vote, Unlock, RECEIVE, SETTLE, GATE_OPEN: an error from each,
 * the helper, the worker, the daemon or the program killed in each, and a deadline or a cancel in
 * each.
 */
#include "fs/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/children.h"
#include "fs/helper.h"
#include "fs/log.h"
#include "fs/vmm.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* A running program's library answers at once. */
#define CONNECT_USEC	 (2 * GCR_USEC_PER_SEC)
/*
 * How many copies may be queued towards the GPU while the driver restores: with a deep queue the
 * restore takes two and a half times as long (measured).
 */
#define COPIES_IN_FLIGHT 4

void gcr_vmm_init(struct gcr_vmm *vmm, struct gcr_task *task)
{
	*vmm = (struct gcr_vmm){0};
	vmm->digests_fd = -1;
	gcr_drive_init(&vmm->drive, task, gcr_engine_vmm.name);
}

/* Of a process that has ended nobody needs the bytes. */
static void let_go_of_snapshot(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->drive.process;
	struct gcr_snapshot *snapshot = TAKE_PTR(vmm->snapshot);
	struct gcr_store *store = vmm->drive.daemon->store;

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
	for (size_t i = 0; vmm->handles && i < vmm->device_count; i++)
		if (vmm->handles[i] >= 0)
			close(vmm->handles[i]);
	free(vmm->handles);
	if (vmm->digests_map)
		munmap(vmm->digests_map, vmm->digests_bytes);
	if (vmm->digests_fd >= 0)
		close(vmm->digests_fd);
	gcr_link_put(TAKE_PTR(vmm->link));
	let_go_of_snapshot(vmm);
	free(vmm->own_extents);
	gcr_drive_finish(&vmm->drive);
}

/*
 * What the writer gets for a failure between us and the program: what is between them has no errno
 * of its own in the contract.
 */
static int outward(int result, struct gcr_error *error)
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

/* Microseconds since *@since_usec, which becomes now. */
static int64_t lap(int64_t *since_usec)
{
	int64_t now_usec = gcr_clock_usec();
	int64_t duration_usec = now_usec - *since_usec;

	*since_usec = now_usec;
	return duration_usec;
}

/* ---- the way back ---- */

/* The first words stay; what went wrong on the way back is added. */
static void add_words(struct gcr_vmm *vmm, const struct gcr_error *back_error,
		      struct gcr_error *error)
{
	char first[GCR_ERROR_WORDS_MAX];

	snprintf(first, sizeof(first), "%s", error->words);
	gcr_error_set(error, error->number ? error->number : back_error->number, "%s%s%s", first,
		      *first ? "; " : "", back_error->words);
	gcr_log(LOG_ERR, vmm->drive.process->pid, "roll-back: %s", back_error->words);
}

/* The program has its memory and goes on; the driver has it running. */
static int memory_to_running(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_error unused;
	int result = gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);

	if (result < 0)
		return result;
	/* A HOLD that was not answered may yet have been done. */
	if (vmm->phase == GCR_PRELOAD_GATED && vmm->count > vmm->device_count)
		gcr_vmm_ask(vmm, GCR_MESSAGE_TAKE_BACK, &unused);
	if (vmm->phase == GCR_PRELOAD_HANDED || vmm->phase == GCR_PRELOAD_HELD) {
		/* Most likely it has them still; it says itself if one is missing. */
		if (vmm->count > vmm->device_count && vmm->snapshot)
			gcr_vmm_send_files(vmm, &unused);
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_TAKE_BACK, error);
	}
	/* Also if it is running: a gate that was closed in vain stays closed. */
	if (!result)
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_GATE_OPEN, error);
	return result;
}

/*
 * From anywhere before COMMIT to running; @by_driver: it may be locked. On failure it has failed,
 * with all that is needed to try again left in place: its record says that a freeze was under way.
 */
static int back_to_running(struct gcr_vmm *vmm, bool by_driver, enum gcr_state *ret_state,
			   struct gcr_error *error)
{
	int result = 0;

	gcr_vmm_close_sessions(vmm);
	gcr_drive_set_phase(&vmm->drive, "rollback");
	vmm->drive.rolling_back = true;
	if (by_driver)
		result = gcr_drive_to_running(&vmm->drive, ret_state, error);
	if (!result)
		result = memory_to_running(vmm, error);
	if (result < 0) {
		*ret_state = GCR_STATE_FAILED;
		return result;
	}
	*ret_state = GCR_STATE_RUNNING;
	gcr_drive_remove_record(&vmm->drive);
	if (vmm->snapshot)
		gcr_snapshot_discard(TAKE_PTR(vmm->snapshot));
	vmm->extents = NULL;
	return 0;
}

/* All is copied. Others of the same write may need these workers before they can vote. */
static void let_workers_go(struct gcr_vmm *vmm)
{
	struct gcr_drive *drive = &vmm->drive;

	if (gcr_task_is_alone(drive->task) && !drive->need_unknown)
		gcr_vmm_begin_close(vmm);
	else
		gcr_vmm_close_sessions(vmm);
}

/* ---- freeze ---- */

/* What the library says of the program that forbids a freeze. */
static int check_facts(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_link_facts facts;

	if (gcr_link_facts(vmm->drive.process, &facts) < 0)
		return gcr_error_set(error, EIO, "its preload library is gone");
	if (*facts.incomplete)
		return gcr_error_set(error, EOPNOTSUPP,
				     "the gate is incomplete: something in it calls the driver "
				     "past it (%s)",
				     facts.incomplete);
	if (*facts.obstacle)
		return gcr_error_set(error, EOPNOTSUPP, "%s", facts.obstacle);
	if (facts.sharings)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it shares GPU memory with another process (CUDA IPC, or a "
				     "memory handle given away or taken)");
	return 0;
}

/* What can be found out while the program goes on. */
static int prepare(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	struct gcr_process *process = drive->process;
	struct gcr_hello hello = {0};
	struct gcr_share shares[GCR_GPUS_MAX];
	unsigned int count;
	int result;

	gcr_drive_set_phase(drive, "preflight");
	result = check_facts(vmm, error);
	if (!result)
		result = gcr_drive_need_helper(drive, error);
	if (result < 0)
		return result;
	gcr_helpers_hello(drive->daemon->helpers, &hello);
	result = drive->daemon->backend->preflight(process->pid, drive->daemon->device_directory,
						   hello.driver_version, error);
	if (!result)
		result = gcr_children_check(process->pid, drive->daemon->device_directory, error);
	/* What the driver has of it in VRAM stays there with the data alone. */
	if (!result && !drive->task->command->data)
		result = gcr_drive_take_stock(drive, error);
	if (!result)
		result = gcr_drive_check_running(drive, ret_state, error);
	if (result < 0)
		return result;
	pthread_mutex_lock(&process->lock);
	count = process->shares_count;
	memcpy(shares, process->shares, sizeof(shares));
	pthread_mutex_unlock(&process->lock);
	for (unsigned int i = 0; i < count; i++)
		gcr_helpers_start_worker(drive->daemon->helpers, shares[i].uuid);
	return gcr_vmm_connect(vmm, CONNECT_USEC, error);
}

/* Are the workers ready that will be needed? */
static bool has_workers(struct gcr_vmm *vmm)
{
	for (size_t i = 0; i < vmm->device_count; i++) {
		const uint8_t *uuid = vmm->extents[i].gpu;

		if ((!i || memcmp(uuid, vmm->extents[i - 1].gpu, GCR_UUID_BYTES)) &&
		    !gcr_helpers_idle_worker(vmm->drive.daemon->helpers, uuid))
			return false;
	}
	return true;
}

/* With the gate closed: what there is to move, and room for it. */
static int take_inventory(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	struct gcr_process *process = drive->process;
	char generation[sizeof(process->generation)];
	int result;

	result = gcr_vmm_list(vmm, error);
	if (!result)
		result = check_facts(vmm, error);
	if (result < 0)
		return result;
	for (size_t i = 0; i < vmm->device_count; i++) {
		gcr_drive_deduct(drive, vmm->extents[i].gpu, vmm->extents[i].bytes);
		vmm->timing.bytes += vmm->extents[i].bytes;
	}
	for (size_t i = vmm->device_count; i < vmm->count; i++)
		vmm->timing.bytes += vmm->extents[i].bytes;
	gcr_task_set_bytes(drive->task, vmm->timing.bytes + drive->bytes);
	if (!drive->task->command->data) {
		result = gcr_drive_check_host_room(drive, error);
		if (result < 0)
			return result;
	}
	result = gcr_drive_new_generation(drive, error);
	if (result < 0)
		return result;
	pthread_mutex_lock(&process->lock);
	memcpy(generation, process->generation, sizeof(generation));
	pthread_mutex_unlock(&process->lock);
	gcr_drive_set_phase(drive, "store");
	result = gcr_snapshot_create(drive->daemon->store, process->pid, process->start_ticks,
				     generation, vmm->extents, vmm->count, &vmm->snapshot, error);
	if (!result)
		result = gcr_vmm_make_digests(vmm, error);
	/*
	 * Whoever writes a whole page saves the kernel its zeros; so pages are faulted in only as
	 * long as nobody can write.
	 */
	if (!result && !has_workers(vmm))
		gcr_snapshot_populate(vmm->snapshot);
	return result;
}

/* From here on there is something to undo. */
static int move_out(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	int64_t since_usec = gcr_clock_usec();
	int result;

	gcr_drive_set_phase(drive, "gate");
	result = gcr_vmm_close_gate(vmm, error);
	vmm->timing.gate_usec = lap(&since_usec);
	if (!result)
		result = take_inventory(vmm, error);
	if (!result)
		result = gcr_vmm_send_files(vmm, error);
	gcr_vmm_assign(vmm);
	gcr_drive_set_phase(drive, "worker");
	if (!result)
		result = gcr_vmm_open_sessions(vmm, GCR_MESSAGE_SESSION_OUT, 0, error);
	if (!result)
		gcr_snapshot_stop_populating(vmm->snapshot);
	if (!result)
		result = gcr_drive_write_record(drive, GCR_RECORD_FREEZING, error);
	lap(&since_usec);
	gcr_drive_set_phase(drive, "managed");
	if (!result)
		result = gcr_vmm_hold(vmm, error);
	gcr_drive_set_phase(drive, "handover");
	if (!result)
		result = gcr_vmm_hand_over(vmm, error);
	vmm->timing.handover_usec = lap(&since_usec);
	if (!result && !drive->task->command->data) {
		result = gcr_drive_lock(drive, error);
		if (!result)
			result = gcr_vmm_check_handed(vmm, error);
		if (!result)
			result = gcr_drive_checkpoint(drive, error);
		vmm->timing.control_usec = lap(&since_usec);
	}
	if (!result)
		gcr_drive_set_phase(drive, "copy");
	if (!result)
		result = gcr_vmm_begin_copy(vmm, error);
	if (!result)
		result = gcr_vmm_end_copy(vmm, error);
	let_workers_go(vmm);
	if (!result)
		result = gcr_vmm_seal(vmm, error);
	if (!result && !drive->task->command->data)
		result = gcr_drive_measure_freed(drive, error);
	if (!result && gcr_task_commit(drive->task) < 0)
		result = gcr_drive_stopped(error);
	return result;
}

/*
 * From the moment that the record says so the bytes are in the store. -EIO: the program needs them
 * no more, it has its memory.
 */
static int commit(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_process *process = vmm->drive.process;
	struct gcr_error told;
	int result;

	/* What stays in VRAM need not find room there again. */
	if (vmm->drive.task->command->data) {
		pthread_mutex_lock(&process->lock);
		process->shares_count = 0;
		pthread_mutex_unlock(&process->lock);
	}
	/* A next daemon that finds the old record learns from the program that all is out. */
	if (gcr_drive_write_record(&vmm->drive, GCR_RECORD_FROZEN, &told) < 0)
		gcr_log(LOG_WARNING, process->pid, "%s", told.words);
	gcr_drive_set_phase(&vmm->drive, "commit");
	/* A library that does not answer now is told when it has reconnected. */
	result = gcr_vmm_insist(vmm, GCR_MESSAGE_COMMIT, &told);
	gcr_vmm_close_sessions(vmm);
	if (result < 0)
		gcr_log(LOG_WARNING, process->pid, "its VRAM is not free yet: %s", told.words);
	else if (gcr_vmm_has_its_memory(vmm))
		return gcr_vmm_took_it_back(error);
	gcr_task_hold_snapshot(vmm->drive.task, vmm->snapshot, &told);
	pthread_mutex_lock(&process->lock);
	/* One that has ended leaves its bytes to us. */
	if (process->state != GCR_STATE_GONE)
		process->snapshot = TAKE_PTR(vmm->snapshot);
	process->pinned_by = 0;
	pthread_mutex_unlock(&process->lock);
	return 0;
}

static int freeze(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_error back_error = {0};
	int result;

	*ret_state = GCR_STATE_RUNNING;
	result = prepare(vmm, ret_state, error);
	if (result < 0)
		return outward(result, error);
	result = move_out(vmm, error);
	if (!result)
		result = commit(vmm, error);
	if (!result) {
		*ret_state = GCR_STATE_FROZEN;
		return 0;
	}
	/* Before it was handed over nobody has locked it: its threads wait for nothing else. */
	if (back_to_running(vmm, vmm->phase == GCR_PRELOAD_HANDED, ret_state, &back_error) < 0)
		add_words(vmm, &back_error, error);
	return outward(result, error);
}

/* ---- thaw ---- */

/*
 * From anywhere before SETTLE back to frozen; @control: where the driver had the process. What
 * cannot be checkpointed again stays in VRAM: the driver's own share. With VRAM that was handed
 * over it must not be checkpointed, since no restore would follow: a program that has its memory
 * goes on (*ret_state says running), and one that cannot be asked has failed, with the store's
 * bytes and its record left in place.
 */
static void back_to_frozen(struct gcr_vmm *vmm, enum gcr_control_state control,
			   enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	enum gcr_control_state state = GCR_CONTROL_UNKNOWN;
	struct gcr_error back_error = {0};
	int result;

	gcr_drive_set_phase(drive, "rollback");
	drive->rolling_back = true;
	gcr_drive_leave(drive);
	gcr_vmm_close_sessions(vmm);
	for (size_t i = 0; vmm->handles && i < vmm->device_count; i++)
		if (vmm->handles[i] >= 0) {
			close(vmm->handles[i]);
			vmm->handles[i] = -1;
		}
	*ret_state = GCR_STATE_FROZEN;
	result = gcr_drive_ask_state(drive, &state, &back_error);
	if (!result && state == GCR_CONTROL_RUNNING) {
		/* What it has been given goes, unless that is all. */
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_LET_GO, &back_error);
		if (!result && gcr_vmm_has_its_memory(vmm)) {
			*ret_state = GCR_STATE_RUNNING;
			return;
		}
		if (result < 0) {
			*ret_state = GCR_STATE_FAILED;
			add_words(vmm, &back_error, error);
			return;
		}
	}
	if (!result && control == GCR_CONTROL_CHECKPOINTED)
		result = gcr_drive_to_checkpointed(drive, &back_error);
	if (!result && vmm->has_given_files)
		result = gcr_vmm_seal_again(vmm, &back_error);
	if (result < 0)
		add_words(vmm, &back_error, error);
	if (gcr_drive_write_record(drive, GCR_RECORD_FROZEN, &back_error) < 0)
		gcr_log(LOG_WARNING, drive->process->pid, "%s", back_error.words);
}

/* VRAM for all of it is taken before anything is touched. */
static int take_vram(struct gcr_vmm *vmm, enum gcr_control_state control, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	bool needs_control = control == GCR_CONTROL_CHECKPOINTED;
	int64_t since_usec = gcr_clock_usec();
	uint32_t mask = needs_control ? gcr_drive_need_mask(drive) : 0;
	int result;

	gcr_task_set_bytes(drive->task, gcr_snapshot_bytes(vmm->snapshot));
	gcr_vmm_assign(vmm);
	result = gcr_drive_wait_turn(drive, mask | gcr_vmm_gpu_mask(vmm), error);
	if (!result)
		result = gcr_vmm_open_sessions(vmm, GCR_MESSAGE_SESSION_IN,
					       needs_control ? COPIES_IN_FLIGHT : 0, error);
	if (!result)
		result = gcr_vmm_create(vmm, error);
	if (!result && needs_control)
		result = gcr_vmm_take_ballast(vmm, error);
	/* GPUs where it has nothing but the driver's share. */
	if (!result && needs_control)
		result = gcr_drive_admit(drive, error);
	vmm->timing.map_usec = lap(&since_usec);
	return result;
}

/*
 * Bytes, which are under way since there is VRAM for them, and control state at the same time. The
 * program's descriptors are made meanwhile; they go to it when all is copied.
 */
static int move_in(struct gcr_vmm *vmm, enum gcr_control_state control, enum gcr_state *ret_state,
		   struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	int64_t since_usec = gcr_clock_usec();
	int result = gcr_vmm_export(vmm, error);

	vmm->timing.handover_usec = lap(&since_usec);
	if (!result && control == GCR_CONTROL_CHECKPOINTED)
		result = gcr_vmm_drop_ballast(vmm, error);
	if (!result && control == GCR_CONTROL_CHECKPOINTED) {
		result = gcr_drive_restore(drive, ret_state, error);
		vmm->timing.control_usec = lap(&since_usec);
	}
	/* From here on nobody is held up by copies. */
	if (!result)
		result = gcr_vmm_begin_copy(vmm, error);
	gcr_drive_leave(drive);
	if (!result) {
		gcr_drive_set_phase(drive, "copy");
		result = gcr_vmm_verify_managed(vmm, error);
	}
	if (!result)
		result = gcr_vmm_end_copy(vmm, error);
	let_workers_go(vmm);
	return result;
}

/* The program gets its memory. */
static int give_back(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int64_t since_usec = gcr_clock_usec();
	int result;

	gcr_drive_set_phase(&vmm->drive, "map");
	result = gcr_vmm_receive(vmm, error);
	vmm->has_given_files = vmm->count > vmm->device_count;
	if (!result)
		result = gcr_vmm_send_files(vmm, error);
	if (!result)
		result = gcr_vmm_bring_in(vmm, GCR_MESSAGE_SETTLE, error);
	vmm->timing.map_usec += lap(&since_usec);
	return result;
}

/* It has its memory: there is no other way than on. */
static int go_on(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int64_t since_usec = gcr_clock_usec();
	int result = gcr_vmm_ask(vmm, GCR_MESSAGE_GATE_OPEN, error);

	/* Gated and alone it opens the gate by itself. */
	if (result == -ENOTCONN)
		result = 0;
	if (result < 0)
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_GATE_OPEN, error);
	vmm->timing.map_usec += lap(&since_usec);
	return result;
}

static void set_running(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->drive.process;
	struct gcr_snapshot *snapshot;
	bool may_keep;

	gcr_drive_remove_record(&vmm->drive);
	pthread_mutex_lock(&process->lock);
	snapshot = TAKE_PTR(process->snapshot);
	process->pinned_by = 0;
	process->was_handed_over = true;
	pthread_mutex_unlock(&process->lock);
	/* The files of managed memory may not be what the papers say. */
	may_keep = vmm->is_verified && vmm->device_count == vmm->count;
	gcr_snapshot_unref(TAKE_PTR(vmm->snapshot));
	vmm->extents = NULL;
	if (snapshot && (!may_keep || gcr_store_keep(snapshot) < 0))
		gcr_snapshot_discard(snapshot);
	/* Whoever has noticed that has looked for what is kept before. */
	if (may_keep && gcr_process_has_ended(process))
		gcr_store_drop_kept(vmm->drive.daemon->store, process->pid, process->start_ticks);
}

/* What is moved is what vmm->snapshot holds. */
static void use_snapshot(struct gcr_vmm *vmm)
{
	vmm->count = gcr_snapshot_count(vmm->snapshot);
	vmm->extents = vmm->count ? gcr_snapshot_extent(vmm->snapshot, 0) : NULL;
	vmm->device_count = 0;
	while (vmm->device_count < vmm->count &&
	       vmm->extents[vmm->device_count].kind == GCR_MEMORY_DEVICE)
		vmm->device_count++;
	vmm->timing.bytes = gcr_snapshot_bytes(vmm->snapshot);
}

static int recover(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);
static int recover_to_running(struct gcr_vmm *vmm, enum gcr_state *ret_state,
			      struct gcr_error *error);

/*
 * Connect to a library that may have been without a daemon for long: then it takes its memory back
 * by itself, and where the driver has the process checkpointed it is held up in that. It can only
 * be reached when the driver lets go; what has no memory to take back is reached all the same.
 */
static int reach(struct gcr_vmm *vmm, enum gcr_control_state *control, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	enum gcr_state state;
	int result = gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);

	if (result != -ENOTCONN || *control != GCR_CONTROL_CHECKPOINTED)
		return result;
	if (gcr_drive_to_running(drive, &state, error) < 0)
		return -EIO;
	gcr_drive_leave(drive);
	drive->rolling_back = false;
	*control = GCR_CONTROL_RUNNING;
	return gcr_vmm_connect(vmm, GCR_VMM_RECONNECT_USEC, error);
}

static int thaw(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	enum gcr_control_state control = GCR_CONTROL_UNKNOWN;
	int result = 0;

	*ret_state = drive->task->from;
	pthread_mutex_lock(&drive->process->lock);
	vmm->snapshot = drive->process->snapshot ? gcr_snapshot_ref(drive->process->snapshot)
						 : NULL;
	pthread_mutex_unlock(&drive->process->lock);
	if (vmm->snapshot)
		use_snapshot(vmm);
	else if (drive->task->from == GCR_STATE_FAILED)
		result = recover(vmm, ret_state, error);
	/* Found frozen, it is still to be thawed. */
	if (result < 0 || *ret_state == GCR_STATE_RUNNING)
		return result;
	gcr_drive_set_phase(drive, "admission");
	result = vmm->snapshot ? gcr_drive_make_pairs(drive, error)
			       : gcr_error_set(error, EIO, "its bytes are not in the store");
	if (!result)
		result = gcr_drive_ask_state(drive, &control, error);
	if (!result && control == GCR_CONTROL_FAILED)
		result = gcr_error_set(error, EIO, "the driver says the process has failed");
	if (!result)
		result = gcr_vmm_read_digests(vmm, error);
	if (!result)
		result = reach(vmm, &control, error);
	if (!result && vmm->phase == GCR_PRELOAD_HANDED)
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_COMMIT, error);
	if (!result && vmm->phase == GCR_PRELOAD_INCOMING)
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_LET_GO, error);
	if (result < 0)
		return outward(result, error);
	if (vmm->phase != GCR_PRELOAD_OUT)
		return recover_to_running(vmm, ret_state, error);
	result = take_vram(vmm, control, error);
	if (!result && gcr_task_stopped(drive->task))
		result = gcr_drive_stopped(error);
	if (!result)
		result = gcr_drive_write_record(drive, GCR_RECORD_THAWING, error);
	*ret_state = GCR_STATE_FROZEN;
	if (!result)
		result = move_in(vmm, control, ret_state, error);
	if (*ret_state == GCR_STATE_FAILED)
		return result;
	if (!result)
		result = gcr_task_commit(drive->task) < 0 ? gcr_drive_stopped(error) : 0;
	if (!result && control != GCR_CONTROL_RUNNING)
		result = gcr_drive_unlock(drive, error);
	if (!result)
		result = give_back(vmm, error);
	if (result < 0) {
		back_to_frozen(vmm, control, ret_state, error);
		if (*ret_state != GCR_STATE_RUNNING)
			return outward(result, error);
	}
	result = go_on(vmm, error);
	gcr_vmm_close_sessions(vmm);
	if (result < 0) {
		*ret_state = GCR_STATE_FAILED;
		return outward(result, error);
	}
	vmm->is_verified = !drive->task->command->unverified;
	set_running(vmm);
	*ret_state = GCR_STATE_RUNNING;
	return 0;
}

/* ---- recovery ---- */

/* The store's side: what the earlier daemon had written, if it is whole. */
static void find_snapshot(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->drive.process;
	struct gcr_error error = {0};

	if (gcr_snapshot_open(vmm->drive.daemon->store, process->pid, process->start_ticks,
			      process->generation, &vmm->snapshot, &error) < 0)
		gcr_log(LOG_WARNING, process->pid, "%s", error.words);
	else
		use_snapshot(vmm);
}

static void publish(struct gcr_vmm *vmm)
{
	struct gcr_process *process = vmm->drive.process;
	struct gcr_error unused;

	/* What is wrong with its files the thaw says. */
	if (vmm->snapshot)
		gcr_task_hold_snapshot(vmm->drive.task, vmm->snapshot, &unused);
	pthread_mutex_lock(&process->lock);
	if (!process->snapshot && vmm->snapshot && process->state != GCR_STATE_GONE)
		process->snapshot = gcr_snapshot_ref(vmm->snapshot);
	pthread_mutex_unlock(&process->lock);
}

/* It has all its memory, or the descriptors of it: no need of the files. */
static int recover_to_running(struct gcr_vmm *vmm, enum gcr_state *ret_state,
			      struct gcr_error *error)
{
	int result = back_to_running(vmm, true, ret_state, error);

	if (!result)
		set_running(vmm);
	return result;
}

/*
 * An earlier daemon died, or a way back did not succeed. What the program says of itself decides:
 * what it has not given away is taken back, what it has is in the store.
 */
static int recover(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_drive *drive = &vmm->drive;
	enum gcr_state from = drive->task->from;
	enum gcr_control_state control = GCR_CONTROL_UNKNOWN;
	/* A freeze whose files may not be complete. */
	bool is_freezing = from == GCR_STATE_FREEZING || from == GCR_STATE_FAILED;
	int result;

	gcr_drive_set_phase(drive, "recovery");
	*ret_state = from == GCR_STATE_FROZEN ? GCR_STATE_FROZEN : GCR_STATE_FAILED;
	find_snapshot(vmm);
	if (!is_freezing)
		publish(vmm);
	result = gcr_drive_ask_state(drive, &control, error);
	/* Locked: nobody but us did that, and the agent cannot work so. */
	if (!result && control == GCR_CONTROL_LOCKED) {
		result = gcr_drive_unlock(drive, error);
		control = GCR_CONTROL_RUNNING;
	}
	if (!result)
		result = reach(vmm, &control, error);
	if (result < 0)
		return outward(result, error);
	if (vmm->phase == GCR_PRELOAD_INCOMING)
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_LET_GO, error);
	if (!result && !is_freezing && vmm->phase == GCR_PRELOAD_HANDED)
		result = gcr_vmm_insist(vmm, GCR_MESSAGE_COMMIT, error);
	if (result < 0)
		return outward(result, error);
	if (vmm->phase != GCR_PRELOAD_OUT)
		return recover_to_running(vmm, ret_state, error);
	if (!vmm->snapshot)
		return gcr_error_set(error, EIO, "its bytes are no longer in the store");
	/* Threads may have written to pages that they got in the thaw that did not end. */
	if (from == GCR_STATE_THAWING && vmm->device_count < vmm->count &&
	    (gcr_vmm_read_digests(vmm, error) < 0 || gcr_vmm_seal_again(vmm, error) < 0))
		gcr_log(LOG_WARNING, drive->process->pid, "%s", error->words);
	publish(vmm);
	*ret_state = GCR_STATE_FROZEN;
	if (gcr_drive_write_record(drive, GCR_RECORD_FROZEN, error) < 0)
		gcr_log(LOG_WARNING, drive->process->pid, "%s", error->words);
	return 0;
}

/* ---- the engine ---- */

/* A frozen process holds its files and what the driver keeps; a running one nothing. */
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
	/* Whatever failed first as it went. */
	if (result == -EIO && gcr_process_is_going(task->process))
		result = gcr_error_set(error, ESRCH, "process %d has ended",
				       (int)task->process->pid);
	task->timing = vmm->timing;
	gcr_vmm_finish(vmm);
	set_held(task->process, *ret_state);
	return result;
}

static int vmm_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, freeze);
}

static int vmm_thaw(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, thaw);
}

static int vmm_recover(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	return run(task, ret_state, error, recover);
}

const struct gcr_engine gcr_engine_vmm = {
	.name = "vmm",
	.freeze = vmm_freeze,
	.thaw = vmm_thaw,
	.recover = vmm_recover,
};

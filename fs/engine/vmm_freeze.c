/* SPDX-License-Identifier: MIT */
/*
 * The freeze of the vmm engine: gate, hand-over, control state and bytes at the same time,
 * metadata, commit. engine_vmm.c says where the bytes are at each point.
 */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/swap.h"
#include "fs/helper/helper.h"
#include "fs/process/children.h"
#include "fs/process/gpus.h"
#include "fs/process/obstacles.h"
#include "fs/verb/reclaim.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* How long to wait for the library of a running program, which normally answers at once. */
#define CONNECT_USEC (2 * GCR_USEC_PER_SEC)

#define CHILD_USEC	GCR_USEC_PER_SEC
#define CHILD_POLL_MSEC 20

/*
 * Reads the facts in the library's page. -EOPNOTSUPP: one of them forbids a freeze; errors of
 * gcr_vmm_facts().
 */
static int check_facts(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_page_facts facts;
	int result = gcr_vmm_facts(vmm, &facts, error);

	if (result < 0)
		return result;
	if (*facts.incomplete && !(facts.flags & GCR_PAGE_ENDING))
		return gcr_error_set(error, EOPNOTSUPP,
				     "the gate is incomplete: something in it calls the driver "
				     "past it (%s)",
				     facts.incomplete);
	return gcr_obstacles_check(vmm->driver.process, &facts, error);
}

/*
 * Refuses a process whose children have its GPU memory: -EOPNOTSUPP. A child that is being forked
 * has the descriptors until it has run the handlers that fork(3) runs in it first, so the check is
 * repeated for a second.
 */
static int check_children(struct gcr_driver_session *driver, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + CHILD_USEC;
	int result;

	while ((result = gcr_children_check(driver->process->pid,
					    (const char *const *)driver->vendor->memory_links,
					    driver->vendor->memory_device, error)) == -EOPNOTSUPP &&
	       gcr_clock_usec() < until_usec && !gcr_task_stopped(driver->task))
		gcr_driver_session_pause(driver, CHILD_POLL_MSEC);
	if (!result)
		*error = (struct gcr_error){0};
	return result;
}

/*
 * Makes room in the store for the memory that the program has now. Other processes may first have
 * to give up room (*ret_waited), so this is done while the program runs. When the gate is closed,
 * the program may have more memory.
 */
static int make_room(struct gcr_vmm *vmm, bool *ret_waited, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	uint64_t bytes = 0;
	int result;

	gcr_driver_session_set_phase(driver, "room");
	result = gcr_vmm_list(vmm, error);
	if (result < 0)
		return result;
	for (size_t i = 0; i < vmm->count; i++)
		bytes += vmm->extents[i].bytes;
	gcr_task_set_bytes(driver->task, bytes);
	result = gcr_reclaim(driver->task, gcr_snapshot_cost(vmm->extents, vmm->count), ret_waited,
			     error);
	free(TAKE_PTR(vmm->own_extents));
	vmm->extents = NULL;
	vmm->count = vmm->device_count = 0;
	return result;
}

/*
 * Makes the checks whose result can change while the freeze waits for room; called again after such
 * a wait.
 */
static int look(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	int result = check_children(driver, error);

	/* With `freeze data` the driver's own VRAM stays where it is, and needs no note. */
	if (!result && gcr_driver_takes_control(driver))
		result = gcr_driver_take_stock(driver, error);
	if (!result)
		result = gcr_driver_check_running(driver, ret_state, error);
	return result;
}

/*
 * Makes all checks and preparations that can be made while the program runs. On success
 * vmm->library is taken.
 */
static int prepare(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	struct gcr_process *process = driver->process;
	struct gcr_hello hello = {0};
	struct gcr_share shares[GCR_GPUS_MAX];
	bool has_waited = false;
	unsigned int count;
	int result;

	gcr_driver_session_set_phase(driver, "preflight");
	result = check_facts(vmm, error);
	if (!result)
		result = gcr_vmm_check_returned(vmm, error);
	if (!result)
		result = gcr_driver_need_helper(driver, error);
	if (result < 0)
		return result;
	gcr_helpers_hello(driver->vendor->helpers, &hello);
	result = gcr_driver_preflight(driver, hello.driver_version, error);
	if (!result)
		result = look(vmm, ret_state, error);
	if (result < 0)
		return result;
	pthread_mutex_lock(&process->lock);
	count = process->shares_count;
	memcpy(shares, process->shares, sizeof(shares));
	pthread_mutex_unlock(&process->lock);
	for (unsigned int i = 0; i < count; i++)
		gcr_helpers_start_worker(driver->vendor->helpers, shares[i].uuid);
	result = gcr_vmm_connect(vmm, CONNECT_USEC, error);
	if (!result)
		result = make_room(vmm, &has_waited, error);
	/* The program kept running: repeat the checks. */
	if (!result && has_waited)
		result = look(vmm, ret_state, error);
	return result;
}

/* Are all workers that will be needed ready? */
static bool has_workers(struct gcr_vmm *vmm)
{
	for (size_t i = 0; i < vmm->device_count; i++) {
		const uint8_t *uuid = vmm->extents[i].gpu;

		if ((!i || memcmp(uuid, vmm->extents[i - 1].gpu, GCR_UUID_BYTES)) &&
		    !gcr_helpers_idle_worker(vmm->driver.vendor->helpers, uuid, false))
			return false;
	}
	return true;
}

/*
 * Refuses a GPU that is divided into parts which have the same id (-EOPNOTSUPP): they cannot be
 * told apart, and memory could come back on another part. A driver that has a checkpoint refuses
 * them itself.
 */
static int check_parts(struct gcr_vmm *vmm, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;

	if (vmm->driver.vendor->backend->has_control)
		return 0;
	reply = malloc(sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(vmm->driver.daemon->gpus, reply);
	for (size_t i = 0; i < vmm->count; i++)
		if (vmm->extents[i].gpu_index < reply->gpus_count &&
		    reply->gpus[vmm->extents[i].gpu_index].flags & GCR_GPU_MIG)
			return gcr_error_set(
				error, EOPNOTSUPP,
				"it uses GPU %u, which is divided into parts that have "
				"the same id",
				vmm->extents[i].gpu_index);
	return 0;
}

/* Asks for the VRAM in use: the last answer may be old. */
static void renew_figures(struct gcr_driver_session *driver)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_error unused;

	if (reply)
		gcr_driver_query(driver, reply, &unused);
}

/* The device memory that the process can have, as far as known without its library; 0: unknown. */
static uint64_t find_used(struct gcr_vmm *vmm)
{
	struct gcr_driver_session *driver = &vmm->driver;
	uint64_t taken_bytes = driver->need_unknown ? 0 : driver->patience_bytes;
	uint64_t bytes = gcr_gpus_process_bytes(driver->daemon->gpus, driver->process->pid);

	if (taken_bytes > bytes)
		bytes = taken_bytes;
	if (!bytes)
		return 0;
	/* The driver counts imported memory for no process, but a thaw has made it. */
	GCR_LOCK_SCOPE(&driver->process->lock);
	return bytes + driver->process->given_bytes;
}

/*
 * Sets the bytes for which the process gets more time: driver->patience_bytes, which the driver
 * itself will move, and vmm->used_bytes, up to which driver->moved_bytes() counts. The library's
 * list counts only up to the memory that the driver says the process uses, if that is known.
 */
static void note_patience(struct gcr_vmm *vmm)
{
	struct gcr_driver_session *driver = &vmm->driver;
	uint64_t listed_bytes = 0;

	for (size_t i = 0; i < vmm->device_count; i++)
		listed_bytes += vmm->extents[i].bytes;
	vmm->used_bytes = find_used(vmm);
	/* Where the driver takes control, the figures have just been asked for. */
	if (vmm->used_bytes < listed_bytes && !gcr_driver_takes_control(driver)) {
		renew_figures(driver);
		vmm->used_bytes = find_used(vmm);
	}
	/* Without a figure, no more than what is listed: a library can send handles twice. */
	if (!vmm->used_bytes)
		vmm->used_bytes = listed_bytes;
	/* What is left to the driver, which moves that by itself. */
	driver->patience_bytes = driver->need_unknown ? 0 : driver->bytes;
}

static int compare_ids(const void *left, const void *right)
{
	const struct gcr_extent *a = *(const struct gcr_extent *const *)left;
	const struct gcr_extent *b = *(const struct gcr_extent *const *)right;

	return (a->id > b->id) - (a->id < b->id);
}

/*
 * Subtracts the memory that the workers will move from the VRAM noted for the driver
 * (gcr_driver_deduct()). The driver's figures do not include imported memory, so that is not
 * subtracted: it is all memory of the last thaw, and has the lowest ids. -ENOMEM; errors of
 * gcr_vmm_facts().
 */
static int deduct(struct gcr_vmm *vmm, struct gcr_error *error)
{
	_cleanup_free_ const struct gcr_extent **sorted = NULL;
	struct gcr_driver_session *driver = &vmm->driver;
	struct gcr_page_facts facts;
	uint64_t imported_bytes;
	int result;

	result = gcr_vmm_facts(vmm, &facts, error);
	if (result < 0)
		return result;
	/* Without figures of the process, those of whole GPUs count, with all that is in use. */
	imported_bytes = driver->need_unknown ? 0 : facts.imported_bytes;
	sorted = calloc(vmm->device_count + 1, sizeof(*sorted));
	if (!sorted)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < vmm->device_count; i++)
		sorted[i] = &vmm->extents[i];
	qsort(sorted, vmm->device_count, sizeof(*sorted), compare_ids);
	for (size_t i = 0; i < vmm->device_count; i++) {
		uint64_t bytes = sorted[i]->bytes;

		if (!imported_bytes)
			gcr_driver_deduct(driver, sorted[i]->gpu, bytes);
		imported_bytes -= bytes < imported_bytes ? bytes : imported_bytes;
	}
	return 0;
}

/*
 * Lists the memory to be moved, and takes files for it from the store. Called with the gate closed.
 * -ENOSPC, -EDQUOT, -ENOMEM, -EOPNOTSUPP.
 */
static int take_inventory(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	struct gcr_process *process = driver->process;
	char generation[sizeof(process->generation)];
	int result;

	result = gcr_vmm_list(vmm, error);
	if (!result)
		result = check_facts(vmm, error);
	if (!result)
		result = check_parts(vmm, error);
	if (!result)
		result = deduct(vmm, error);
	if (result < 0)
		return result;
	for (size_t i = 0; i < vmm->count; i++)
		vmm->timing.bytes += vmm->extents[i].bytes;
	gcr_task_set_bytes(driver->task, vmm->timing.bytes + driver->bytes);
	note_patience(vmm);
	if (gcr_driver_takes_control(driver)) {
		result = gcr_driver_check_host_room(driver, error);
		if (result < 0)
			return result;
	}
	result = gcr_driver_new_generation(driver, error);
	if (result < 0)
		return result;
	pthread_mutex_lock(&process->lock);
	memcpy(generation, process->generation, sizeof(generation));
	pthread_mutex_unlock(&process->lock);
	gcr_driver_session_set_phase(driver, "store");
	result = gcr_snapshot_create(driver->daemon->store, process->pid, process->start_ticks,
				     generation, vmm->extents, vmm->count, &vmm->snapshot, error);
	if (!result)
		result = gcr_vmm_make_digests(vmm, error);
	/*
	 * A worker that writes a whole page spares the kernel zeroing it; so pages are faulted in
	 * here only while no worker is ready to write.
	 */
	if (!result && !has_workers(vmm))
		gcr_snapshot_populate(vmm->snapshot);
	return result;
}

/*
 * Opens the sessions. If there is no VRAM for a worker, ends the idle second workers of a swap and
 * tries again.
 */
static int open_sessions(struct gcr_vmm *vmm, struct gcr_error *error)
{
	uint32_t copies = gcr_driver_takes_control(&vmm->driver) ? GCR_VMM_COPIES_IN_FLIGHT : 0;
	int result = gcr_vmm_open_sessions(vmm, GCR_MESSAGE_SESSION_OUT, copies, error);

	if (result != -ENOMEM)
		return result;
	gcr_vmm_close_sessions(vmm);
	if (!gcr_vmm_end_idle_workers(vmm))
		return result;
	*error = (struct gcr_error){0};
	result = gcr_vmm_open_sessions(vmm, GCR_MESSAGE_SESSION_OUT, copies, error);
	/* Other tasks that wait for the ended workers get new ones. */
	gcr_driver_let_start(&vmm->driver);
	return result;
}

/*
 * The part of a freeze that has to be undone on failure: from the closing of the gate to the end of
 * the copy.
 */
static int move_out(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_driver_session *driver = &vmm->driver;
	int64_t since_usec;
	int result;

	if (gcr_swap_wait_turn(driver->task) < 0)
		return gcr_driver_session_stopped(error);
	since_usec = gcr_clock_usec();
	gcr_driver_session_set_phase(driver, "gate");
	result = gcr_vmm_close_gate(vmm, error);
	vmm->timing.gate_usec = gcr_vmm_elapsed(&since_usec);
	if (!result)
		result = take_inventory(vmm, error);
	if (!result)
		result = gcr_vmm_make_transit(vmm, GCR_TRANSIT_OUT, error);
	if (!result)
		result = gcr_vmm_send_files(vmm, error);
	if (!result)
		result = gcr_vmm_assign(vmm, error);
	gcr_driver_session_set_phase(driver, "worker");
	if (!result)
		result = open_sessions(vmm, error);
	if (!result) {
		gcr_swap_begin_freeze(driver->task);
		gcr_snapshot_stop_populating(vmm->snapshot);
	}
	if (!result)
		result = gcr_driver_write_record(driver, GCR_RECORD_FREEZING, error);
	if (!result)
		gcr_vmm_note_workers(vmm);
	gcr_vmm_elapsed(&since_usec);
	gcr_driver_session_set_phase(driver, "managed");
	if (!result)
		result = gcr_vmm_hold(vmm, error);
	if (!result)
		result = gcr_vmm_begin_transit(vmm, GCR_TRANSIT_OUT, error);
	gcr_driver_session_set_phase(driver, "handover");
	if (!result)
		result = gcr_vmm_hand_over(vmm, error);
	vmm->timing.handover_usec = gcr_vmm_elapsed(&since_usec);
	/*
	 * Not before all memory is handed over, since mapping and unmapping wait for queued copies.
	 * The copy runs in parallel to the next steps; only its end is awaited below.
	 */
	if (!result)
		result = gcr_vmm_begin_copy(vmm, error);
	if (!result && gcr_driver_takes_control(driver)) {
		result = gcr_driver_lock(driver, error);
		if (!result)
			result = gcr_vmm_check_handed(vmm, error);
		if (!result && gcr_swap_begin_letting_go(driver->task) < 0)
			result = gcr_driver_session_stopped(error);
		if (!result)
			result = gcr_driver_checkpoint(driver, error);
		vmm->timing.control_usec = gcr_vmm_elapsed(&since_usec);
	}
	if (!result)
		gcr_driver_session_set_phase(driver, "copy");
	if (!result)
		result = gcr_vmm_end_copy(vmm, error);
	gcr_vmm_let_workers_go(vmm);
	if (!result)
		result = gcr_vmm_end_transit(vmm, error);
	if (!result)
		result = gcr_vmm_seal(vmm, error);
	if (!result && gcr_driver_takes_control(driver))
		result = gcr_driver_measure_freed(driver, error);
	if (!result && gcr_swap_commit(driver->task) < 0)
		result = gcr_driver_session_stopped(error);
	return result;
}

/* Notes the VRAM that the process keeps while it is frozen. Never makes the freeze fail. */
static void note_kept(struct gcr_driver_session *driver)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_process *process = driver->process;
	struct gcr_error unused;
	uint64_t bytes = 0;

	if (driver->vendor->backend->has_control || !reply ||
	    gcr_driver_query(driver, reply, &unused) < 0)
		return;
	for (uint32_t i = 0; i < reply->processes_count; i++)
		if (reply->processes[i].pid == process->pid)
			bytes += reply->processes[i].bytes;
	pthread_mutex_lock(&process->lock);
	process->kept_vram_bytes = bytes;
	pthread_mutex_unlock(&process->lock);
}

/*
 * Commit: as soon as the record says FROZEN, the store has the bytes. -EIO: the program has taken
 * its memory back, and no longer needs those bytes.
 */
static int commit(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_vmm_usage *usage;
	struct gcr_error told;
	int result;

	/* VRAM that stays allocated needs no room on thaw. */
	if (!gcr_driver_takes_control(&vmm->driver)) {
		pthread_mutex_lock(&process->lock);
		process->shares_count = 0;
		pthread_mutex_unlock(&process->lock);
	}
	/*
	 * If this fails, a next daemon that finds the old record learns from the library that all
	 * is out.
	 */
	if (gcr_driver_write_record(&vmm->driver, GCR_RECORD_FROZEN, &told) < 0)
		gcr_log(LOG_WARNING, process->pid, "%s", told.words);
	gcr_driver_session_set_phase(&vmm->driver, "commit");
	usage = gcr_vmm_note_usage(vmm);
	/* A library that does not answer now is sent COMMIT again when it has reconnected. */
	result = gcr_vmm_request_until_answered(vmm, GCR_MESSAGE_COMMIT, &told);
	vmm->needs_transit = vmm->needs_transit && result < 0;
	if (usage)
		gcr_vmm_end_workers(vmm);
	if (result < 0 || gcr_vmm_has_its_memory(vmm))
		gcr_vmm_forget_usage(vmm, usage);
	else
		gcr_vmm_check_usage(vmm, usage);
	gcr_vmm_close_sessions(vmm);
	if (result < 0)
		gcr_log(LOG_WARNING, process->pid, "its VRAM is not free yet: %s", told.words);
	else if (gcr_vmm_has_its_memory(vmm))
		return gcr_vmm_took_it_back(error);
	note_kept(&vmm->driver);
	gcr_task_hold_snapshot(vmm->driver.task, vmm->snapshot, &told);
	pthread_mutex_lock(&process->lock);
	/* If the process has ended, gcr_vmm_finish() drops its bytes. */
	if (process->state != GCR_STATE_GONE)
		process->snapshot = TAKE_PTR(vmm->snapshot);
	process->pinned_by = 0;
	pthread_mutex_unlock(&process->lock);
	return 0;
}

int gcr_vmm_freeze(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_process *process = vmm->driver.process;
	struct gcr_error back_error = {0};
	int result;

	*ret_state = GCR_STATE_RUNNING;
	result = prepare(vmm, ret_state, error);
	/* Room may have been claimed before a check failed. */
	if (result < 0) {
		gcr_store_end_claim(process->daemon->store, process->pid, process->start_ticks);
		return gcr_vmm_map_error(result, error);
	}
	result = move_out(vmm, error);
	/* The freeze may have failed before the snapshot used the claimed room. */
	gcr_store_end_claim(process->daemon->store, process->pid, process->start_ticks);
	if (!result)
		result = commit(vmm, error);
	if (!result) {
		*ret_state = GCR_STATE_FROZEN;
		return 0;
	}
	gcr_swap_fail(vmm->driver.task, error);
	/*
	 * Before the hand-over the driver has not locked the process: only the gate blocks its
	 * threads.
	 */
	if (gcr_vmm_back_to_running(vmm, vmm->phase == GCR_PRELOAD_HANDED, ret_state, &back_error) <
	    0)
		gcr_vmm_add_words(vmm, &back_error, error);
	return gcr_vmm_map_error(result, error);
}

/* SPDX-License-Identifier: MIT */
/*
 * Checks whether a freeze has freed the VRAM that it moved. KFD's counters of processes leave out
 * imported memory, so only the use of the whole GPU tells. VRAM that other processes allocate in
 * the meantime is subtracted by means of their own counters. VRAM that they free in the meantime
 * counts as the frozen process's: so VRAM that has stayed may go unnoticed, but VRAM that came back
 * is never reported as lost.
 */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/engine/admission.h"
#include "fs/helper/helper.h"
#include "fs/process/gpus.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/*
 * How long to wait for VRAM: the kernel frees unused VRAM a little later (TTM's delayed deletion).
 */
#define RETURN_USEC   (2 * GCR_USEC_PER_SEC)
#define RETURN_MSEC   50
/*
 * Limit and interval of the wait for the admission, which a thaw or the check of another freeze may
 * have.
 */
#define ALONE_USEC    (5 * GCR_USEC_PER_SEC)
#define ALONE_MSEC    20
/* Less than this is noise: page tables, other programs' small allocations. */
#define NOISE_BYTES   (8ull << 20)
/* Quarters of the moved VRAM that have to be free. */
#define FREE_QUARTERS 3

struct gcr_vmm_usage {
	uint32_t admitted;
	struct {
		uint8_t uuid[GCR_UUID_BYTES];
		uint64_t worker_bytes; /* of the worker, freed at its end; 0: it ended before */
		uint64_t bytes;	       /* moved from this GPU */
	} gpus[GCR_GPUS_MAX];
	unsigned int gpus_count;
	struct gcr_gpus_reply before;
	struct gcr_gpus_reply after;
};

static int find(const struct gcr_gpus_reply *reply, const uint8_t uuid[GCR_UUID_BYTES])
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (!memcmp(reply->gpus[i].uuid, uuid, GCR_UUID_BYTES) &&
		    reply->gpus[i].flags & GCR_GPU_MEMORY)
			return (int)i;
	return -ENODEV;
}

static uint64_t process_bytes(const struct gcr_gpus_reply *reply, uint32_t gpu, pid_t pid)
{
	for (uint32_t i = 0; i < reply->processes_count; i++)
		if (reply->processes[i].gpu == gpu && reply->processes[i].pid == pid)
			return reply->processes[i].bytes;
	return 0;
}

/*
 * Bytes that have become free on the GPU @index, of the VRAM that the process @pid had there. May
 * be negative.
 */
static int64_t returned_bytes(const struct gcr_vmm_usage *usage, unsigned int index, pid_t pid)
{
	int before = find(&usage->before, usage->gpus[index].uuid);
	int after = find(&usage->after, usage->gpus[index].uuid);
	int64_t bytes;

	if (before < 0 || after < 0)
		return (int64_t)usage->gpus[index].bytes;
	bytes = (int64_t)(usage->before.gpus[before].used_bytes -
			  usage->after.gpus[after].used_bytes);
	/* The worker's own VRAM was freed with the worker. */
	bytes -= (int64_t)usage->gpus[index].worker_bytes;
	for (uint32_t i = 0; i < usage->after.processes_count; i++) {
		const struct gcr_gpu_process *other = &usage->after.processes[i];
		uint64_t had;

		if (other->gpu != (uint32_t)after || other->pid == pid)
			continue;
		had = process_bytes(&usage->before, (uint32_t)before, other->pid);
		if (other->bytes > had)
			bytes += (int64_t)(other->bytes - had);
	}
	return bytes;
}

/* Bytes of VRAM that are missing, on all GPUs together; 0 if few are missing. */
static uint64_t missing_bytes(const struct gcr_vmm_usage *usage, pid_t pid)
{
	uint64_t missing = 0;

	for (unsigned int i = 0; i < usage->gpus_count; i++) {
		uint64_t bytes = usage->gpus[i].bytes;
		int64_t returned = returned_bytes(usage, i, pid);
		uint64_t lacks = returned <= 0		      ? bytes
				 : (uint64_t)returned < bytes ? bytes - (uint64_t)returned
							      : 0;

		if (lacks > NOISE_BYTES && lacks > bytes / 4 * (4 - FREE_QUARTERS))
			missing += lacks;
	}
	return missing;
}

void gcr_vmm_note_workers(struct gcr_vmm *vmm)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	struct gcr_error unused;

	if (!vmm->driver.vendor->backend->may_keep_vram || !vmm->workers_count)
		return;
	reply = calloc(1, sizeof(*reply));
	if (!reply || gcr_driver_query(&vmm->driver, reply, &unused) < 0)
		return;
	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		struct gcr_vmm_worker *worker = &vmm->workers[i];
		int gpu = find(reply, worker->uuid);

		if (gpu >= 0 && worker->helper)
			worker->own_bytes =
				process_bytes(reply, (uint32_t)gpu, gcr_helper_pid(worker->helper));
	}
}

struct gcr_vmm_usage *gcr_vmm_note_usage(struct gcr_vmm *vmm)
{
	_cleanup_free_ struct gcr_vmm_usage *usage = NULL;
	struct gcr_driver_session *driver = &vmm->driver;
	int64_t until_usec = gcr_clock_usec() + ALONE_USEC;
	struct gcr_fair_waiter waiter = {
		.client = gcr_task_client(driver->task), .is_urgent = true, /* it holds workers */
	};
	struct gcr_error unused;

	/* In a swap the thaw takes the VRAM that becomes free, and has the admission for it. */
	if (!driver->vendor->backend->may_keep_vram || !vmm->workers_count || driver->task->swap)
		return NULL;
	usage = calloc(1, sizeof(*usage));
	if (!usage)
		return NULL;
	for (unsigned int i = 0; i < vmm->workers_count; i++) {
		const struct gcr_vmm_worker *worker = &vmm->workers[i];

		memcpy(usage->gpus[i].uuid, worker->uuid, GCR_UUID_BYTES);
		usage->gpus[i].worker_bytes = worker->helper ? worker->own_bytes : 0;
		for (uint32_t at = 0; at < worker->count; at++)
			usage->gpus[i].bytes += vmm->extents[worker->first + at].bytes;
	}
	usage->gpus_count = vmm->workers_count;
	usage->admitted = gcr_vmm_gpu_mask(vmm);
	waiter.mask = usage->admitted;
	gcr_admission_join(driver->daemon->admission, &waiter);
	while (!gcr_admission_take_turn(driver->daemon->admission, &waiter, driver->process->pid)) {
		if (gcr_clock_usec() > until_usec || gcr_driver_session_must_leave(driver)) {
			gcr_admission_quit(driver->daemon->admission, &waiter);
			return NULL;
		}
		gcr_driver_session_pause(driver, ALONE_MSEC);
	}
	if (gcr_driver_query(driver, &usage->before, &unused) < 0) {
		gcr_admission_leave(driver->daemon->admission, usage->admitted);
		return NULL;
	}
	vmm->usage_admitted = usage->admitted;
	return TAKE_PTR(usage);
}

/* Waits until the VRAM is free, and gets the missing bytes. -errno: they cannot be found out. */
static int wait_for_return(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage, uint64_t *ret_missing)
{
	int64_t until_usec = gcr_clock_usec() + RETURN_USEC;
	struct gcr_driver_session *driver = &vmm->driver;
	struct gcr_error unused;

	for (;;) {
		int result = gcr_driver_query(driver, &usage->after, &unused);

		if (result < 0)
			return result;
		*ret_missing = missing_bytes(usage, driver->process->pid);
		if (!*ret_missing || gcr_clock_usec() > until_usec ||
		    gcr_driver_session_must_leave(driver))
			return gcr_process_has_ended(driver->process) ? -ESRCH : 0;
		gcr_driver_session_pause(driver, RETURN_MSEC);
	}
}

void gcr_vmm_forget_usage(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage)
{
	if (!usage)
		return;
	gcr_admission_leave(vmm->driver.daemon->admission, vmm->usage_admitted);
	vmm->usage_admitted = 0;
	free(usage);
}

void gcr_vmm_give_usage_up(struct gcr_vmm *vmm)
{
	gcr_admission_leave(vmm->driver.daemon->admission, vmm->usage_admitted);
	vmm->usage_admitted = 0;
}

void gcr_vmm_check_usage(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage)
{
	struct gcr_process *process = vmm->driver.process;
	uint64_t missing = 0;

	if (!usage)
		return;
	if (vmm->usage_admitted && !wait_for_return(vmm, usage, &missing)) {
		pthread_mutex_lock(&process->lock);
		process->unreturned_vram_bytes = missing;
		pthread_mutex_unlock(&process->lock);
	} else {
		missing = 0;
	}
	if (missing)
		gcr_log(LOG_WARNING, process->pid,
			"frozen, but %" PRIu64 " of %" PRIu64
			" MiB of its VRAM are still in use: its %s does not free them",
			missing >> 20, vmm->timing.bytes >> 20, vmm->driver.vendor->backend->api);
	gcr_vmm_forget_usage(vmm, usage);
}

int gcr_vmm_check_returned(struct gcr_vmm *vmm, struct gcr_error *error)
{
	struct gcr_process *process = vmm->driver.process;
	uint64_t missing;

	pthread_mutex_lock(&process->lock);
	missing = process->unreturned_vram_bytes;
	pthread_mutex_unlock(&process->lock);
	/* A dump ends the process, which frees everything. */
	if (!missing || vmm->driver.task->command->verb == GCR_VERB_DUMP)
		return 0;
	return gcr_error_set(error, EOPNOTSUPP,
			     "its last freeze has left %" PRIu64
			     " MiB of VRAM in use that its %s should have freed, and another one "
			     "would only lose more; a later release of ROCm frees them",
			     missing >> 20, vmm->driver.vendor->backend->api);
}

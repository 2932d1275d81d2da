/* SPDX-License-Identifier: MIT */
/*
 * Checkpoint and restore of this process, run by its restore thread. The bytes of device memory are
 * saved in anonymous memory of the process, its address ranges stay reserved, and the process
 * releases everything that belongs to the machine: the restore may happen in another machine, after
 * CRIU. Memory that the real driver checkpoints but cannot restore is lost here too (the
 * measurements are in test/gpu and in the comments).
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <sys/mman.h>

#define COPY_BYTES ((size_t)64 << 10)

/* Written only by the restore thread; the shared table has a copy for other processes. */
static CUprocessState state;
/* A restore has failed. Measured: the state stays "checkpointed" and every further call fails. */
static bool failed;
/* Measured: after one refused checkpoint all later ones fail too, whatever the cause. */
static bool refused;
/* The error of the next restore, determined by the checkpoint. */
static CUresult lost;
/* The GPUs of the machine where the checkpoint was made. */
static struct {
	unsigned gpu_count;
	unsigned char uuid[SIM_MAX_GPUS][16];
} left;

static void state_set(CUprocessState new_state)
{
	state = new_state;
	shared_lock();
	shared->processes[sim.index].state = (int)new_state;
	shared_changed();
	shared_unlock();
}

bool checkpoint_holds_nothing(void)
{
	return state == CU_PROCESS_STATE_CHECKPOINTED;
}

/* Closes the gate and waits for calls and work to end; 0: no timeout. */
static CUresult quiesce(unsigned timeout_ms)
{
	uint64_t deadline_ns = timeout_ms ? sim_now_ns() + timeout_ms * 1000000ull : 0;
	CUresult result = gate_close(deadline_ns);

	if (!result && !streams_idle_until(deadline_ns)) {
		gate_open();
		result = CUDA_ERROR_NOT_READY;
	}
	return result;
}

CUresult checkpoint_lock(unsigned timeout_ms)
{
	CUresult result;

	if (state != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	result = quiesce(timeout_ms);
	if (!result)
		state_set(CU_PROCESS_STATE_LOCKED);
	return result;
}

CUresult checkpoint_unlock(void)
{
	if (state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	state_set(CU_PROCESS_STATE_RUNNING);
	gate_open();
	return CUDA_SUCCESS;
}

static CUresult phys_save(struct phys *phys)
{
	_cleanup_close_ int fd = shared_allocation_open(phys->slot, false);
	size_t size_bytes = phys->size_bytes;
	off_t data = 0;
	char *saved;

	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	saved = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (saved == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(saved, size_bytes, MADV_HUGEPAGE);
	/* Skip holes: they were never written and read as zeros, like the new anonymous mapping. */
	while ((data = lseek(fd, data, SEEK_DATA)) >= 0 && (size_t)data < size_bytes) {
		off_t hole = lseek(fd, data, SEEK_HOLE);

		while (data < hole) {
			ssize_t done;

			unseen_begin();
			done = pread(fd, saved + data, (size_t)(hole - data), data);
			unseen_end();
			if (done <= 0) {
				munmap(saved, size_bytes);
				return CUDA_ERROR_OPERATING_SYSTEM;
			}
			data += done;
		}
	}
	phys->saved = saved;
	return CUDA_SUCCESS;
}

static CUresult load(struct phys *phys)
{
	static const char zeros[COPY_BYTES];
	_cleanup_close_ int fd = shared_allocation_open(phys->slot, false);
	const char *saved = phys->saved;

	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	for (size_t at = 0; at < phys->size_bytes; at += COPY_BYTES) {
		if (!memcmp(saved + at, zeros, COPY_BYTES))
			continue;
		for (size_t done = 0; done < COPY_BYTES;) {
			ssize_t written = pwrite(fd, saved + at + done, COPY_BYTES - done,
						 (off_t)(at + done));

			if (written <= 0)
				return CUDA_ERROR_OPERATING_SYSTEM;
			done += (size_t)written;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult phys_load(struct phys *phys)
{
	CUresult result;

	unseen_begin();
	result = load(phys);
	unseen_end();
	return result;
}

static void phys_saved_free(struct phys *phys)
{
	if (phys->saved)
		munmap(phys->saved, phys->size_bytes);
	phys->saved = NULL;
}

/*
 * Returns the error of a later restore if shared memory makes it fail, else 0. Measured: the
 * checkpoint of a process with memory shared through a descriptor succeeds, and the restore returns
 * 801; with live legacy IPC the restore returns 1.
 */
static CUresult find_lost(void)
{
	CUresult result = CUDA_SUCCESS;

	if (ipc_live())
		return CUDA_ERROR_INVALID_VALUE;
	shared_lock();
	for (struct phys *phys = physes; phys; phys = phys->next)
		if (phys->imported ||
		    (phys->exported && shared_allocation_shared(phys->slot, sim.index)))
			result = CUDA_ERROR_NOT_SUPPORTED;
	shared_unlock();
	return result;
}

static void mappings_detach(void)
{
	pthread_rwlock_wrlock(&sim.map_lock);
	for (size_t i = 0; i < mappings.count; i++) {
		struct mapping *mapping = mappings.items[i].object;

		if (mapping->phys)
			mapping_detach(mapping);
		else
			mapping_reside(mapping, -1);
	}
	pthread_rwlock_unlock(&sim.map_lock);
}

static CUresult mappings_attach(void)
{
	int r = 0;

	pthread_rwlock_wrlock(&sim.map_lock);
	for (size_t i = 0; i < mappings.count && !r; i++) {
		const struct mapping *mapping = mappings.items[i].object;

		if (mapping->phys)
			r = mapping_attach(mapping);
	}
	pthread_rwlock_unlock(&sim.map_lock);
	return sim_error_of(r);
}

static void let_go(void)
{
	mappings_detach();
	shared_lock();
	/* First, so that a kill at any point leaves nothing held by a slot that looks alive. */
	shared->processes[sim.index].holds_no_file = 1;
	for (struct phys *phys = physes; phys; phys = phys->next)
		shared_allocation_drop(phys->slot, sim.index);
	contexts_unaccount();
	shared_unlock();
	device_files_close();
	if (sim.lock_fd >= 0)
		close(TAKE_FD(sim.lock_fd));
}

CUresult checkpoint_save(void)
{
	CUresult result = CUDA_SUCCESS;
	GCR_LOCK_SCOPE(&sim.lock);

	if (state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	/* Measured: refused, and the process can be unlocked. */
	if (managed_memory_exists() && !sim_vendor.checkpoints_managed_memory) {
		refused = true;
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (refused)
		return CUDA_ERROR_UNKNOWN;
	lost = find_lost();
	if (lost && sim_vendor.refuses_what_is_lost)
		return lost;
	for (struct phys *phys = physes; phys && !result; phys = phys->next)
		result = phys_save(phys);
	if (result) {
		for (struct phys *phys = physes; phys; phys = phys->next)
			phys_saved_free(phys);
		return result;
	}

	let_go();
	left.gpu_count = shared->gpu_count;
	for (unsigned i = 0; i < shared->gpu_count; i++)
		memcpy(left.uuid[i], shared->gpus[i].uuid, sizeof(left.uuid[i]));
	state_set(CU_PROCESS_STATE_CHECKPOINTED);
	return CUDA_SUCCESS;
}

static int gpu_by_uuid(const CUuuid *uuid)
{
	for (unsigned i = 0; i < shared->gpu_count; i++)
		if (!memcmp(shared->gpus[i].uuid, uuid->bytes, sizeof(uuid->bytes)))
			return (int)i;
	return -1;
}

static int gpu_left_by_uuid(const CUuuid *uuid)
{
	for (unsigned i = 0; i < left.gpu_count; i++)
		if (!memcmp(left.uuid[i], uuid->bytes, sizeof(uuid->bytes)))
			return (int)i;
	return -1;
}

/*
 * Builds the mapping of GPUs. The pairs must list every GPU of the machine of the checkpoint once,
 * each with a different new GPU. Without pairs, GPUs keep their numbers.
 */
static CUresult remap(const CUcheckpointGpuPair *pairs, unsigned count, unsigned *new_gpu)
{
	unsigned from = 0, to = 0, all = (1u << left.gpu_count) - 1;

	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		new_gpu[i] = i;
	for (unsigned i = 0; i < count; i++) {
		int old_index = gpu_left_by_uuid(&pairs[i].oldUuid);
		int new_index = gpu_by_uuid(&pairs[i].newUuid);

		if (old_index < 0 || new_index < 0 || from >> old_index & 1 || to >> new_index & 1)
			return CUDA_ERROR_INVALID_VALUE;
		from |= 1u << old_index;
		to |= 1u << new_index;
		new_gpu[old_index] = (unsigned)new_index;
	}
	if (count && from != all)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < sim.device_count; i++)
		if (new_gpu[sim.gpu_of_device[i]] >= shared->gpu_count)
			return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

/* Allocates all of the memory or none. The shared lock is held. */
static CUresult memory_take(void)
{
	CUresult result = contexts_account();
	struct phys *end = NULL;

	for (struct phys *phys = physes; phys && !result; phys = phys->next) {
		int slot = shared_allocation_add(sim.index, sim.gpu_of_device[phys->device],
						 phys->size_bytes);

		end = phys;
		if (slot < 0)
			result = sim_error_of(slot);
		else
			phys->slot = (unsigned)slot;
	}
	if (!result)
		return CUDA_SUCCESS;
	for (struct phys *phys = physes; phys && phys != end; phys = phys->next)
		shared_allocation_drop(phys->slot, sim.index);
	contexts_unaccount();
	return result;
}

static CUresult restore_memory(void)
{
	CUresult result;
	int fd;

	shared_lock();
	fd = shared_process_lock_file(sim.index);
	if (fd >= 0) {
		sim.lock_fd = fd;
		shared->processes[sim.index].holds_no_file = 0;
	}
	/*
	 * Otherwise a forked child still has its old file description locked, and pid and start
	 * time keep deciding whether the process is alive.
	 */
	result = memory_take();
	if (result)
		shared->processes[sim.index].holds_no_file = 1;
	shared_unlock();
	if (result) {
		if (sim.lock_fd >= 0)
			close(TAKE_FD(sim.lock_fd));
		return result;
	}
	for (struct phys *phys = physes; phys && !result; phys = phys->next)
		result = phys_load(phys);
	if (!result)
		result = mappings_attach();
	if (!result)
		result = sim_error_of(device_files_open());
	if (result)
		let_go();
	else
		events_enter_again();
	return result;
}

CUresult checkpoint_restore(const CUcheckpointGpuPair *pairs, unsigned count)
{
	unsigned new_gpu[SIM_MAX_GPUS];
	CUresult result;
	GCR_LOCK_SCOPE(&sim.lock);

	/* Measured: after a failed restore every later one returns 304. */
	if (failed)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (state != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	result = remap(pairs, count, new_gpu);
	if (result)
		return result;
	if (lost) {
		failed = true;
		return lost;
	}
	for (unsigned i = 0; i < sim.device_count; i++)
		sim.gpu_of_device[i] = new_gpu[sim.gpu_of_device[i]];
	result = restore_memory();
	if (result) {
		failed = true;
		return result;
	}
	for (struct phys *phys = physes; phys; phys = phys->next)
		phys_saved_free(phys);
	state_set(CU_PROCESS_STATE_LOCKED);
	return CUDA_SUCCESS;
}

int checkpoint_register_again(int pid, int tid, uint64_t start_time)
{
	_cleanup_close_ int fd = -1;
	int r = 0;

	shared_lock();
	if (!shared_process_is_own(sim.index, sim.generation, pid, start_time)) {
		r = shared_process_add(pid, start_time, &fd);
		if (r >= 0) {
			sim.index = (unsigned)r;
			sim.generation = shared->processes[r].generation;
			shared->processes[r].state = (int)state;
			shared->processes[r].holds_no_file = 1;
		}
	}
	if (r >= 0)
		shared->processes[sim.index].restore_thread = tid;
	shared_unlock();
	return r < 0 ? r : 0;
}

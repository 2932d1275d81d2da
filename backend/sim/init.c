/* SPDX-License-Identifier: MIT */
/*
 * cuInit: the process's devices, its entry in the shared table, its checkpoint server, and what
 * happens at exit and after fork (the child has no driver: the driver's threads do not exist
 * there).
 */
#include "backend/sim/sim.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static void devices_find(void)
{
	sim.device_count = shared->gpu_count;
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++) {
		sim.gpu_of_device[i] = i;
		sim.device_fd[i] = -1;
	}
	sim_vendor.devices_choose();
}

/*
 * The driver's exit handler, registered by cuInit: afterwards every call of static destructors and
 * other threads returns CUDA_ERROR_DEINITIALIZED. Like a call, the handler waits while the process
 * is locked. Seen on 580.159: a program frozen while it was ending had deinitialized right after
 * its Unlock.
 */
static void deinitialize(void)
{
	if (!process_is_forked())
		gate_deinitialize();
}

static void fork_child(void)
{
	/*
	 * The child has no stream threads and no restore thread, and the owners of locks do not
	 * exist there; the inherited descriptors stay open and keep the parent's memory in use.
	 */
	if (!process_is_initialized())
		return;
	process_set_forked();
	checkpoint_server_forked();
}

static CUresult initialize(void)
{
	int pid, r = shared_attach();

	if (r < 0)
		return CUDA_ERROR_NO_DEVICE;
	devices_find();
	if (sim.device_count == 0)
		return CUDA_ERROR_NO_DEVICE;
	r = device_files_open();
	if (r < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	pid = process_own_pid();
	shared_lock();
	r = shared_process_add(pid, process_start_time(pid), &sim.lock_fd);
	if (r >= 0) {
		sim.index = (unsigned)r;
		sim.generation = shared->processes[r].generation;
	}
	shared_unlock();
	if (r < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = checkpoint_server_start();
	if (r < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	pthread_atfork(NULL, NULL, fork_child);
	atexit(deinitialize);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	SIM_ENTER_FLAGS(SIM_CALL_BEFORE_INIT);
	GCR_LOCK_SCOPE(&init_lock);
	CUresult result;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (process_is_initialized())
		return CUDA_SUCCESS;
	result = initialize();
	if (!result)
		process_set_initialized();
	return result;
}

CUresult cuDriverGetVersion(int *version)
{
	SIM_ENTER_FLAGS(SIM_CALL_BEFORE_INIT);
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_DRIVER_VERSION;
	return CUDA_SUCCESS;
}

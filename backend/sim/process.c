/* SPDX-License-Identifier: MIT */
/*
 * One simulated process: cuInit, the gate that every driver call passes, the open device files, and
 * the state after fork (the child has no driver: the driver's threads do not exist there).
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/mman.h>

struct sim_process sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.map_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
	.lock_fd = -1,
	.control_fd = -1,
	.compute_fd = -1,
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned inside;
	bool closed;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialized;
static atomic_bool forked;
static atomic_bool deinitialized;
static __thread bool callback_thread;
static __thread bool inside; /* inside the gate; nested calls do not pass it again */

CUresult sim_error_of(int error)
{
	switch (error) {
	case 0:
		return CUDA_SUCCESS;
	case -ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

/* The driver's own threads block all signals. */
int sim_thread_start(pthread_t *ret_thread, void *(*function)(void *), void *argument)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(ret_thread, NULL, function, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

void sim_thread_name(const char *name)
{
	pthread_setname_np(pthread_self(), name);
}

bool sim_on_callback_thread(void)
{
	return callback_thread;
}

void sim_set_callback_thread(void)
{
	callback_thread = true;
}

struct sim_call sim_enter(const char *name, int flags)
{
	struct sim_call call = {.result = CUDA_SUCCESS};

	if (atomic_load(&deinitialized))
		call.result = CUDA_ERROR_DEINITIALIZED;
	else if (atomic_load(&forked) ||
		 (!(flags & SIM_CALL_BEFORE_INIT) && !atomic_load(&initialized)))
		call.result = CUDA_ERROR_NOT_INITIALIZED;
	else if (callback_thread)
		call.result = CUDA_ERROR_NOT_PERMITTED;
	if (call.result)
		return call;

	if (flags == SIM_CALL_GATED && !inside) {
		pthread_mutex_lock(&gate.lock);
		while (gate.closed)
			pthread_cond_wait(&gate.changed, &gate.lock);
		gate.inside++;
		pthread_mutex_unlock(&gate.lock);
		call.entered = inside = true;
	}
	/* Inside the gate, so that Lock has to wait for a call that hangs. */
	call.result = fault_check(name, FAULT_CALLER, &call.after);
	if (call.result)
		sim_leave(&call);
	return call;
}

void sim_leave(struct sim_call *call)
{
	if (!call->after.late)
		fault_act(&call->after);
	if (!call->entered)
		return;
	call->entered = inside = false;
	pthread_mutex_lock(&gate.lock);
	if (--gate.inside == 0)
		pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
	if (call->after.late)
		fault_act(&call->after);
}

static CUresult gate_drain(uint64_t deadline_ns)
{
	struct timespec deadline = {(time_t)(deadline_ns / 1000000000ull),
				    (long)(deadline_ns % 1000000000ull)};
	int r = 0;

	pthread_mutex_lock(&gate.lock);
	gate.closed = true;
	while (gate.inside && r != ETIMEDOUT) {
		if (deadline_ns)
			r = pthread_cond_clockwait(&gate.changed, &gate.lock, CLOCK_MONOTONIC,
						   &deadline);
		else
			pthread_cond_wait(&gate.changed, &gate.lock);
	}
	r = gate.inside != 0;
	pthread_mutex_unlock(&gate.lock);
	return r ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult gate_close(unsigned timeout_ms)
{
	uint64_t deadline_ns = timeout_ms ? sim_now_ns() + timeout_ms * 1000000ull : 0;
	CUresult result = gate_drain(deadline_ns);

	if (!result && !streams_idle_until(deadline_ns))
		result = CUDA_ERROR_NOT_READY;
	if (result)
		gate_open();
	return result;
}

void gate_open(void)
{
	pthread_mutex_lock(&gate.lock);
	gate.closed = false;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

bool process_is_deinitialized(void)
{
	return atomic_load(&deinitialized);
}

/*
 * The driver's exit handler, registered by cuInit: afterwards every call of static destructors and
 * other threads returns CUDA_ERROR_DEINITIALIZED. Like a call, the handler waits while the process
 * is locked. Seen on 580.159: a program frozen while it was ending had deinitialized right after
 * its Unlock.
 */
static void deinitialize(void)
{
	if (atomic_load(&forked))
		return;
	pthread_mutex_lock(&gate.lock);
	while (gate.closed)
		pthread_cond_wait(&gate.changed, &gate.lock);
	atomic_store(&deinitialized, true);
	pthread_mutex_unlock(&gate.lock);
}

static void fork_child(void)
{
	/*
	 * The child has no stream threads and no restore thread, and the owners of locks do not
	 * exist there; the inherited descriptors stay open and keep the parent's memory in use.
	 */
	if (!atomic_load(&initialized))
		return;
	atomic_store(&forked, true);
	checkpoint_server_forked();
}

static int open_device(const char *name)
{
	char path[PATH_MAX];

	shared_device_path(path, "%s", name);
	return shared_open_file(path, O_RDWR);
}

/*
 * A process with a context has one mapping of the compute file, which its children do not inherit
 * (measured with nvidia-uvm). The mapping distinguishes a process that computes from one that only
 * queries.
 */
static int compute_map(bool wanted)
{
	if (wanted && !sim.compute_mapping) {
		void *mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, sim.compute_fd, 0);

		if (mapping == MAP_FAILED || madvise(mapping, 4096, MADV_DONTFORK) < 0)
			return -EIO;
		sim.compute_mapping = mapping;
	} else if (!wanted && sim.compute_mapping) {
		munmap(TAKE_PTR(sim.compute_mapping), 4096);
	}
	return 0;
}

/* Returns the length of sim.device_fd: all GPUs of the machine, or the process's devices. */
static unsigned device_file_count(void)
{
	return sim_vendor.opens_all_devices ? shared->gpu_count : sim.device_count;
}

int device_files_open(void)
{
	bool any_context = false;
	char name[32];

	if (sim_vendor.control_file && sim.control_fd < 0)
		sim.control_fd = open_device(sim_vendor.control_file);
	if (sim.compute_fd < 0)
		sim.compute_fd = open_device(sim_vendor.compute_file);
	if ((sim_vendor.control_file && sim.control_fd < 0) || sim.compute_fd < 0)
		return -EIO;
	for (unsigned i = 0; i < sim.device_count; i++)
		any_context = any_context || device_has_context((int)i);
	for (unsigned i = 0; i < device_file_count(); i++) {
		bool wanted = sim_vendor.opens_all_devices || device_has_context((int)i);
		unsigned gpu = sim_vendor.opens_all_devices ? i : sim.gpu_of_device[i];

		if (wanted && sim.device_fd[i] < 0) {
			snprintf(name, sizeof(name), "%s%u", sim_vendor.device_file,
				 sim_vendor.device_file_first + gpu);
			sim.device_fd[i] = open_device(name);
		} else if (!wanted && sim.device_fd[i] >= 0) {
			close(TAKE_FD(sim.device_fd[i]));
		}
	}
	return compute_map(any_context);
}

void device_files_close(void)
{
	compute_map(false);
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		if (sim.device_fd[i] >= 0)
			close(TAKE_FD(sim.device_fd[i]));
	if (sim.compute_fd >= 0)
		close(TAKE_FD(sim.compute_fd));
	if (sim.control_fd >= 0)
		close(TAKE_FD(sim.control_fd));
}

/* Returns the ordinal in the current list of devices; -1: no such device. */
static int device_by_name(const char *text, size_t length)
{
	char uuid[SIM_UUID_TEXT_BYTES];
	char *end;
	long number;

	if (length >= 4 && !strncasecmp(text, "GPU-", 4)) {
		for (unsigned i = 0; i < sim.device_count; i++) {
			sim_vendor.uuid_text(shared->gpus[sim.gpu_of_device[i]].uuid, uuid);
			if (!strncasecmp(uuid, text + 4, length - 4))
				return (int)i;
		}
		return -1;
	}
	number = strtol(text, &end, 10);
	return end == text || number < 0 || number >= (long)sim.device_count ? -1 : (int)number;
}

/*
 * The list ends at the first name that is not a GPU, as in NVIDIA's programming guide and in AMD's
 * runtime.
 */
void devices_choose(const char *list)
{
	unsigned chosen[SIM_MAX_GPUS], count = 0;

	while (list && *list && count < SIM_MAX_GPUS) {
		size_t length = strcspn(list, ",");
		int device = device_by_name(list, length);

		if (device < 0)
			break;
		chosen[count++] = sim.gpu_of_device[device];
		list += length + (list[length] == ',');
	}
	if (list) {
		memcpy(sim.gpu_of_device, chosen, sizeof(chosen));
		sim.device_count = count;
	}
}

static void devices_find(void)
{
	sim.device_count = shared->gpu_count;
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++) {
		sim.gpu_of_device[i] = i;
		sim.device_fd[i] = -1;
	}
	sim_vendor.devices_choose();
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
	if (atomic_load(&initialized))
		return CUDA_SUCCESS;
	result = initialize();
	if (!result)
		atomic_store(&initialized, true);
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

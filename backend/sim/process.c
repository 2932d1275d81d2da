/* SPDX-License-Identifier: MIT */
/*
 * One simulated process: cuInit, the gate that every driver call passes, the device files it
 * holds open, and what is left of it after fork (nothing: the driver's threads are gone).
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>

struct sim_process sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.map_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
	.lock_fd = -1,
	.control_fd = -1,
	.uvm_fd = -1,
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
static __thread bool callback_thread;

uint64_t sim_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

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

/* The driver's own threads take none of the program's signals. */
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

	if (atomic_load(&forked) || (!(flags & SIM_CALL_BEFORE_INIT) && !atomic_load(&initialized)))
		call.result = CUDA_ERROR_NOT_INITIALIZED;
	else if (callback_thread)
		call.result = CUDA_ERROR_NOT_PERMITTED;
	if (call.result)
		return call;

	if (flags == SIM_CALL_GATED) {
		pthread_mutex_lock(&gate.lock);
		while (gate.closed)
			pthread_cond_wait(&gate.changed, &gate.lock);
		gate.inside++;
		pthread_mutex_unlock(&gate.lock);
		call.entered = true;
	}
	/* Inside the gate: a call that hangs is one that Lock has to wait for. */
	call.result = fault_check(name, FAULT_CALLER, &call.after);
	if (call.result)
		sim_leave(&call);
	return call;
}

void sim_leave(struct sim_call *call)
{
	fault_act(&call->after);
	if (!call->entered)
		return;
	call->entered = false;
	pthread_mutex_lock(&gate.lock);
	if (--gate.inside == 0)
		pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
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

static void fork_child(void)
{
	/* The stream threads and the restore thread do not exist here, and whoever held a lock
	 * is gone; the inherited descriptors stay and keep the parent's memory in use. */
	if (!atomic_load(&initialized))
		return;
	atomic_store(&forked, true);
	checkpoint_server_forked();
}

static int open_device(const char *name)
{
	char path[PATH_MAX];

	shared_path(path, "%s", name);
	return shared_open_file(path, O_RDWR);
}

/*
 * A process with a context has one mapping of nvidia-uvm, which its children do not inherit
 * (measured); it is what tells a process that computes from one that only asks NVML.
 */
static int uvm_map(bool wanted)
{
	if (wanted && !sim.uvm_mapping) {
		void *mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, sim.uvm_fd, 0);

		if (mapping == MAP_FAILED || madvise(mapping, 4096, MADV_DONTFORK) < 0)
			return -EIO;
		sim.uvm_mapping = mapping;
	} else if (!wanted && sim.uvm_mapping) {
		munmap(TAKE_PTR(sim.uvm_mapping), 4096);
	}
	return 0;
}

int device_files_open(void)
{
	bool any_context = false;
	char name[32];

	if (sim.control_fd < 0)
		sim.control_fd = open_device("nvidiactl");
	if (sim.uvm_fd < 0)
		sim.uvm_fd = open_device("nvidia-uvm");
	if (sim.control_fd < 0 || sim.uvm_fd < 0)
		return -EIO;
	for (unsigned i = 0; i < sim.device_count; i++) {
		bool wanted = device_has_context((int)i);

		any_context = any_context || wanted;
		if (wanted && sim.device_fd[i] < 0) {
			snprintf(name, sizeof(name), "nvidia%u", sim.gpu_of_device[i]);
			sim.device_fd[i] = open_device(name);
		} else if (!wanted && sim.device_fd[i] >= 0) {
			close(TAKE_FD(sim.device_fd[i]));
		}
	}
	return uvm_map(any_context);
}

void device_files_close(void)
{
	uvm_map(false);
	for (unsigned i = 0; i < sim.device_count; i++)
		if (sim.device_fd[i] >= 0)
			close(TAKE_FD(sim.device_fd[i]));
	if (sim.uvm_fd >= 0)
		close(TAKE_FD(sim.uvm_fd));
	if (sim.control_fd >= 0)
		close(TAKE_FD(sim.control_fd));
}

static int gpu_by_name(const char *text, size_t length)
{
	char uuid[37];
	char *end;
	long number;

	if (length >= 4 && !strncasecmp(text, "GPU-", 4)) {
		for (unsigned i = 0; i < shared->gpu_count; i++) {
			const unsigned char *u = shared->gpus[i].uuid;

			snprintf(uuid, sizeof(uuid),
				 "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%"
				 "02x",
				 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
				 u[11], u[12], u[13], u[14], u[15]);
			if (!strncasecmp(uuid, text + 4, length - 4))
				return (int)i;
		}
		return -1;
	}
	number = strtol(text, &end, 10);
	return end == text || number < 0 || number >= (long)shared->gpu_count ? -1 : (int)number;
}

/* The list ends at the first name that is not a GPU, as the programming guide says. */
static void devices_find(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	sim.device_count = 0;
	if (!visible) {
		for (unsigned i = 0; i < shared->gpu_count; i++)
			sim.gpu_of_device[sim.device_count++] = i;
	} else {
		while (*visible && sim.device_count < SIM_MAX_GPUS) {
			size_t length = strcspn(visible, ",");
			int gpu = gpu_by_name(visible, length);

			if (gpu < 0)
				break;
			sim.gpu_of_device[sim.device_count++] = (unsigned)gpu;
			visible += length + (visible[length] == ',');
		}
	}
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		sim.device_fd[i] = -1;
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

/* SPDX-License-Identifier: MIT */
/*
 * The machine-wide state: creating and opening it, process slots, physical allocations, and the
 * memory in use. Used by both libraries; calls none of their functions.
 */
#include "backend/sim/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/lock.h"

#define SHARED_MAGIC 0x67707563722d7335ull

struct shared_state *shared;

static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned attach_count;

static char directory[PATH_MAX - 128];
static bool directory_is_given;
static bool is_changed; /* since shared_machine.changed was called; the lock is held */

const char *shared_directory(void)
{
	const char *given = getenv("GPUCR_SIM_DIR");

	if (directory[0])
		return directory;
	directory_is_given = given && *given;
	if (directory_is_given)
		snprintf(directory, sizeof(directory), "%s", given);
	else
		snprintf(directory, sizeof(directory), "/dev/shm/gpucr-sim-%u", geteuid());
	return directory;
}

static void path_make(char *path, const char *below, const char *format, va_list arguments)
{
	size_t length = (size_t)snprintf(path, PATH_MAX, "%s/%s%s", shared_directory(), below,
					 *below ? "/" : "");

	vsnprintf(path + length, PATH_MAX - length, format, arguments);
}

void shared_path(char *path, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	path_make(path, shared_machine.directory, format, arguments);
	va_end(arguments);
}

void shared_device_path(char *path, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	path_make(path, "", format, arguments);
	va_end(arguments);
}

int shared_open_file(const char *path, int flags)
{
	/*
	 * Try without O_CREAT first: fs.protected_regular refuses O_CREAT on another user's file in
	 * a sticky directory, even for root.
	 */
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT) {
		fd = open(path, flags | O_CREAT | O_CLOEXEC, directory_is_given ? 0666 : 0600);
		if (fd >= 0 && directory_is_given)
			fchmod(fd, 0666);
	}
	return fd < 0 ? -errno : fd;
}

static uint64_t environment_bytes(const char *name, uint64_t fallback)
{
	const char *value = getenv(name);
	char *end;
	uint64_t bytes;

	if (!value || !*value)
		return fallback;
	bytes = strtoull(value, &end, 0);
	switch (*end) {
	case 'G':
	case 'g':
		bytes <<= 10;
		__attribute__((fallthrough));
	case 'M':
	case 'm':
		bytes <<= 10;
		__attribute__((fallthrough));
	case 'K':
	case 'k':
		bytes <<= 10;
	}
	return bytes;
}

int shared_make_directory(const char *path)
{
	if (mkdir(path, directory_is_given ? 01777 : 0700) < 0)
		return errno == EEXIST ? 0 : -errno;
	if (directory_is_given)
		chmod(path, 01777);
	return 0;
}

void shared_make_file(const char *path)
{
	int fd = shared_open_file(path, O_RDWR);

	if (fd >= 0)
		close(fd);
}

static uint64_t seed_of(const char *name, uint64_t seed)
{
	for (; *name; name++)
		seed = (seed ^ (unsigned char)*name) * 0x100000001b3ull;
	return seed;
}

static int state_create(const char *path)
{
	_cleanup_close_ int fd = -1;
	struct shared_state *state;
	pthread_mutexattr_t attributes;
	char temporary[PATH_MAX];
	const char *gpus = shared_machine.gpus_variable;
	const char *name = getenv("GPUCR_SIM_GPU_NAME");
	uint64_t seed;

	shared_path(temporary, "state.new");
	unlink(temporary);
	fd = shared_open_file(temporary, O_RDWR);
	if (fd < 0)
		return fd;
	if (ftruncate(fd, sizeof(*state)) < 0)
		return -errno;
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state == MAP_FAILED)
		return -errno;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&state->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);

	state->gpu_count = (unsigned)environment_bytes("GPUCR_SIM_GPUS", 1);
	if (gpus)
		state->gpu_count = (unsigned)environment_bytes(gpus, state->gpu_count);
	if (state->gpu_count > SIM_MAX_GPUS)
		state->gpu_count = SIM_MAX_GPUS;
	state->default_context_bytes = environment_bytes("GPUCR_SIM_CONTEXT_BYTES", 16ull << 20);
	state->next_id = 1;
	/*
	 * UUIDs are derived from the names, so that they stay the same if the directory is created
	 * again.
	 */
	seed = seed_of(directory, 0xcbf29ce484222325ull);
	seed = seed_of(shared_machine.directory, seed);
	if (getenv("GPUCR_SIM_HOST"))
		seed = seed_of(getenv("GPUCR_SIM_HOST"), seed);
	for (unsigned i = 0; i < state->gpu_count; i++) {
		struct shared_gpu *gpu = &state->gpus[i];

		for (unsigned j = 0; j < sizeof(gpu->uuid); j++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			gpu->uuid[j] = seed >> 56;
		}
		shared_machine.uuid_make(gpu->uuid);
		snprintf(gpu->name, sizeof(gpu->name), "%s", name ? name : shared_machine.gpu_name);
		gpu->capacity_bytes = environment_bytes("GPUCR_SIM_VRAM", 1ull << 30);
	}
	shared_machine.files_make(state);
	state->magic = SHARED_MAGIC;
	munmap(state, sizeof(*state));
	return rename(temporary, path) < 0 ? -errno : 0;
}

static int state_open(void)
{
	static const char *const directories[] = {"", "memory", "processes"};
	_cleanup_close_ int lock = -1;
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	struct shared_state *state;
	struct stat status;
	int r;

	r = shared_make_directory(shared_directory());
	for (size_t i = 0; !r && i < GCR_ARRAY_SIZE(directories); i++) {
		shared_path(path, "%s", directories[i]);
		r = shared_make_directory(path);
	}
	if (r < 0)
		return r;

	shared_path(path, "state.lock");
	lock = shared_open_file(path, O_RDWR);
	if (lock < 0)
		return lock;
	while (flock(lock, LOCK_EX) < 0)
		if (errno != EINTR)
			return -errno;
	shared_path(path, "state");
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		r = state_create(path);
		if (r < 0)
			return r;
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (fd < 0 || fstat(fd, &status) < 0)
		return -errno;
	if (status.st_size != sizeof(*state))
		return -EPROTO;
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state == MAP_FAILED)
		return -errno;
	if (state->magic != SHARED_MAGIC) {
		munmap(state, sizeof(*state));
		return -EPROTO;
	}
	shared = state;
	return 0;
}

int shared_attach(void)
{
	GCR_LOCK_SCOPE(&attach_lock);
	int r = attach_count ? 0 : state_open();

	if (!r)
		attach_count++;
	return r;
}

void shared_detach(void)
{
	GCR_LOCK_SCOPE(&attach_lock);

	if (--attach_count)
		return;
	munmap(shared, sizeof(*shared));
	shared = NULL;
}

void shared_lock(void)
{
	if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD) {
		pthread_mutex_consistent(&shared->lock);
		shared_changed();
	}
}

void shared_changed(void)
{
	is_changed = true;
}

void shared_unlock(void)
{
	if (is_changed && shared_machine.changed)
		shared_machine.changed();
	is_changed = false;
	pthread_mutex_unlock(&shared->lock);
}

int process_own_pid(void)
{
	char text[16];
	ssize_t length = readlink("/proc/self", text, sizeof(text) - 1);

	if (length <= 0)
		return getpid();
	text[length] = '\0';
	return (int)strtol(text, NULL, 10);
}

/*
 * Returns the offset in clock ticks of start times: a process restored by CRIU is in its own time
 * namespace.
 */
static int64_t boot_offset_ticks(void)
{
	_cleanup_close_ int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
	long ticks_per_sec = sysconf(_SC_CLK_TCK);
	int64_t sec = 0, nsec = 0;
	char text[256], *line;
	ssize_t length;

	length = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	text[length > 0 ? length : 0] = '\0';
	line = strstr(text, "boottime");
	if (!line || sscanf(line, "boottime %" SCNd64 " %" SCNd64, &sec, &nsec) != 2)
		return 0;
	return sec * ticks_per_sec + nsec / (1000000000 / ticks_per_sec);
}

/* Called if the main thread has ended: returns true if another thread has not. */
static bool has_other_threads(int pid)
{
	_cleanup_closedir_ DIR *tasks = NULL;
	const struct dirent *entry;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && (entry = readdir(tasks))) {
		long tid = strtol(entry->d_name, NULL, 10);

		if (tid > 0 && tid != pid)
			return true;
	}
	return false;
}

/*
 * Returns field 22 of /proc/PID/stat, in clock ticks since boot; 0 if there is no such process.
 * Seen from another time namespace the value may differ by one tick.
 */
uint64_t process_start_time(int pid)
{
	_cleanup_close_ int fd = -1;
	char path[64], text[1024], *field;
	uint64_t start_time = 0;
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	length = read(fd, text, sizeof(text) - 1);
	if (length <= 0)
		return 0;
	text[length] = '\0';
	/*
	 * The command name is in parentheses and may contain anything, so count fields from its
	 * end.
	 */
	field = strrchr(text, ')');
	if (!field || field[1] != ' ')
		return 0;
	if ((field[2] == 'Z' || field[2] == 'X') && !has_other_threads(pid))
		return 0;
	field += 2;
	for (int i = 3; i < 22 && field; i++) {
		field = strchr(field, ' ');
		if (field)
			field++;
	}
	if (field)
		sscanf(field, "%" SCNu64, &start_time);
	return start_time ? start_time - (uint64_t)boot_offset_ticks() : 0;
}

bool shared_process_running(const struct shared_process *process)
{
	uint64_t start_time = process->pid ? process_start_time(process->pid) : 0;

	return start_time && start_time + 1 - process->start_time <= 2;
}

int shared_process_lock_file(unsigned index)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];

	shared_path(path, "processes/%u.lock", index);
	fd = shared_open_file(path, O_RDWR);
	if (fd < 0)
		return fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return -errno;
	return TAKE_FD(fd);
}

static bool process_alive(unsigned index)
{
	const struct shared_process *process = &shared->processes[index];
	_cleanup_close_ int fd = -1;

	if (process->holds_no_file)
		return shared_process_running(process);
	fd = shared_process_lock_file(index);
	return fd == -EWOULDBLOCK;
}

static void process_remove(unsigned index)
{
	char path[PATH_MAX];

	shared_changed();
	/* The restore thread's socket. A new process with this pid creates its own later. */
	shared_path(path, "processes/%d.sock", shared->processes[index].pid);
	unlink(path);
	for (unsigned i = 0; i < shared->allocation_high; i++)
		if (shared->allocations[i].id)
			holder_clear(shared->allocations[i].holders, index);
	for (unsigned i = 0; i < SIM_MAX_IPC_EVENTS; i++) {
		struct shared_event *event = &shared->events[i];

		if (!event->id || !holder_test(event->holders, index))
			continue;
		holder_clear(event->holders, index);
		if (!holder_any(event->holders))
			event->id = 0;
	}
	memset(shared->processes[index].context_bytes, 0,
	       sizeof(shared->processes[index].context_bytes));
	memset(shared->processes[index].managed_bytes, 0,
	       sizeof(shared->processes[index].managed_bytes));
	if (shared_machine.process_gone)
		shared_machine.process_gone(shared->processes[index].pid);
	shared->processes[index].pid = 0;
}

static void allocation_remove(unsigned slot)
{
	char path[PATH_MAX];

	shared_changed();
	shared_path(path, "memory/%" PRIu64, shared->allocations[slot].id);
	shared->allocations[slot].id = 0;
	unlink(path);
}

/* Returns true if an open file description holds the file's lock. */
static bool allocation_descriptor_open(unsigned slot)
{
	_cleanup_close_ int fd = shared_allocation_open(slot, false);

	if (fd < 0)
		return false;
	return flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

void shared_reclaim(void)
{
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		if (shared->processes[i].pid && !process_alive(i))
			process_remove(i);
	for (unsigned i = 0; i < shared->allocation_high; i++) {
		struct shared_allocation *allocation = &shared->allocations[i];

		if (!allocation->id || holder_any(allocation->holders))
			continue;
		if (!allocation->exported || !allocation_descriptor_open(i))
			allocation_remove(i);
	}
}

int shared_process_add(int pid, uint64_t start_time, int *ret_fd)
{
	shared_reclaim();
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
		struct shared_process *process = &shared->processes[i];
		int fd;

		if (process->pid)
			continue;
		fd = shared_process_lock_file(i);
		if (fd < 0)
			continue;
		memset(process, 0, sizeof(*process));
		process->uid = geteuid();
		process->start_time = start_time;
		process->generation = shared->next_id++;
		__atomic_store_n(&process->pid, pid, __ATOMIC_RELEASE);
		shared_changed();
		*ret_fd = fd;
		return (int)i;
	}
	return -EUSERS;
}

bool shared_process_is_own(unsigned index, uint64_t generation, int pid, uint64_t start_time)
{
	const struct shared_process *process = &shared->processes[index];

	return process->pid == pid && process->generation == generation &&
	       process->start_time == start_time;
}

int shared_process_find(int pid)
{
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		if (shared->processes[i].pid == pid &&
		    shared_process_running(&shared->processes[i]))
			return (int)i;
	return -ESRCH;
}

uint64_t shared_gpu_used_bytes(unsigned gpu)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		if (shared->processes[i].pid)
			used += shared->processes[i].context_bytes[gpu] +
				shared->processes[i].managed_bytes[gpu];
	for (unsigned i = 0; i < shared->allocation_high; i++)
		if (shared->allocations[i].id && shared->allocations[i].gpu == gpu)
			used += shared->allocations[i].size_bytes;
	return used;
}

uint64_t shared_process_used_bytes(unsigned index, unsigned gpu)
{
	uint64_t used = shared->processes[index].context_bytes[gpu] +
			shared->processes[index].managed_bytes[gpu];

	for (unsigned i = 0; i < shared->allocation_high; i++) {
		const struct shared_allocation *allocation = &shared->allocations[i];

		/* Measured: NVML does not count imported memory. */
		if (allocation->id && allocation->gpu == gpu &&
		    allocation->maker == shared->processes[index].generation &&
		    holder_test(allocation->holders, index))
			used += allocation->size_bytes;
	}
	return used;
}

int shared_allocation_open(unsigned slot, bool locked)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];

	shared_path(path, "memory/%" PRIu64, shared->allocations[slot].id);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (locked && flock(fd, LOCK_SH | LOCK_NB) < 0)
		return -errno;
	return TAKE_FD(fd);
}

int shared_allocation_add(unsigned index, unsigned gpu, uint64_t size_bytes)
{
	struct shared_allocation *allocation;
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	unsigned slot;
	uint64_t id;

	if (shared_gpu_used_bytes(gpu) + size_bytes > shared->gpus[gpu].capacity_bytes) {
		shared_reclaim();
		if (shared_gpu_used_bytes(gpu) + size_bytes > shared->gpus[gpu].capacity_bytes)
			return -ENOMEM;
	}
	for (slot = 0; slot < SIM_MAX_ALLOCATIONS; slot++)
		if (!shared->allocations[slot].id)
			break;
	if (slot == SIM_MAX_ALLOCATIONS)
		return -ENOMEM;
	id = shared->next_id++;
	shared_path(path, "memory/%" PRIu64, id);
	unlink(path);
	fd = shared_open_file(path, O_RDWR);
	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)size_bytes) < 0) {
		unlink(path);
		return -errno;
	}
	allocation = &shared->allocations[slot];
	memset(allocation, 0, sizeof(*allocation));
	allocation->size_bytes = size_bytes;
	allocation->gpu = gpu;
	allocation->maker = shared->processes[index].generation;
	holder_set(allocation->holders, index);
	if (slot >= shared->allocation_high)
		shared->allocation_high = slot + 1;
	__atomic_store_n(&allocation->id, id, __ATOMIC_RELEASE);
	shared_changed();
	return (int)slot;
}

void shared_allocation_hold(unsigned slot, unsigned index)
{
	holder_set(shared->allocations[slot].holders, index);
	shared_changed();
}

void shared_allocation_drop(unsigned slot, unsigned index)
{
	struct shared_allocation *allocation = &shared->allocations[slot];

	holder_clear(allocation->holders, index);
	/* If its maker gets the memory back later, then as an import like any other process. */
	if (allocation->maker == shared->processes[index].generation)
		allocation->maker = 0;
	shared_changed();
	if (holder_any(allocation->holders))
		return;
	if (!allocation->exported || !allocation_descriptor_open(slot))
		allocation_remove(slot);
}

bool shared_allocation_shared(unsigned slot, unsigned index)
{
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		if (i != index && holder_test(shared->allocations[slot].holders, i))
			return true;
	return false;
}

int shared_allocation_find(uint64_t id)
{
	for (unsigned i = 0; i < shared->allocation_high; i++)
		if (id && shared->allocations[i].id == id)
			return (int)i;
	return -ENOENT;
}

int shared_event_add(unsigned index)
{
	for (unsigned i = 0; i < SIM_MAX_IPC_EVENTS; i++) {
		struct shared_event *event = &shared->events[i];

		if (event->id)
			continue;
		memset(event, 0, sizeof(*event));
		holder_set(event->holders, index);
		__atomic_store_n(&event->id, shared->next_id++, __ATOMIC_RELEASE);
		return (int)i;
	}
	return -ENOMEM;
}

/* SPDX-License-Identifier: MIT */
/*
 * The machine-wide state of the simulator: one directory and one memory segment shared by all
 * simulated processes. The segment is consistent at every instant, because any process may be
 * killed at any instant: there are no lists, and an entry's `id`/`pid` is written last and cleared
 * first. shared_lock() recovers a lock whose owner died. Each vendor has its own state: a machine
 * may have GPUs of both vendors.
 */
#ifndef GPUCR_SIM_SHARED_H
#define GPUCR_SIM_SHARED_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"

#define SIM_MAX_GPUS	    16
#define SIM_MAX_PROCESSES   256
#define SIM_MAX_ALLOCATIONS 32768
#define SIM_MAX_IPC_EVENTS  256
#define SIM_HOLDER_WORDS    (SIM_MAX_PROCESSES / 64)
#define SIM_BLOCK_BYTES	    (2ull << 20)

struct shared_gpu {
	unsigned char uuid[16];
	char name[64];
	uint64_t capacity_bytes;
	uint64_t told_bytes; /* VRAM in use, as written to the files */
};

/*
 * A process that called cuInit. The process is alive while any process holds the lock on the file
 * processes/<index>.lock; a forked child inherits that lock as it inherits the real driver's
 * descriptors. A checkpointed process has no open file: then pid and start time decide.
 */
struct shared_process {
	int pid;
	unsigned uid;
	uint64_t start_time;
	uint64_t generation;
	int state; /* CUprocessState */
	int restore_thread;
	int holds_no_file;
	uint64_t context_bytes[SIM_MAX_GPUS];
	uint64_t managed_bytes[SIM_MAX_GPUS]; /* managed memory located on the GPU */
	/* The values written to the files (shared_machine.changed). */
	int is_told;
	uint64_t told_bytes[SIM_MAX_GPUS];
};

/*
 * Physical memory: the file memory/<id>. In use while one of the holders is alive, or while an open
 * file description (an exported descriptor) has the file locked.
 */
struct shared_allocation {
	uint64_t id;
	/*
	 * The generation of the process that created the memory, while that process holds it; else
	 * 0.
	 */
	uint64_t maker;
	uint64_t size_bytes;
	unsigned gpu;
	int exported;
	int legacy_ipc;
	unsigned char rdma_capable; /* allocFlags.gpuDirectRDMACapable, for importers */
	uint64_t holders[SIM_HOLDER_WORDS];
};

/*
 * An interprocess event: `recorded` counts calls of cuEventRecord, `completed` is the last one
 * done.
 */
struct shared_event {
	uint64_t id;
	uint64_t recorded;
	uint64_t completed;
	uint64_t holders[SIM_HOLDER_WORDS];
};

struct shared_state {
	uint64_t magic;
	pthread_mutex_t lock;
	unsigned gpu_count;
	uint64_t default_context_bytes;
	uint64_t next_id;
	unsigned allocation_high; /* slots from this one on were never used */
	struct shared_gpu gpus[SIM_MAX_GPUS];
	struct shared_process processes[SIM_MAX_PROCESSES];
	struct shared_event events[SIM_MAX_IPC_EVENTS];
	struct shared_allocation allocations[SIM_MAX_ALLOCATIONS];
};

extern struct shared_state *shared;

/* The properties of a machine with GPUs of one vendor: cuda_machine.c, hip_machine.c. */
struct shared_machine {
	const char *directory;	   /* of the state, below GPUCR_SIM_DIR; "": GPUCR_SIM_DIR itself */
	const char *gpus_variable; /* read before GPUCR_SIM_GPUS for the number of GPUs; or NULL */
	const char *gpu_name;
	/* Makes a valid UUID of 16 random-looking bytes. */
	void (*uuid_make)(unsigned char uuid[16]);
	/*
	 * Creates the device files in the directory of shared_device_path(). The state is complete
	 * except for its magic; no other process uses the state yet.
	 */
	void (*files_make)(const struct shared_state *state);
	/* Called with the lock held when the memory in use has changed; or NULL. */
	void (*changed)(void);
	/* Called with the lock held when a process has ended; or NULL. */
	void (*process_gone)(int pid);
};

extern const struct shared_machine shared_machine;

/*
 * Maps the state, creating it in the first process. `shared` stays valid until shared_detach() has
 * been called as often. A later call may find another machine's state at the same path. Returns 0
 * or -errno.
 */
int shared_attach(void);
void shared_detach(void);
/* Returns GPUCR_SIM_DIR or its default, without a trailing slash. */
const char *shared_directory(void);
/* Writes "<the state's directory>/<format...>" into path[PATH_MAX]. */
void shared_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same below shared_directory(): for files common to all vendors, and device files. */
void shared_device_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/*
 * Opens a file below the directory, created with mode 0666 if missing. Returns the descriptor or
 * -errno.
 */
int shared_open_file(const char *path, int flags);
/* Creates a directory, or an empty file, there if it is missing. Returns 0 or -errno. */
int shared_make_directory(const char *path);
void shared_make_file(const char *path);

void shared_lock(void);
void shared_unlock(void);

/* The caller of the following functions holds the lock. */

/* To be called after the caller changed the memory in use; the functions below do so themselves. */
void shared_changed(void);

/*
 * Takes a free process slot for the caller, known to others as @pid with this start time, and locks
 * its file. Returns the index or -errno; *ret_fd gets the file, which keeps the slot in use.
 */
int shared_process_add(int pid, uint64_t start_time, int *ret_fd);
/*
 * Opens and locks the file of the caller's slot again after a restore. Returns the descriptor or
 * -errno.
 */
int shared_process_lock_file(unsigned index);
/* Returns true if the slot is the caller's: taken in this machine during the same run. */
bool shared_process_is_own(unsigned index, uint64_t generation, int pid, uint64_t start_time);
/* Returns the slot of a live process, or -ESRCH. */
int shared_process_find(int pid);
/*
 * Returns true if the process itself runs; false if it is dead, even if a forked child keeps its
 * memory.
 */
bool shared_process_running(const struct shared_process *process);

uint64_t shared_gpu_used_bytes(unsigned gpu);
uint64_t shared_process_used_bytes(unsigned index, unsigned gpu);
/* Frees everything held by dead processes and closed descriptors. */
void shared_reclaim(void);

/*
 * Creates a physical allocation held by process `index`. Returns the slot, -ENOMEM or another
 * -errno.
 */
int shared_allocation_add(unsigned index, unsigned gpu, uint64_t size_bytes);
void shared_allocation_hold(unsigned slot, unsigned index);
/* Removes the hold of process `index`, and frees the memory with the last hold. */
void shared_allocation_drop(unsigned slot, unsigned index);
/* Returns true if a process other than `index` holds the allocation. */
bool shared_allocation_shared(unsigned slot, unsigned index);
/* Returns the slot of a live allocation by id, or -ENOENT. */
int shared_allocation_find(uint64_t id);
/*
 * Opens the file again. With `locked` the descriptor keeps the memory in use. Returns the
 * descriptor or -errno.
 */
int shared_allocation_open(unsigned slot, bool locked);

int shared_event_add(unsigned index);

/* Returns this process's pid in the pid namespace of /proc, which may differ from getpid(). */
int process_own_pid(void);
uint64_t process_start_time(int pid);

static inline bool holder_test(const uint64_t *holders, unsigned index)
{
	return holders[index / 64] >> (index % 64) & 1;
}

static inline void holder_set(uint64_t *holders, unsigned index)
{
	holders[index / 64] |= 1ull << (index % 64);
}

static inline void holder_clear(uint64_t *holders, unsigned index)
{
	holders[index / 64] &= ~(1ull << (index % 64));
}

static inline bool holder_any(const uint64_t *holders)
{
	for (unsigned i = 0; i < SIM_HOLDER_WORDS; i++)
		if (holders[i])
			return true;
	return false;
}

#endif

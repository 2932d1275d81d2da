/* SPDX-License-Identifier: MIT */
/*
 * The machine-wide state of the simulator: one directory and one memory segment that all
 * simulated processes share. Everything in here is valid at any instant, because any process
 * may be killed at any instant: no lists, and an entry's `id`/`pid` is written last and
 * cleared first. shared_lock() recovers a lock whose owner died. Each vendor has a state of its
 * own: a machine may have GPUs of both.
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
	uint64_t told_bytes; /* in use, as files tell */
};

/* A process that called cuInit. Alive while somebody holds the lock on its file
 * processes/<index>.lock; a forked child inherits that lock as it inherits the real driver's
 * descriptors. A checkpointed process holds no file: then pid and start time decide. */
struct shared_process {
	int pid;
	unsigned uid;
	uint64_t start_time;
	uint64_t generation;
	int state; /* CUprocessState */
	int restore_thread;
	int holds_no_file;
	uint64_t context_bytes[SIM_MAX_GPUS];
	uint64_t managed_bytes[SIM_MAX_GPUS]; /* managed memory that is on the GPU */
	/* What files tell of it (shared_machine.changed). */
	int is_told;
	uint64_t told_bytes[SIM_MAX_GPUS];
};

/* Physical memory: the file memory/<id>. In use while a live process is among the holders, or
 * while an open description of the file (an exported descriptor) has it locked. */
struct shared_allocation {
	uint64_t id;
	uint64_t maker; /* the generation of the process that made it, as long as it has it; else 0
			 */
	uint64_t size_bytes;
	unsigned gpu;
	int exported;
	int legacy_ipc;
	unsigned char rdma_capable; /* allocFlags.gpuDirectRDMACapable, for who imports it */
	uint64_t holders[SIM_HOLDER_WORDS];
};

/* An interprocess event: `recorded` counts cuEventRecord, `completed` is the last that ran. */
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
	unsigned allocation_high; /* slots at and above this were never used */
	struct shared_gpu gpus[SIM_MAX_GPUS];
	struct shared_process processes[SIM_MAX_PROCESSES];
	struct shared_event events[SIM_MAX_IPC_EVENTS];
	struct shared_allocation allocations[SIM_MAX_ALLOCATIONS];
};

extern struct shared_state *shared;

/* What a machine with GPUs of one vendor looks like: cuda_machine.c, hip_machine.c. */
struct shared_machine {
	const char *directory;	   /* its state's, below GPUCR_SIM_DIR; "": that itself */
	const char *gpus_variable; /* asked for the number of GPUs before GPUCR_SIM_GPUS; or NULL */
	const char *gpu_name;
	/* From 16 bytes that look random. */
	void (*uuid_make)(unsigned char uuid[16]);
	/* Makes the device files, in the directory of shared_device_path(). The state is complete
	 * but for its magic, and nobody else has it. */
	void (*files_make)(const struct shared_state *state);
	/* What is in use has changed; the lock is held. NULL: nobody wants to know. */
	void (*changed)(void);
	/* A process is there no more; likewise. */
	void (*process_gone)(int pid);
};

extern const struct shared_machine shared_machine;

/* Maps the state, creating it if this is the first process; `shared` is valid until as many calls
 * of shared_detach(). Another time the same path may be another machine's state. 0 or -errno. */
int shared_attach(void);
void shared_detach(void);
/* GPUCR_SIM_DIR, or what stands for it, without a trailing slash. */
const char *shared_directory(void);
/* Writes "<the state's directory>/<format...>" into path[PATH_MAX]. */
void shared_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same below shared_directory(): what all vendors have together, and the device files. */
void shared_device_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Opens a file below the directory, creating it mode 0666 when it is not there. fd or -errno. */
int shared_open_file(const char *path, int flags);
/* Makes a directory there, if it is not there, and empty files. 0 or -errno. */
int shared_make_directory(const char *path);
void shared_make_file(const char *path);

void shared_lock(void);
void shared_unlock(void);

/* The following want the lock held. */

/* What is in use has changed by the caller's doing; the functions below know of theirs. */
void shared_changed(void);

/* Takes a free process slot for the caller, which others see as @pid with this start time, and
 * locks its file. Index or -errno; the file, which keeps the slot alive, in *ret_fd. */
int shared_process_add(int pid, uint64_t start_time, int *ret_fd);
/* Re-opens the file of the caller's own slot after a restore. fd or -errno. */
int shared_process_lock_file(unsigned index);
/* The slot is the caller's: it took it in this machine, and runs since then. */
bool shared_process_is_own(unsigned index, uint64_t generation, int pid, uint64_t start_time);
/* The slot of a live process, or -ESRCH. */
int shared_process_find(int pid);
/* The process runs: not one that is dead while a forked child keeps its memory. */
bool shared_process_running(const struct shared_process *process);

uint64_t shared_gpu_used_bytes(unsigned gpu);
uint64_t shared_process_used_bytes(unsigned index, unsigned gpu);
/* Gives back what dead processes and closed descriptors held. */
void shared_reclaim(void);

/* Makes a physical allocation held by process `index`. Slot, or -ENOMEM, -errno. */
int shared_allocation_add(unsigned index, unsigned gpu, uint64_t size_bytes);
void shared_allocation_hold(unsigned slot, unsigned index);
/* Drops the hold of process `index` and frees the memory if nobody is left. */
void shared_allocation_drop(unsigned slot, unsigned index);
/* Somebody other than process `index` holds the allocation. */
bool shared_allocation_shared(unsigned slot, unsigned index);
/* Finds a live allocation by id: slot or -ENOENT. */
int shared_allocation_find(uint64_t id);
/* A new open description of the file; with `locked` it keeps the memory in use. fd or -errno. */
int shared_allocation_open(unsigned slot, bool locked);

int shared_event_add(unsigned index);

/* The pid of this process in the pid namespace that /proc shows, where it may be another one. */
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

/* SPDX-License-Identifier: MIT */
/*
 * What a controller and the restore thread of its target say to each other: one request and one
 * reply a connection, on the socket processes/PID.sock of the state directory. The restore thread
 * of a checkpointed process has no socket and no directory until somebody knocks; a socket that it
 * closes with requests in the queue has served none of them.
 */
#ifndef GPUCR_SIM_CHECKPOINT_MESSAGE_H
#define GPUCR_SIM_CHECKPOINT_MESSAGE_H

#include <signal.h>
#include <sys/un.h>

#include "backend/sim/sim.h"

enum checkpoint_verb {
	CHECKPOINT_VERB_LOCK,
	CHECKPOINT_VERB_CHECKPOINT,
	CHECKPOINT_VERB_RESTORE,
	CHECKPOINT_VERB_UNLOCK,
	CHECKPOINT_VERB_NOTHING, /* a process that came back registers again, as with all others */
	/* For a plugin of CRIU. Lock and checkpoint, or neither; and restore and unlock: the latter
	 * after the answer, when the other threads may be stopped still. */
	CHECKPOINT_VERB_LEAVE,
	CHECKPOINT_VERB_RETURN,
	CHECKPOINT_VERBS_COUNT,
};

struct checkpoint_request {
	uint32_t verb;
	uint32_t timeout_ms;
	uint32_t pair_count;
	uint64_t start_time; /* of the target, as the controller sees it */
	CUcheckpointGpuPair pairs[SIM_MAX_GPUS];
};

struct checkpoint_reply {
	int32_t result;
};

/* A knock is this signal, queued for the restore thread, which alone waits for it. Its value says
 * which process and thread the controller takes it for: in another pid namespace it cannot know. */
#define CHECKPOINT_KNOCK_SIGNAL (SIGRTMAX - 5)

static inline union sigval checkpoint_knock_value(int pid, int tid)
{
	return (union sigval){.sival_ptr = (void *)((uintptr_t)pid << 32 | (unsigned)tid)};
}

static inline void checkpoint_knock_read(union sigval value, int *ret_pid, int *ret_tid)
{
	*ret_pid = (int)((uintptr_t)value.sival_ptr >> 32);
	*ret_tid = (int)((uintptr_t)value.sival_ptr & 0x7fffffff);
}

/* Fills the address for process `pid`. A directory whose name is too long for an address is
 * reached through /proc/thread-self/fd; *ret_directory_fd is then to be closed afterwards. */
int checkpoint_address(int pid, struct sockaddr_un *ret_address, int *ret_directory_fd);
/* Copies the target's entry, if the caller may act on it. */
CUresult checkpoint_find(int pid, struct shared_process *ret_process);
/* Has the target's restore thread do something, and waits for its answer. */
CUresult checkpoint_ask(int pid, const struct checkpoint_request *request);
/* The restore thread, by its name among the target's threads. -ESRCH if it has none. */
int checkpoint_thread_find(int pid);

#endif

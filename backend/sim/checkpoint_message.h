/* SPDX-License-Identifier: MIT */
/*
 * Messages between a controller and the restore thread of its target: one request and one reply per
 * connection, on the socket processes/PID.sock of the state directory. The restore thread of a
 * checkpointed process has no socket and no directory until a controller knocks; requests that are
 * still queued when the thread closes its socket have not been served.
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
	/* No action of its own; like every verb, registers a process that CRIU has restored. */
	CHECKPOINT_VERB_NOTHING,
	/*
	 * For a plugin of CRIU. LEAVE: lock and checkpoint, or neither. RETURN: restore and unlock;
	 * the unlock follows the reply, when the other threads may still be stopped.
	 */
	CHECKPOINT_VERB_LEAVE,
	CHECKPOINT_VERB_RETURN,
	CHECKPOINT_VERBS_COUNT,
};

struct checkpoint_request {
	uint32_t verb;
	uint32_t timeout_ms;
	uint32_t pair_count;
	uint64_t start_time; /* of the target, as seen by the controller */
	CUcheckpointGpuPair pairs[SIM_MAX_GPUS];
};

struct checkpoint_reply {
	int32_t result;
};

/*
 * A knock is this signal, queued for the restore thread, the only thread that waits for it. Its
 * value carries the target's pid and tid as seen by the controller: in another pid namespace the
 * target cannot know them.
 */
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

/*
 * Fills in the address for process `pid`. A directory whose name is too long for an address is
 * reached through /proc/thread-self/fd; the caller then closes *ret_directory_fd after use.
 */
int checkpoint_address(int pid, struct sockaddr_un *ret_address, int *ret_directory_fd);
/*
 * Copies the entry of the process of thread @pid, if the caller may act on that process. 304: the
 * caller may not, or there is no such process; 3: the process has not called cuInit.
 */
CUresult checkpoint_find(int pid, struct shared_process *ret_process);
/*
 * Sends a request to the target's restore thread and waits for the reply, which is the result.
 * Errors as of checkpoint_find().
 */
CUresult checkpoint_ask(int pid, const struct checkpoint_request *request);
/* Finds the restore thread by name among the target's threads. -ESRCH if there is none. */
int checkpoint_thread_find(int pid);

#endif

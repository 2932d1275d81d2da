/* SPDX-License-Identifier: MIT */
/*
 * What a controller and the restore thread of its target say to each other: one request and one
 * reply a connection, on the socket processes/PID.sock of the state directory.
 */
#ifndef GPUCR_SIM_CHECKPOINT_MESSAGE_H
#define GPUCR_SIM_CHECKPOINT_MESSAGE_H

#include <sys/un.h>

#include "backend/sim/sim.h"

enum checkpoint_verb {
	CHECKPOINT_VERB_LOCK,
	CHECKPOINT_VERB_CHECKPOINT,
	CHECKPOINT_VERB_RESTORE,
	CHECKPOINT_VERB_UNLOCK,
	CHECKPOINT_VERB_NOTHING, /* makes a process that came back register again */
};

struct checkpoint_request {
	uint32_t verb;
	uint32_t timeout_ms;
	uint32_t pair_count;
	CUcheckpointGpuPair pairs[SIM_MAX_GPUS];
};

struct checkpoint_reply {
	int32_t result;
};

/* Fills the address for process `pid`. A directory whose name is too long for an address is
 * reached through /proc/self/fd; *ret_directory_fd is then to be closed afterwards. */
int checkpoint_address(int pid, struct sockaddr_un *ret_address, int *ret_directory_fd);

#endif

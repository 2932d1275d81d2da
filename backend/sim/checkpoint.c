/* SPDX-License-Identifier: MIT */
/*
 * cuCheckpointProcess*: the calling side. Everything is asked of the target's restore thread, one
 * request after the other, for as long as that takes.
 */
#include "backend/sim/checkpoint_message.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

/* Measured: 304 for a process that does not exist, is another user's or dies in the middle; 3 for
 * one that never called cuInit. */
static CUresult no_target(int pid)
{
	if (pid <= 0 || (kill(pid, 0) < 0 && errno == ESRCH))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return CUDA_ERROR_NOT_INITIALIZED;
}

static int target_connect(int pid)
{
	_cleanup_close_ int directory_fd = -1;
	_cleanup_close_ int fd = -1;
	struct sockaddr_un address;
	int r = checkpoint_address(pid, &address, &directory_fd);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	return TAKE_FD(fd);
}

static CUresult ask(int pid, const struct checkpoint_request *request)
{
	_cleanup_close_ int fd = target_connect(pid);
	uint64_t start_time = process_start_time(pid);
	struct checkpoint_reply reply;

	if (fd < 0)
		return fd == -EACCES ? CUDA_ERROR_OPERATING_SYSTEM : no_target(pid);
	if (send(fd, request, sizeof(*request), MSG_NOSIGNAL) != sizeof(*request))
		return no_target(pid);
	/* A stopped target answers when it is continued. One that died while a child of its
	 * keeps the socket open never will. */
	for (;;) {
		struct pollfd answer = {.fd = fd, .events = POLLIN};
		int r = poll(&answer, 1, 200);

		if (r > 0)
			break;
		if (r < 0 && errno != EINTR)
			return CUDA_ERROR_OPERATING_SYSTEM;
		if (process_start_time(pid) != start_time)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (recv(fd, &reply, sizeof(reply), MSG_WAITALL) != sizeof(reply))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return (CUresult)reply.result;
}

/* Copies the target's entry, if the caller may act on it. */
static CUresult target_find(int pid, struct shared_process *ret_process)
{
	struct checkpoint_request nothing = {.verb = CHECKPOINT_VERB_NOTHING};

	if (pid <= 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	for (int attempt = 0; attempt < 2; attempt++) {
		int index;

		shared_lock();
		/* An entry whose process has called exec is of no use, though the pid lives. */
		shared_reclaim();
		index = shared_process_find(pid);
		if (index >= 0)
			*ret_process = shared->processes[index];
		shared_unlock();
		if (index >= 0)
			return geteuid() && geteuid() != ret_process->uid
				       ? CUDA_ERROR_OPERATING_SYSTEM
				       : CUDA_SUCCESS;
		if (attempt || ask(pid, &nothing))
			break;
	}
	return no_target(pid);
}

static CUresult target_ask(int pid, const struct checkpoint_request *request)
{
	struct shared_process target;
	CUresult result = target_find(pid, &target);

	return result ? result : ask(pid, request);
}

static bool all_zero(const void *memory, size_t size_bytes)
{
	const char *bytes = memory;

	for (size_t i = 0; i < size_bytes; i++)
		if (bytes[i])
			return false;
	return true;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct shared_process target;
	CUresult result;

	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	result = target_find(pid, &target);
	if (!result)
		*tid = target.restore_thread;
	return result;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request nothing = {.verb = CHECKPOINT_VERB_NOTHING};
	struct shared_process target;
	CUresult result;

	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	/* Measured: it waits for the call under way, and for a stopped target to go on. */
	result = target_ask(pid, &nothing);
	if (!result)
		result = target_find(pid, &target);
	if (!result)
		*state = (CUprocessState)target.state;
	return result;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request request = {.verb = CHECKPOINT_VERB_LOCK};

	if (args) {
		if (args->reserved0 || !all_zero(args->reserved1, sizeof(args->reserved1)))
			return CUDA_ERROR_INVALID_VALUE;
		request.timeout_ms = args->timeoutMs;
	}
	return target_ask(pid, &request);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request request = {.verb = CHECKPOINT_VERB_CHECKPOINT};

	if (args && !all_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	return target_ask(pid, &request);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request request = {.verb = CHECKPOINT_VERB_RESTORE};

	if (args) {
		if (!all_zero(args->reserved, sizeof(args->reserved)) || args->reserved1 ||
		    args->gpuPairsCount > SIM_MAX_GPUS || (args->gpuPairsCount && !args->gpuPairs))
			return CUDA_ERROR_INVALID_VALUE;
		request.pair_count = args->gpuPairsCount;
		if (args->gpuPairsCount)
			memcpy(request.pairs, args->gpuPairs,
			       args->gpuPairsCount * sizeof(request.pairs[0]));
	}
	return target_ask(pid, &request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request request = {.verb = CHECKPOINT_VERB_UNLOCK};

	if (args && !all_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	return target_ask(pid, &request);
}

/* SPDX-License-Identifier: MIT */
/*
 * cuCheckpointProcess*: the calling side. All requests go to the target's restore thread
 * (checkpoint_ask.c).
 */
#include "backend/sim/checkpoint_message.h"

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
	result = checkpoint_find(pid, &target);
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
	/* Measured: waits for the call under way, and until a stopped target is continued. */
	result = checkpoint_ask(pid, &nothing);
	if (!result)
		result = checkpoint_find(pid, &target);
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
	return checkpoint_ask(pid, &request);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request request = {.verb = CHECKPOINT_VERB_CHECKPOINT};

	if (args && !all_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	return checkpoint_ask(pid, &request);
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
	return checkpoint_ask(pid, &request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	SIM_ENTER_FLAGS(SIM_CALL_CHECKPOINT);
	struct checkpoint_request request = {.verb = CHECKPOINT_VERB_UNLOCK};

	if (args && !all_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	return checkpoint_ask(pid, &request);
}

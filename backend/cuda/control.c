/* SPDX-License-Identifier: MIT */
/*
 * gpucr-control: drives cuCheckpointProcess* on the daemon's behalf. It initialises the driver
 * but never has a context, so it uses no VRAM and can itself stand by while GPUs are full.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/driver.h"
#include "backend/worker/serve.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/confine.h"
#include "lib/procfs.h"

/* Restoring onto other GPUs came with CUDA 13.0, driver 580. */
#define API_VERSION_GPU_PAIRS 13000

static enum gcr_control_state common_state(CUprocessState state)
{
	switch (state) {
	case CU_PROCESS_STATE_RUNNING:
		return GCR_CONTROL_RUNNING;
	case CU_PROCESS_STATE_LOCKED:
		return GCR_CONTROL_LOCKED;
	case CU_PROCESS_STATE_CHECKPOINTED:
		return GCR_CONTROL_CHECKPOINTED;
	case CU_PROCESS_STATE_FAILED:
		return GCR_CONTROL_FAILED;
	}
	return GCR_CONTROL_UNKNOWN;
}

static CUresult get_state(const struct gcr_driver *driver, const struct gcr_control_request *asked,
			  uint32_t *ret_state)
{
	CUprocessState state;
	CUresult result = driver->cuCheckpointProcessGetState(asked->pid, &state);

	if (result == CUDA_SUCCESS)
		*ret_state = common_state(state);
	return result;
}

static CUresult lock(const struct gcr_driver *driver, const struct gcr_control_request *asked)
{
	CUcheckpointLockArgs arguments = {.timeoutMs = asked->timeout_ms};

	return driver->cuCheckpointProcessLock(asked->pid, &arguments);
}

static CUresult checkpoint(const struct gcr_driver *driver, const struct gcr_control_request *asked)
{
	CUcheckpointCheckpointArgs arguments = {0};

	return driver->cuCheckpointProcessCheckpoint(asked->pid, &arguments);
}

static CUresult restore(const struct gcr_driver *driver, const struct gcr_control_request *asked)
{
	CUcheckpointGpuPair pairs[GCR_GPUS_MAX];
	CUcheckpointRestoreArgs arguments = {0};

	for (uint32_t i = 0; i < asked->pairs_count; i++) {
		memcpy(pairs[i].oldUuid.bytes, asked->pairs[i].from, GCR_UUID_BYTES);
		memcpy(pairs[i].newUuid.bytes, asked->pairs[i].to, GCR_UUID_BYTES);
	}
	if (asked->pairs_count > 0) {
		arguments.gpuPairs = pairs;
		arguments.gpuPairsCount = asked->pairs_count;
	}
	return driver->cuCheckpointProcessRestore(asked->pid, &arguments);
}

static CUresult unlock(const struct gcr_driver *driver, const struct gcr_control_request *asked)
{
	CUcheckpointUnlockArgs arguments = {0};

	return driver->cuCheckpointProcessUnlock(asked->pid, &arguments);
}

static const struct verb {
	uint16_t type;
	const char *call;
	CUresult (*run)(const struct gcr_driver *driver, const struct gcr_control_request *asked);
} verbs[] = {
	{GCR_MESSAGE_STATE, "cuCheckpointProcessGetState", NULL},
	{GCR_MESSAGE_LOCK, "cuCheckpointProcessLock", lock},
	{GCR_MESSAGE_CHECKPOINT, "cuCheckpointProcessCheckpoint", checkpoint},
	{GCR_MESSAGE_RESTORE, "cuCheckpointProcessRestore", restore},
	{GCR_MESSAGE_UNLOCK, "cuCheckpointProcessUnlock", unlock},
};

static const struct verb *find_verb(uint16_t type)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(verbs); i++)
		if (verbs[i].type == type)
			return &verbs[i];
	return NULL;
}

/* What the driver would misunderstand, or not check. */
static int check_request(const struct gcr_driver *driver, const struct verb *verb,
			 const struct gcr_control_request *asked, struct gcr_error *error)
{
	if (!verb)
		return gcr_error_set(error, EOPNOTSUPP, "gpucr-control does not know this request");
	if (asked->pid <= 0)
		return gcr_error_set(error, EINVAL, "%s: no process id", verb->call);
	if (asked->pairs_count > GCR_GPUS_MAX)
		return gcr_error_set(error, EINVAL, "%s: too many GPUs", verb->call);
	/* An older driver has reserved zeros where the pairs are. */
	if (asked->pairs_count > 0 && driver->api_version < API_VERSION_GPU_PAIRS)
		return gcr_error_set(error, EOPNOTSUPP,
				     "moving to other GPUs needs driver 580 or newer");
	return 0;
}

/* The driver says 304 or 3 where it has not found the process it was asked about (measured). */
static void explain(CUresult driver_result, pid_t pid, struct gcr_error *error)
{
	if (kill(pid, 0) < 0 && errno == ESRCH) {
		error->number = ESRCH;
		gcr_error_prefix(error, "process %d has ended", (int)pid);
	} else if (driver_result == CUDA_ERROR_NOT_INITIALIZED) {
		error->number = EOPNOTSUPP;
		gcr_error_prefix(error, "the driver knows no CUDA state of process %d", (int)pid);
	}
}

static CUresult call(const struct gcr_driver *driver, const struct verb *verb,
		     const struct gcr_control_request *asked, uint32_t *ret_state)
{
	return verb->run ? verb->run(driver, asked) : get_state(driver, asked, ret_state);
}

/*
 * If the main thread of the process has ended, the driver does not find the process by the main
 * thread's id, but finds it by the id of any other thread (measured): @asked has such a one then.
 */
static CUresult run(const struct gcr_driver *driver, const struct verb *verb,
		    struct gcr_control_request *asked, uint32_t *ret_state)
{
	CUresult result = call(driver, verb, asked, ret_state);
	pid_t tid;

	if (result != CUDA_ERROR_OPERATING_SYSTEM)
		return result;
	tid = gcr_proc_living_thread(asked->pid);
	if (!tid || tid == asked->pid)
		return result;
	asked->pid = tid;
	return call(driver, verb, asked, ret_state);
}

static void handle(struct gcr_message *request, struct gcr_answer *answer, void *data)
{
	struct gcr_result *result = &answer->result;
	const struct verb *verb = find_verb(request->header.type);
	const struct gcr_driver *driver = data;
	struct gcr_control_request asked;
	CUresult driver_result;
	struct gcr_error error;
	int64_t start_usec;
	pid_t pid;

	gcr_message_payload(request, &asked, sizeof(asked));
	if (check_request(driver, verb, &asked, &error) < 0) {
		gcr_serve_fail(result, CUDA_SUCCESS, &error);
		return;
	}

	start_usec = gcr_clock_usec();
	pid = asked.pid;
	driver_result = run(driver, verb, &asked, &result->state);
	result->duration_usec = (uint64_t)(gcr_clock_usec() - start_usec);
	if (gcr_driver_check(driver, driver_result, verb->call, &error) < 0) {
		explain(driver_result, pid, &error);
		gcr_serve_fail(result, driver_result, &error);
	}
	if (verb->run)
		get_state(driver, &asked, &result->state);
}

int main(void)
{
	struct gcr_driver driver = {0};
	struct gcr_error error = {0};

	if (gcr_confine(GCR_CONFINE_CONTROL, &error) < 0) {
		fprintf(stderr, "gpucr-control: %s\n", error.words);
		return 2;
	}
	gcr_serve_prepare();
	if (gcr_driver_open(&driver, &error) == 0)
		gcr_driver_check_checkpoint(&driver, &error);
	if (gcr_serve_hello(&driver, &error) < 0) {
		fprintf(stderr, "gpucr-control: only gpucrfs starts this program\n");
		return 2;
	}
	if (error.number)
		return 1;
	gcr_serve(&(struct gcr_service){.driver = &driver, .handle = handle, .data = &driver});
	return 0;
}

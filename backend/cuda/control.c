/* SPDX-License-Identifier: MIT */
/*
 * gpucr-control: calls cuCheckpointProcess* on the daemon's behalf. The helper initialises the
 * driver but never has a context, so it uses no VRAM and can stay ready while GPUs are full.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cuda/driver.h"
#include "backend/worker/serve.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/confine.h"
#include "lib/procfs.h"

/* Restoring onto other GPUs came with CUDA 13.0, driver 580. */
#define API_VERSION_GPU_PAIRS 13000

/* Maximum number of threads of a process that may end just before the driver looks for them. */
#define THREADS_MAX 16

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

/* Refuses requests that the driver would misunderstand or not check. -EOPNOTSUPP, -EINVAL. */
static int check_request(const struct gcr_driver *driver, const struct verb *verb,
			 const struct gcr_control_request *asked, int pidfd,
			 struct gcr_error *error)
{
	if (!verb)
		return gcr_error_set(error, EOPNOTSUPP, "gpucr-control does not know this request");
	if (asked->pid <= 0 || pidfd < 0)
		return gcr_error_set(error, EINVAL, "%s: no process id", verb->call);
	if (asked->pairs_count > GCR_GPUS_MAX)
		return gcr_error_set(error, EINVAL, "%s: too many GPUs", verb->call);
	/* In an older driver's struct the pairs are reserved zeros. */
	if (asked->pairs_count > 0 && driver->api_version < API_VERSION_GPU_PAIRS)
		return gcr_error_set(error, EOPNOTSUPP,
				     "moving to other GPUs needs driver 580 or newer");
	return 0;
}

/*
 * Adds a cause to @error if the driver's result may mean that it has not found the process: it then
 * returns 304 or 3 (measured).
 */
static void explain(CUresult driver_result, pid_t pid, int pidfd, bool is_found,
		    struct gcr_error *error)
{
	if (gcr_pidfd_has_ended(pidfd)) {
		error->number = ESRCH;
		gcr_error_prefix(error, "process %d has ended", (int)pid);
	} else if (driver_result == CUDA_ERROR_NOT_INITIALIZED) {
		error->number = EOPNOTSUPP;
		gcr_error_prefix(error, "the driver knows no CUDA state of process %d", (int)pid);
	} else if (!is_found) {
		/*
		 * The daemon asks for the state then: the call had no effect, or its full effect.
		 */
		error->number = EAGAIN;
		gcr_error_prefix(error, "the driver did not find process %d", (int)pid);
	}
}

static CUresult call(const struct gcr_driver *driver, const struct verb *verb,
		     const struct gcr_control_request *asked, uint32_t *ret_state)
{
	return verb->run ? verb->run(driver, asked) : get_state(driver, asked, ret_state);
}

/* Did the driver find a process by the id that the last call used? */
static bool is_found(const struct gcr_driver *driver, const struct verb *verb,
		     const struct gcr_control_request *asked)
{
	uint32_t state;

	/* A call that asked for the state itself already gave the answer: not found. */
	return verb->run && get_state(driver, asked, &state) != CUDA_ERROR_OPERATING_SYSTEM;
}

/* Is @id still the process's pid, or the id of one of its threads? */
static bool is_its_id(pid_t pid, int pidfd, pid_t id)
{
	return (id == pid || syscall(SYS_tgkill, pid, id, 0) == 0) && !gcr_pidfd_has_ended(pidfd);
}

/* Is the process locked, as another of its threads says than the one with an id that was used? */
static bool is_locked(const struct gcr_driver *driver, pid_t pid, int pidfd)
{
	struct gcr_control_request asked = {.pid = gcr_proc_living_thread(pid)};
	uint32_t state;

	return asked.pid && get_state(driver, &asked, &state) == CUDA_SUCCESS &&
	       state == GCR_CONTROL_LOCKED && is_its_id(pid, pidfd, asked.pid);
}

/*
 * Makes the call with an id of the process, and takes a lock back that is another process's: the
 * driver looks for the id in the call, and the process, or its thread, may end just before, so that
 * the id is given to another one. No other call has an effect on a process that has just got its
 * id: only a locked one is unlocked, and only a frozen one restored. *ret_is_found is false if the
 * id was not the process's: then there was no call, or a state or a lock of another one.
 */
static CUresult call_checked(const struct gcr_driver *driver, const struct verb *verb,
			     const struct gcr_control_request *asked, pid_t pid, int pidfd,
			     uint32_t *ret_state, bool *ret_is_found)
{
	CUresult result;

	*ret_is_found = false;
	if (!is_its_id(pid, pidfd, asked->pid))
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = call(driver, verb, asked, ret_state);
	*ret_is_found = result != CUDA_SUCCESS || is_its_id(pid, pidfd, asked->pid) ||
			(verb->run == lock ? is_locked(driver, pid, pidfd) : verb->run != NULL);
	if (*ret_is_found)
		return result;
	if (verb->run)
		unlock(driver, asked);
	else
		*ret_state = GCR_CONTROL_UNKNOWN;
	return CUDA_ERROR_OPERATING_SYSTEM;
}

/*
 * Runs @verb. If the main thread of the process has ended, the driver does not find the process by
 * the main thread's id, but finds it by the id of any other thread (measured). That thread may end
 * too before the driver looks; then the next one is tried. *ret_is_found: a result of 304 concerned
 * the process itself. The driver also returns 304 for a process whose restore failed before
 * (measured).
 */
static CUresult run(const struct gcr_driver *driver, const struct verb *verb,
		    const struct gcr_control_request *request, int pidfd, uint32_t *ret_state,
		    bool *ret_is_found)
{
	struct gcr_control_request asked = *request;

	for (int attempt = 0;; attempt++) {
		CUresult result = call_checked(driver, verb, &asked, request->pid, pidfd, ret_state,
					       ret_is_found);
		pid_t tid;

		if (*ret_is_found &&
		    (result != CUDA_ERROR_OPERATING_SYSTEM || is_found(driver, verb, &asked)))
			return result;
		tid = attempt < THREADS_MAX ? gcr_proc_living_thread(request->pid) : 0;
		if (!tid || tid == request->pid) {
			*ret_is_found = false;
			return result;
		}
		asked.pid = tid;
	}
}

static void handle(struct gcr_message *request, struct gcr_answer *answer, void *data)
{
	struct gcr_result *result = &answer->result;
	const struct verb *verb = find_verb(request->header.type);
	const struct gcr_driver *driver = data;
	struct gcr_control_request asked;
	int pidfd = request->fds_count == 1 ? request->fds[0] : -1;
	CUresult driver_result;
	struct gcr_error error;
	int64_t start_usec;
	bool was_found;

	gcr_message_payload(request, &asked, sizeof(asked));
	if (check_request(driver, verb, &asked, pidfd, &error) < 0) {
		gcr_serve_fail(result, CUDA_SUCCESS, &error);
		return;
	}

	start_usec = gcr_clock_usec();
	driver_result = run(driver, verb, &asked, pidfd, &result->state, &was_found);
	result->duration_usec = (uint64_t)(gcr_clock_usec() - start_usec);
	if (gcr_driver_check(driver, driver_result, verb->call, &error) < 0) {
		explain(driver_result, asked.pid, pidfd, was_found, &error);
		gcr_serve_fail(result, driver_result, &error);
	}
	if (verb->run)
		run(driver, find_verb(GCR_MESSAGE_STATE), &asked, pidfd, &result->state,
		    &was_found);
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

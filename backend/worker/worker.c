/* SPDX-License-Identifier: MIT */
/*
 * gpucr-worker UUID, and for HIP gpucr-worker-hip: the only helper with a context on that GPU, and
 * so with VRAM. The worker exits when the daemon closes its socket, which frees everything it
 * holds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/cuda/driver.h"
#include "backend/worker/copy.h"
#include "backend/worker/numa.h"
#include "backend/worker/serve.h"
#include "backend/worker/session.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/confine.h"

#ifdef GCR_HIP
#define PROGRAM "gpucr-worker-hip"
#else
#define PROGRAM "gpucr-worker"
#endif

#define SYSFS "/sys"

/* Interval at which the copied data is checked for a part to verify: some 250 MiB. */
#define ADVANCE_MSEC 5

struct worker {
	struct gcr_worker_gpu gpu;
	uint8_t uuid[GCR_UUID_BYTES];
	CUmemGenericAllocationHandle *reserved;
	size_t reserved_count;
	struct gcr_worker_session *session;
	pthread_t preparing; /* thread that makes copier and digester */
	bool has_preparing;
};

static int parse_uuid(const char *text, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	if (strspn(text, "0123456789abcdef") != 2 * GCR_UUID_BYTES || text[2 * GCR_UUID_BYTES])
		return -EINVAL;
	for (size_t i = 0; i < GCR_UUID_BYTES; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};

		ret_uuid[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return 0;
}

static int open_gpu(struct worker *worker, struct gcr_error *error)
{
	struct gcr_worker_gpu *gpu = &worker->gpu;
	const struct gcr_driver *driver = &gpu->driver;
	CUcontext context;
	int r;

	r = gcr_driver_open(&gpu->driver, error);
	if (r < 0)
		return r;
	r = gcr_driver_find(driver, worker->uuid, &gpu->device, error);
	if (r < 0)
		return r;
	r = gcr_driver_check(driver, driver->cuDevicePrimaryCtxRetain(&context, gpu->device),
			     "cuDevicePrimaryCtxRetain", error);
	if (r < 0)
		return r;
	gpu->context = context;
	r = gcr_driver_check(driver, driver->cuCtxSetCurrent(context), "cuCtxSetCurrent", error);
#ifdef GCR_HIP
	/*
	 * HIP allocates the VRAM that it needs when a queue is first used: use one now, so that the
	 * amount is known early.
	 */
	if (r == 0)
		r = gcr_driver_check(driver, driver->cuStreamSynchronize(NULL),
				     "cuStreamSynchronize", error);
#endif
	return r;
}

/*
 * Makes the ring and the threads of the copy path, on the GPU's node. They are not needed before
 * the first session, so a thread makes them in the background.
 */
static int create_copier(struct worker *worker, CUresult *ret_driver_result,
			 struct gcr_error *error)
{
	struct gcr_copier_config config;

	gcr_copier_config_default(&config);
	return gcr_copier_create(&worker->gpu.driver, worker->gpu.context, &config,
				 &worker->gpu.copier, ret_driver_result, error);
}

static int create_digester(struct worker *worker, CUresult *ret_driver_result,
			   struct gcr_error *error)
{
	struct gcr_digester_config config;

	gcr_digester_config_default(&worker->gpu.driver, worker->gpu.device, &config);
	return gcr_digester_create(&worker->gpu.driver, worker->gpu.context, &config,
				   &worker->gpu.digester, ret_driver_result, error);
}

/*
 * Thread: makes the digester beside the copier, since the driver takes longer to compile the kernel
 * than the copier takes to make its ring.
 */
static void *prepare_digester(void *data)
{
	struct worker *worker = data;
	CUresult ignored;

	worker->gpu.driver.cuCtxSetCurrent(worker->gpu.context);
	create_digester(worker, &ignored, NULL);
	return NULL;
}

static void *prepare(void *data)
{
	struct worker *worker = data;
	const struct gcr_driver *driver = &worker->gpu.driver;
	CUresult ignored;
	pthread_t thread;
	bool has_thread;
	char bus_id[32];
	int node = -ENOENT;

	driver->cuCtxSetCurrent(worker->gpu.context);
	if (driver->cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), worker->gpu.device) == CUDA_SUCCESS)
		node = gcr_numa_node(SYSFS, bus_id);
	/* Farther from the GPU copying is slower, but works. */
	if (node >= 0)
		gcr_numa_bind(SYSFS, node);
	has_thread = pthread_create(&thread, NULL, prepare_digester, worker) == 0;
	/* A session that needs one of them and finds none tries again, and reports the error. */
	create_copier(worker, &ignored, NULL);
	if (has_thread)
		pthread_join(thread, NULL);
	return NULL;
}

static void wait_prepared(struct worker *worker)
{
	if (worker->has_preparing)
		pthread_join(worker->preparing, NULL);
	worker->has_preparing = false;
}

static CUresult release(struct worker *worker)
{
	CUresult first = CUDA_SUCCESS;

	while (worker->reserved_count > 0) {
		CUresult result =
			worker->gpu.driver.cuMemRelease(worker->reserved[--worker->reserved_count]);

		if (first == CUDA_SUCCESS)
			first = result;
	}
	return first;
}

/* Allocates physical memory without an address: a reservation (RESERVE) needs no more. */
static CUresult create(const struct worker *worker, uint64_t bytes,
		       CUmemGenericAllocationHandle *ret_handle)
{
	const struct gcr_driver *driver = &worker->gpu.driver;
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = worker->gpu.device},
	};
	size_t granularity, rounded;
	CUresult result;

	result = driver->cuMemGetAllocationGranularity(&granularity, &properties,
						       CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != CUDA_SUCCESS)
		return result;
	if (__builtin_add_overflow(bytes, granularity - 1, &rounded))
		return CUDA_ERROR_OUT_OF_MEMORY;
	rounded -= rounded % granularity;
	return driver->cuMemCreate(ret_handle, rounded, &properties, 0);
}

static CUresult reserve(struct worker *worker, uint64_t bytes)
{
	CUmemGenericAllocationHandle *longer;
	CUresult result;

	if (bytes == 0)
		return CUDA_SUCCESS;
	longer = reallocarray(worker->reserved, worker->reserved_count + 1, sizeof(*longer));
	if (!longer)
		return CUDA_ERROR_OUT_OF_MEMORY;
	worker->reserved = longer;
	result = create(worker, bytes, &longer[worker->reserved_count]);
	if (result == CUDA_SUCCESS)
		worker->reserved_count++;
	return result;
}

/* ---- requests: return 0 or -errno with a message; *ret_driver_result if the driver failed ---- */

static int on_reserve(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		      CUresult *ret_driver_result, struct gcr_error *error)
{
	struct gcr_reserve_request asked;

	gcr_message_payload(request, &asked, sizeof(asked));
	*ret_driver_result = reserve(worker, asked.bytes);
	return gcr_driver_check(&worker->gpu.driver, *ret_driver_result, "cuMemCreate", error);
}

static int on_release(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		      CUresult *ret_driver_result, struct gcr_error *error)
{
	*ret_driver_result = release(worker);
	return gcr_driver_check(&worker->gpu.driver, *ret_driver_result, "cuMemRelease", error);
}

static int on_begin(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		    CUresult *ret_driver_result, struct gcr_error *error)
{
	enum gcr_copy_direction direction =
		request->header.type == GCR_MESSAGE_SESSION_OUT ? GCR_COPY_OUT : GCR_COPY_IN;
	struct gcr_session_files files = {.tables = -1, .segments = -1};
	struct gcr_session asked;
	bool is_packed;
	int r;

	gcr_message_payload(request, &asked, sizeof(asked));
	is_packed = asked.flags & GCR_SESSION_PACKED;
	if (worker->session)
		return gcr_error_set(error, EBUSY, "the worker has not ended its last session");
	if (is_packed && direction == GCR_COPY_OUT)
		return gcr_error_set(error, EINVAL, "nothing is copied to files that are packed");
	if (request->fds_count != (is_packed ? 5 : 3))
		return gcr_error_set(error, EPROTO, "a session begins with %s descriptors",
				     is_packed ? "five" : "three");
	memcpy(&files, request->fds, request->fds_count * sizeof(int));
	wait_prepared(worker);
	if (!worker->gpu.copier) {
		r = create_copier(worker, ret_driver_result, error);
		if (r < 0)
			return r;
	}
	if (!worker->gpu.digester) {
		r = create_digester(worker, ret_driver_result, error);
		if (r < 0)
			return r;
	}
	r = gcr_worker_session_begin(&worker->gpu, direction, &asked, &files, &worker->session,
				     ret_driver_result, error);
	for (size_t i = 1; r == 0 && i < request->fds_count; i++)
		request->fds[i] = -1;
	return r;
}

static int on_import(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		     CUresult *ret_driver_result, struct gcr_error *error)
{
	struct gcr_range range;

	gcr_message_payload(request, &range, sizeof(range));
	return gcr_worker_session_import(worker->session, &range, request->fds, request->fds_count,
					 ret_driver_result, error);
}

static int on_create(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		     CUresult *ret_driver_result, struct gcr_error *error)
{
	return gcr_worker_session_create(worker->session, ret_driver_result, error);
}

static int on_copy(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		   CUresult *ret_driver_result, struct gcr_error *error)
{
	int r;

	r = gcr_worker_session_copy(worker->session, ret_driver_result, error);
	if (r < 0)
		return r;
	do {
		gcr_worker_session_advance(worker->session);
		r = gcr_serve_wait(gcr_copier_event(worker->gpu.copier), ADVANCE_MSEC);
	} while (r == -ETIMEDOUT);
	/* Without the daemon the files are of no use: do not finish them. */
	if (r < 0)
		_exit(1);
	r = gcr_worker_session_copied(worker->session, ret_driver_result, error);
	/* Copying may have begun long before, with the first memory that was allocated. */
	answer->result.duration_usec = (uint64_t)gcr_copier_usec(worker->gpu.copier);
	answer->result.copied_bytes = gcr_copier_bytes(worker->gpu.copier);
	if (!gcr_digester_is_on_gpu(worker->gpu.digester))
		answer->result.flags |= GCR_RESULT_HOST_DIGESTS;
	return r;
}

static int on_export(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		     CUresult *ret_driver_result, struct gcr_error *error)
{
	struct gcr_range range;
	int r;

	gcr_message_payload(request, &range, sizeof(range));
	r = gcr_worker_session_export(worker->session, &range, answer->fds, ret_driver_result,
				      error);
	if (r == 0)
		answer->fds_count = range.count;
	return r;
}

static int on_end(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		  CUresult *ret_driver_result, struct gcr_error *error)
{
	int r = gcr_worker_session_end(TAKE_PTR(worker->session), ret_driver_result, error);

	answer->last = r < 0;
	return r;
}

static int on_pin(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		  CUresult *ret_driver_result, struct gcr_error *error)
{
	if (!worker->gpu.pins &&
	    gcr_pins_create(&worker->gpu.driver, worker->gpu.context, &worker->gpu.pins) < 0)
		return gcr_error_set(error, ENOMEM, "no thread");
	for (size_t i = 0; i < request->fds_count; i++)
		gcr_pins_add(worker->gpu.pins, TAKE_FD(request->fds[i]));
	if (!gcr_pins_are_done(worker->gpu.pins))
		return gcr_error_set(error, EAGAIN, "files are still being registered");
	return 0;
}

static int on_unpin(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		    CUresult *ret_driver_result, struct gcr_error *error)
{
	bool are_gone = true;

	for (size_t i = 0; i < request->fds_count && worker->gpu.pins; i++)
		are_gone = gcr_pins_remove(worker->gpu.pins, request->fds[i]) && are_gone;
	return are_gone ? 0 : gcr_error_set(error, EAGAIN, "files are still being given up");
}

static const struct verb {
	uint16_t type;
	bool needs_session;
	int (*run)(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
		   CUresult *ret_driver_result, struct gcr_error *error);
} verbs[] = {
	{GCR_MESSAGE_RESERVE, false, on_reserve},
	{GCR_MESSAGE_RELEASE, false, on_release},
	{GCR_MESSAGE_SESSION_OUT, false, on_begin},
	{GCR_MESSAGE_SESSION_IN, false, on_begin},
	{GCR_MESSAGE_IMPORT, true, on_import},
	{GCR_MESSAGE_CREATE, true, on_create},
	{GCR_MESSAGE_COPY, true, on_copy},
	{GCR_MESSAGE_EXPORT, true, on_export},
	{GCR_MESSAGE_END, true, on_end},
	{GCR_MESSAGE_PIN, false, on_pin},
	{GCR_MESSAGE_UNPIN, false, on_unpin},
};

static int run(struct worker *worker, struct gcr_message *request, struct gcr_answer *answer,
	       CUresult *ret_driver_result, struct gcr_error *error)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(verbs); i++) {
		if (verbs[i].type != request->header.type)
			continue;
		if (verbs[i].needs_session && !worker->session)
			return gcr_error_set(error, EINVAL, "the worker has no session");
		return verbs[i].run(worker, request, answer, ret_driver_result, error);
	}
	return gcr_error_set(error, EOPNOTSUPP, PROGRAM " does not know this request");
}

static void handle(struct gcr_message *request, struct gcr_answer *answer, void *data)
{
	CUresult driver_result = CUDA_SUCCESS;
	int64_t start_usec = gcr_clock_usec();
	struct worker *worker = data;
	struct gcr_error error;
	int r;

	r = run(worker, request, answer, &driver_result, &error);
	if (request->header.type != GCR_MESSAGE_COPY)
		answer->result.duration_usec = (uint64_t)(gcr_clock_usec() - start_usec);
	if (r < 0)
		gcr_serve_fail(&answer->result, driver_result, &error);
}

/*
 * Between two requests: releases memory that is no longer needed. The daemon waits for the control
 * state now, and will want the end of the session quickly.
 */
static void between(void *data)
{
	struct worker *worker = data;

	if (worker->session)
		gcr_worker_session_tidy(worker->session);
}

#ifndef GCR_HIP
/* Adds the free memory of this worker's GPU, which without NVML only a context can report. */
static void complete(struct gcr_gpus_reply *reply, void *data)
{
	const struct worker *worker = data;
	size_t free_bytes, total_bytes;

	if (worker->gpu.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
		return;
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		struct gcr_gpu_info *gpu = &reply->gpus[i];

		if (memcmp(gpu->uuid, worker->uuid, sizeof(gpu->uuid)) != 0)
			continue;
		gpu->total_bytes = total_bytes;
		gpu->free_bytes = free_bytes;
		gpu->used_bytes = total_bytes - free_bytes;
		gpu->flags |= GCR_GPU_MEMORY;
	}
}
#endif

/*
 * Raises the limit of descriptors: every allocation in a session has one here, and this program
 * never uses select(2).
 */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static void close_gpu(struct worker *worker)
{
	wait_prepared(worker);
	gcr_pins_destroy(worker->gpu.pins);
	gcr_copier_destroy(worker->gpu.copier);
	gcr_digester_destroy(worker->gpu.digester);
	release(worker);
	free(worker->reserved);
	if (worker->gpu.context)
		worker->gpu.driver.cuDevicePrimaryCtxRelease_v2(worker->gpu.device);
}

int main(int argc, char **argv)
{
	struct gcr_error error = {0};
	struct worker worker = {0};

	if (argc != 2 || parse_uuid(argv[1], worker.uuid) < 0) {
		fprintf(stderr, "usage: " PROGRAM " UUID (32 hexadecimal digits)\n");
		return 2;
	}
	if (gcr_confine(GCR_CONFINE_WORKER, &error) < 0) {
		fprintf(stderr, PROGRAM ": %s\n", error.words);
		return 2;
	}
	gcr_serve_prepare();
	raise_descriptor_limit();
	gcr_space_catch_bus_errors();
	open_gpu(&worker, &error);
	if (gcr_serve_hello(&worker.gpu.driver, &error) < 0) {
		fprintf(stderr, PROGRAM ": only gpucrfs starts this program\n");
	} else if (!error.number) {
		worker.has_preparing = pthread_create(&worker.preparing, NULL, prepare, &worker) ==
				       0;
		gcr_serve(&(struct gcr_service){.driver = &worker.gpu.driver,
						.handle = handle,
#ifndef GCR_HIP
						.complete = complete,
#endif
						.between = between,
						.data = &worker});
		/*
		 * The driver may be busy or stuck in the middle of a session: exit without waiting
		 * for it.
		 */
		if (worker.session)
			_exit(0);
	}
	close_gpu(&worker);
	return error.number ? 1 : 0;
}

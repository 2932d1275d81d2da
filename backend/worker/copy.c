/* SPDX-License-Identifier: MIT */
/*
 * The copy path. The device thread talks to the GPU: it queues copies between VRAM and slots of the
 * ring, and sees which have completed. Several host threads copy the contents of slots to files, or
 * from files, one slot at a time. One lock guards the job; no thread holds it across a call of the
 * driver or an access to a file.
 */
#include "backend/worker/copy.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/worker/cut.h"
#include "backend/worker/numa.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define PIECE		GCR_SPACE_PIECE_BYTES
#define SLOT_PIECES_MAX 64 /* bits of slot.holes */

#define DEFAULT_THREADS_MAX 12
#define DEFAULT_SLOTS_MIN   4
#define DEFAULT_SLOT_BYTES  (8ull << 20)
#define DEFAULT_LANES	    16

/*
 * Size of one GPU copy from or to a registered file: the GPU takes 6 to 12 us from one copy to the
 * next (H100). Smaller while the driver restores, which a long queue delays.
 */
#define DIRECT_BYTES	 (64ull << 20)
#define DIRECT_FEW_BYTES (16ull << 20)
/* This many queued copies are enough; mapping memory waits for all that are queued. */
#define DIRECT_IN_FLIGHT 4

struct slot {
	struct slot *next; /* in its queue */
	char *memory;
	CUevent event;
	struct gcr_transfer transfer;
	uint64_t holes; /* IN: pieces of the slot that are zeros and were not read */
};

struct queue {
	struct slot *first;
	struct slot **end;
	unsigned int count;
};

struct gcr_copier {
	/* fixed */
	const struct gcr_driver *driver;
	CUcontext context;
	struct gcr_copier_config config;
	size_t ring_bytes;
	char *ring;
	bool registered;
	CUstream stream;
	struct slot *slots;
	pthread_t device_thread;
	bool has_device_thread;
	pthread_t *threads;
	unsigned int threads_count;
	int event_fd;

	pthread_mutex_t lock;
	pthread_cond_t device_wake;
	pthread_cond_t host_wake;
	pthread_cond_t ended_wake;
	bool leaving;

	/* the job */
	bool has_job;
	bool going; /* false once the job has ended; threads may still be busy with it */
	bool ended;
	struct gcr_copy_job job;
	struct gcr_cutter cutter;
	bool all_added;	       /* nothing more will be added */
	uint64_t copied_bytes; /* added as bytes to copy */
	uint64_t landed_bytes; /* bytes of transfers that ended with the GPU's copy */
	uint64_t bytes_left;   /* of the space, not yet processed */
	struct slot *free;     /* a stack: the slot used last may still be in a cache */
	struct queue flying;   /* being copied between slot and VRAM */
	struct queue ready;    /* OUT: for host threads to empty; IN: full, for the GPU */
	unsigned int holders;  /* threads that have a file open */
	bool device_busy;
	int64_t started_usec;
	int64_t ended_usec;
	CUresult driver_result;
	struct gcr_error error;
};

static void queue_init(struct queue *queue)
{
	*queue = (struct queue){.end = &queue->first};
}

static void queue_add(struct queue *queue, struct slot *slot)
{
	slot->next = NULL;
	*queue->end = slot;
	queue->end = &slot->next;
	queue->count++;
}

static struct slot *queue_take(struct queue *queue)
{
	struct slot *slot = queue->first;

	if (!slot)
		return NULL;
	queue->first = slot->next;
	if (!queue->first)
		queue->end = &queue->first;
	queue->count--;
	return slot;
}

/* ---- under the lock ---- */

/* Wakes the waiters if the job has ended and no thread is busy with it any more. */
static void check_ended(struct gcr_copier *copier)
{
	if (!copier->has_job || copier->going || copier->ended || copier->holders ||
	    copier->device_busy || copier->flying.count)
		return;
	copier->ended = true;
	copier->ended_usec = gcr_clock_usec();
	pthread_cond_broadcast(&copier->ended_wake);
	eventfd_write(copier->event_fd, 1);
}

static void end(struct gcr_copier *copier)
{
	copier->going = false;
	pthread_cond_broadcast(&copier->device_wake);
	pthread_cond_broadcast(&copier->host_wake);
	check_ended(copier);
}

static void fail(struct gcr_copier *copier, CUresult driver_result, const struct gcr_error *error)
{
	if (!copier->going)
		return;
	copier->driver_result = driver_result;
	copier->error = *error;
	end(copier);
}

static void bytes_done(struct gcr_copier *copier, size_t bytes)
{
	copier->bytes_left -= bytes;
	if (copier->going && !copier->bytes_left)
		end(copier);
}

static struct slot *take_free(struct gcr_copier *copier)
{
	struct slot *slot = copier->free;

	if (!slot || !gcr_cutter_has(&copier->cutter))
		return NULL;
	copier->free = slot->next;
	gcr_cutter_next(&copier->cutter, &slot->transfer);
	slot->holes = 0;
	return slot;
}

static void give_free(struct gcr_copier *copier, struct slot *slot)
{
	slot->next = copier->free;
	copier->free = slot;
}

static bool may_fly(const struct gcr_copier *copier)
{
	bool all_direct = copier->cutter.config.all_direct;
	unsigned int most = copier->job.in_flight;

	/* The threads that empty slots are slower than the GPU, so the queue is never long. */
	if (copier->job.direction == GCR_COPY_OUT && !all_direct)
		most = 0;
	if (!most && all_direct)
		most = DIRECT_IN_FLIGHT;
	return !most || copier->flying.count < most;
}

/* Takes the next transfer for the GPU; NULL: there is none now. */
static struct slot *next_for_device(struct gcr_copier *copier)
{
	if (!copier->going || !may_fly(copier))
		return NULL;
	return copier->job.direction == GCR_COPY_OUT ? take_free(copier)
						     : queue_take(&copier->ready);
}

static struct slot *next_for_host(struct gcr_copier *copier)
{
	if (!copier->going)
		return NULL;
	return copier->job.direction == GCR_COPY_OUT ? queue_take(&copier->ready)
						     : take_free(copier);
}

/*
 * May the device thread wait for the oldest transfer? True if no further transfer could be queued
 * before that one completes.
 */
static bool device_can_wait(const struct gcr_copier *copier)
{
	if (!copier->going || !may_fly(copier))
		return true;
	return copier->job.direction == GCR_COPY_OUT &&
	       (!copier->free || (copier->all_added && !gcr_cutter_has(&copier->cutter)));
}

/* ---- the thread that talks to the GPU ---- */

/*
 * The number of @bytes of VRAM from @offset on that one call may copy: in HIP a copy must stay
 * within one mapping.
 */
static size_t of_one_call(const struct gcr_copier *copier, uint64_t offset, size_t bytes)
{
#ifdef GCR_HIP
	return gcr_space_within(copier->job.space, offset, bytes);
#else
	return bytes;
#endif
}

static CUresult submit_out(const struct gcr_copier *copier, uint64_t offset, char *memory,
			   size_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t done = 0, part; done < bytes && result == CUDA_SUCCESS; done += part) {
		part = of_one_call(copier, offset + done, bytes - done);
		result = copier->driver->cuMemcpyDtoHAsync_v2(
			memory + done, copier->job.base + offset + done, part, copier->stream);
	}
	return result;
}

/*
 * Queues the copy of a part to VRAM, as runs of data and runs of zeros. Bit N of @holes: the part's
 * Nth piece is a hole. *ret_call names a call that failed.
 */
static CUresult submit_part_in(const struct gcr_copier *copier,
			       const struct gcr_transfer_part *part, const char *memory,
			       uint64_t holes, const char **ret_call)
{
	const struct gcr_driver *driver = copier->driver;
	CUdeviceptr to = copier->job.base + part->offset;
	unsigned int pieces = (unsigned int)(part->bytes / PIECE);
	CUresult result = CUDA_SUCCESS;

	for (unsigned int first = 0, next; first < pieces && result == CUDA_SUCCESS; first = next) {
		uint64_t offset = part->offset + first * PIECE;
		unsigned int end = first + (unsigned int)(of_one_call(copier, offset,
								      (pieces - first) * PIECE) /
							  PIECE);
		bool hole = holes >> first & 1;

		for (next = first + 1; next < end; next++)
			if ((holes >> next & 1) != hole)
				break;
		*ret_call = hole ? "cuMemsetD8Async" : "cuMemcpyHtoDAsync";
		if (hole)
			result = driver->cuMemsetD8Async(to + first * PIECE, 0,
							 (next - first) * PIECE, copier->stream);
		else
			result = driver->cuMemcpyHtoDAsync_v2(
				to + first * PIECE, memory + first * PIECE, (next - first) * PIECE,
				copier->stream);
	}
	return result;
}

static CUresult submit(struct gcr_copier *copier, struct slot *slot, const char **ret_call)
{
	const struct gcr_driver *driver = copier->driver;
	const struct gcr_transfer *transfer = &slot->transfer;
	CUresult result = CUDA_SUCCESS;
	size_t done = 0;

	for (unsigned int i = 0; i < transfer->parts_count && result == CUDA_SUCCESS; i++) {
		const struct gcr_transfer_part *part = &transfer->parts[i];
		char *memory = transfer->is_direct ? part->direct : slot->memory + done;

		*ret_call = "cuMemcpyDtoHAsync";
		if (copier->job.direction == GCR_COPY_IN)
			result = submit_part_in(
				copier, part, memory,
				done / PIECE < SLOT_PIECES_MAX ? slot->holes >> done / PIECE : 0,
				ret_call);
		else
			result = submit_out(copier, part->offset, memory, part->bytes);
		done += part->bytes;
	}
	if (result != CUDA_SUCCESS)
		return result;
	*ret_call = "cuEventRecord";
	return driver->cuEventRecord(slot->event, copier->stream);
}

/*
 * Checks the oldest transfer. Waits for it if @can_wait; else returns NOT_READY while it is under
 * way.
 */
static CUresult look_for_landing(const struct gcr_copier *copier, const struct slot *oldest,
				 bool can_wait)
{
	CUresult result;

	if (can_wait)
		return copier->driver->cuEventSynchronize(oldest->event);
	result = copier->driver->cuEventQuery(oldest->event);
	if (result == CUDA_ERROR_NOT_READY)
		sched_yield();
	return result;
}

static void landed(struct gcr_copier *copier)
{
	struct slot *slot = queue_take(&copier->flying);

	if (copier->job.direction == GCR_COPY_OUT && !slot->transfer.is_direct) {
		queue_add(&copier->ready, slot);
	} else {
		give_free(copier, slot);
		copier->landed_bytes += slot->transfer.bytes;
		bytes_done(copier, slot->transfer.bytes);
	}
	pthread_cond_signal(&copier->host_wake);
}

static void device_failed(struct gcr_copier *copier, CUresult result, const char *call)
{
	struct gcr_error error;

	gcr_driver_check(copier->driver, result, call, &error);
	queue_init(&copier->flying);
	fail(copier, result, &error);
}

/*
 * Does one step of the device thread; false if there is nothing to do. Lock: copier, which is
 * dropped during the step.
 */
static bool device_step(struct gcr_copier *copier)
{
	struct slot *slot = next_for_device(copier);
	struct slot *oldest = copier->flying.first;
	bool can_wait = device_can_wait(copier), failed;
	const char *call = "cuEventSynchronize";
	CUresult result;

	if (!slot && !oldest)
		return false;
	if (slot && slot->transfer.is_zeros) {
		/* Nothing for the GPU. */
		queue_add(&copier->ready, slot);
		pthread_cond_signal(&copier->host_wake);
		return true;
	}
	copier->device_busy = true;
	pthread_mutex_unlock(&copier->lock);
	result = slot ? submit(copier, slot, &call) : look_for_landing(copier, oldest, can_wait);
	failed = result != CUDA_SUCCESS && (slot || result != CUDA_ERROR_NOT_READY);
	if (failed)
		/* Copies queued before may still be under way. */
		copier->driver->cuStreamSynchronize(copier->stream);
	pthread_mutex_lock(&copier->lock);
	copier->device_busy = false;

	if (failed)
		device_failed(copier, result, call);
	else if (slot)
		queue_add(&copier->flying, slot);
	else if (result == CUDA_SUCCESS)
		landed(copier);
	check_ended(copier);
	return true;
}

static void *run_device(void *data)
{
	struct gcr_copier *copier = data;

	copier->driver->cuCtxSetCurrent(copier->context);
	pthread_mutex_lock(&copier->lock);
	for (;;) {
		if (device_step(copier))
			continue;
		if (copier->leaving)
			break;
		pthread_cond_wait(&copier->device_wake, &copier->lock);
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

/* ---- the threads that copy between ring and files ---- */

/* Called when a host thread has finished its transfer. Lock: copier. */
static void host_done(struct gcr_copier *copier, struct slot *slot)
{
	if (copier->job.direction == GCR_COPY_OUT) {
		give_free(copier, slot);
		bytes_done(copier, slot->transfer.bytes);
	} else {
		queue_add(&copier->ready, slot);
	}
	pthread_cond_signal(&copier->device_wake);
}

/* Copies between a slot and the files. Called without the lock. */
static int move(const struct gcr_copier *copier, struct gcr_space_cursor *cursor, struct slot *slot,
		struct gcr_error *error)
{
	const struct gcr_transfer *transfer = &slot->transfer;
	size_t done = 0;
	int r = 0;

	for (unsigned int i = 0; i < transfer->parts_count && r == 0; i++) {
		const struct gcr_transfer_part *part = &transfer->parts[i];
		uint64_t holes = 0;

		if (transfer->is_zeros)
			r = gcr_space_punch(cursor, part->offset, part->bytes, error);
		else if (copier->job.direction == GCR_COPY_OUT)
			r = gcr_space_write(cursor, part->offset, slot->memory + done, part->bytes,
					    error);
		else
			r = gcr_space_read(cursor, part->offset, slot->memory + done, part->bytes,
					   &holes, error);
		slot->holes |= holes << done / PIECE % SLOT_PIECES_MAX;
		done += part->bytes;
	}
	return r;
}

static void *run_host(void *data)
{
	struct gcr_copier *copier = data;
	struct gcr_space_cursor cursor;
	bool holding = false;

	pthread_mutex_lock(&copier->lock);
	for (;;) {
		struct slot *slot = next_for_host(copier);
		struct gcr_error error;
		int r;

		if (slot && slot->transfer.is_direct) {
			queue_add(&copier->ready, slot); /* always IN */
			pthread_cond_signal(&copier->device_wake);
		} else if (slot) {
			if (!holding) {
				gcr_space_cursor_init(&cursor, copier->job.space);
				copier->holders++;
				holding = true;
			}
			pthread_mutex_unlock(&copier->lock);
			r = move(copier, &cursor, slot, &error);
			pthread_mutex_lock(&copier->lock);
			if (r < 0)
				fail(copier, CUDA_SUCCESS, &error);
			else
				host_done(copier, slot);
		} else if (holding && !copier->going) {
			pthread_mutex_unlock(&copier->lock);
			gcr_space_cursor_finish(&cursor);
			pthread_mutex_lock(&copier->lock);
			copier->holders--;
			holding = false;
			check_ended(copier);
		} else if (copier->leaving) {
			break;
		} else {
			pthread_cond_wait(&copier->host_wake, &copier->lock);
		}
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

/* ---- creation and destruction ---- */

void gcr_copier_config_default(struct gcr_copier_config *ret_config)
{
	unsigned int cpus = gcr_numa_cpus();
	/* Leave some CPUs to the driver, which moves its control state at the same time. */
	unsigned int threads = cpus > 4 ? cpus * 3 / 4 : cpus;

	if (threads > DEFAULT_THREADS_MAX)
		threads = DEFAULT_THREADS_MAX;
	*ret_config = (struct gcr_copier_config){
		.threads = threads,
		.slots = 2 * threads > DEFAULT_SLOTS_MIN ? 2 * threads : DEFAULT_SLOTS_MIN,
		.slot_bytes = DEFAULT_SLOT_BYTES,
		.lanes = DEFAULT_LANES,
	};
}

GCR_DEFINE_CLEANUP(struct gcr_copier *, gcr_copier_destroy);

static int create_ring(struct gcr_copier *copier, CUresult *ret_driver_result,
		       struct gcr_error *error)
{
	const struct gcr_driver *driver = copier->driver;
	CUresult result;

	copier->ring_bytes = copier->config.slots * copier->config.slot_bytes;
	copier->ring = aligned_alloc(PIECE, copier->ring_bytes);
	copier->slots = calloc(copier->config.slots, sizeof(*copier->slots));
	if (!copier->ring || !copier->slots)
		return gcr_error_set(error, ENOMEM, "out of memory for %zu MiB to copy through",
				     copier->ring_bytes >> 20);
	madvise(copier->ring, copier->ring_bytes, MADV_HUGEPAGE);
	*ret_driver_result = result = driver->cuMemHostRegister_v2(copier->ring, copier->ring_bytes,
								   CU_MEMHOSTREGISTER_PORTABLE);
	if (result != CUDA_SUCCESS)
		return gcr_driver_check(driver, result, "cuMemHostRegister", error);
	copier->registered = true;
	*ret_driver_result = result =
		driver->cuStreamCreate(&copier->stream, CU_STREAM_NON_BLOCKING);
	if (result != CUDA_SUCCESS)
		return gcr_driver_check(driver, result, "cuStreamCreate", error);
	for (unsigned int i = 0; i < copier->config.slots; i++) {
		struct slot *slot = &copier->slots[i];

		slot->memory = copier->ring + i * copier->config.slot_bytes;
		*ret_driver_result = result =
			driver->cuEventCreate(&slot->event, CU_EVENT_DISABLE_TIMING);
		if (result != CUDA_SUCCESS)
			return gcr_driver_check(driver, result, "cuEventCreate", error);
	}
	return 0;
}

static int start_threads(struct gcr_copier *copier, struct gcr_error *error)
{
	int r;

	copier->threads = calloc(copier->config.threads, sizeof(*copier->threads));
	if (!copier->threads)
		return gcr_error_set(error, ENOMEM, "out of memory");
	r = pthread_create(&copier->device_thread, NULL, run_device, copier);
	copier->has_device_thread = r == 0;
	while (r == 0 && copier->threads_count < copier->config.threads) {
		r = pthread_create(&copier->threads[copier->threads_count], NULL, run_host, copier);
		if (r == 0)
			copier->threads_count++;
	}
	/* With fewer threads the copier is slower, but works. */
	if (copier->has_device_thread && copier->threads_count > 0)
		return 0;
	return gcr_error_set(error, ENOMEM, "no thread: %s", strerror(r));
}

int gcr_copier_create(const struct gcr_driver *driver, CUcontext context,
		      const struct gcr_copier_config *config, struct gcr_copier **ret_copier,
		      CUresult *ret_driver_result, struct gcr_error *error)
{
	_cleanup_(gcr_copier_destroy_cleanup) struct gcr_copier *copier = NULL;
	int r;

	if (config->slot_bytes == 0 || config->slot_bytes % PIECE ||
	    config->slot_bytes / PIECE > SLOT_PIECES_MAX || !config->slots || !config->threads ||
	    !config->lanes)
		return gcr_error_set(error, EINVAL, "no such ring to copy through");
	copier = calloc(1, sizeof(*copier));
	if (!copier)
		return gcr_error_set(error, ENOMEM, "out of memory");
	copier->driver = driver;
	copier->context = context;
	copier->config = *config;
	queue_init(&copier->flying);
	queue_init(&copier->ready);
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->device_wake, NULL);
	pthread_cond_init(&copier->host_wake, NULL);
	pthread_cond_init(&copier->ended_wake, NULL);
	copier->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (copier->event_fd < 0)
		return gcr_error_set(error, ENOMEM, "no eventfd: %s", strerror(errno));
	r = create_ring(copier, ret_driver_result, error);
	if (r < 0)
		return r;
	r = start_threads(copier, error);
	if (r < 0)
		return r;
	*ret_copier = TAKE_PTR(copier);
	return 0;
}

void gcr_copier_destroy(struct gcr_copier *copier)
{
	if (!copier)
		return;
	gcr_copier_stop(copier);
	pthread_mutex_lock(&copier->lock);
	copier->leaving = true;
	pthread_cond_broadcast(&copier->device_wake);
	pthread_cond_broadcast(&copier->host_wake);
	pthread_mutex_unlock(&copier->lock);
	if (copier->has_device_thread)
		pthread_join(copier->device_thread, NULL);
	for (unsigned int i = 0; i < copier->threads_count; i++)
		pthread_join(copier->threads[i], NULL);
	free(copier->threads);
	gcr_cutter_finish(&copier->cutter);

	for (unsigned int i = 0; copier->slots && i < copier->config.slots; i++)
		if (copier->slots[i].event)
			copier->driver->cuEventDestroy_v2(copier->slots[i].event);
	free(copier->slots);
	if (copier->stream)
		copier->driver->cuStreamDestroy_v2(copier->stream);
	if (copier->registered)
		copier->driver->cuMemHostUnregister(copier->ring);
	free(copier->ring);
	if (copier->event_fd >= 0)
		close(copier->event_fd);
	pthread_cond_destroy(&copier->ended_wake);
	pthread_cond_destroy(&copier->host_wake);
	pthread_cond_destroy(&copier->device_wake);
	pthread_mutex_destroy(&copier->lock);
	free(copier);
}

/* ---- jobs ---- */

void gcr_copier_start(struct gcr_copier *copier, const struct gcr_copy_job *job)
{
	struct gcr_cutter_config cut = {
		.bytes = copier->config.slot_bytes,
		.direct_bytes = job->in_flight ? DIRECT_FEW_BYTES : DIRECT_BYTES,
		.lanes = copier->config.lanes,
	};
	GCR_LOCK_SCOPE(&copier->lock);

	copier->job = *job;
	copier->started_usec = gcr_clock_usec();
	cut.all_direct = gcr_space_all_pinned(job->space);
	gcr_cutter_start(&copier->cutter, job->space, &cut);
	copier->bytes_left = gcr_space_bytes(job->space);
	copier->all_added = false;
	copier->copied_bytes = 0;
	copier->landed_bytes = 0;
	copier->free = NULL;
	for (unsigned int i = 0; i < copier->config.slots; i++)
		give_free(copier, &copier->slots[i]);
	queue_init(&copier->flying);
	queue_init(&copier->ready);
	copier->driver_result = CUDA_SUCCESS;
	copier->error.number = 0;
	copier->has_job = true;
	copier->going = true;
	copier->ended = false;
	if (!copier->bytes_left)
		end(copier);
}

int gcr_copier_add(struct gcr_copier *copier, enum gcr_copy_what what, uint64_t offset,
		   uint64_t bytes, struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&copier->lock);

	if (!bytes)
		return 0;
	if (what == GCR_COPY_NOTHING) {
		bytes_done(copier, bytes);
		return 0;
	}
	if (what == GCR_COPY_BYTES)
		copier->copied_bytes += bytes;
	if (gcr_cutter_add(&copier->cutter, what == GCR_COPY_ZEROS, offset, bytes) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pthread_cond_signal(&copier->device_wake);
	if (copier->job.direction == GCR_COPY_IN)
		pthread_cond_broadcast(&copier->host_wake);
	return 0;
}

void gcr_copier_close(struct gcr_copier *copier)
{
	GCR_LOCK_SCOPE(&copier->lock);

	copier->all_added = true;
	pthread_cond_signal(&copier->device_wake);
}

void gcr_copier_hurry(struct gcr_copier *copier)
{
	GCR_LOCK_SCOPE(&copier->lock);

	copier->job.in_flight = 0;
	copier->cutter.config.direct_bytes = DIRECT_BYTES;
	pthread_cond_signal(&copier->device_wake);
}

int gcr_copier_event(const struct gcr_copier *copier)
{
	return copier->event_fd;
}

static int take_error(const struct gcr_copier *copier, CUresult *ret_driver_result,
		      struct gcr_error *error)
{
	*ret_driver_result = copier->driver_result;
	if (!copier->error.number)
		return 0;
	return gcr_error_set(error, copier->error.number, "%s", copier->error.words);
}

/* Waits until the job has ended, and forgets it. Lock: copier, which is dropped during the wait. */
static void wait_ended(struct gcr_copier *copier)
{
	eventfd_t count;

	while (!copier->ended)
		pthread_cond_wait(&copier->ended_wake, &copier->lock);
	eventfd_read(copier->event_fd, &count);
	copier->has_job = false;
}

int gcr_copier_finish(struct gcr_copier *copier, CUresult *ret_driver_result,
		      struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&copier->lock);

	wait_ended(copier);
	return take_error(copier, ret_driver_result, error);
}

int64_t gcr_copier_usec(struct gcr_copier *copier)
{
	GCR_LOCK_SCOPE(&copier->lock);

	return copier->ended_usec - copier->started_usec;
}

uint64_t gcr_copier_bytes(struct gcr_copier *copier)
{
	GCR_LOCK_SCOPE(&copier->lock);

	return copier->copied_bytes;
}

uint64_t gcr_copier_landed(struct gcr_copier *copier)
{
	GCR_LOCK_SCOPE(&copier->lock);

	return copier->job.direction == GCR_COPY_IN && copier->cutter.config.all_direct
		       ? copier->landed_bytes
		       : 0;
}

void gcr_copier_stop(struct gcr_copier *copier)
{
	GCR_LOCK_SCOPE(&copier->lock);

	if (!copier->has_job)
		return;
	if (copier->going)
		end(copier);
	wait_ended(copier);
}

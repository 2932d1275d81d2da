/* SPDX-License-Identifier: MIT */
/*
 * The copy path. One thread talks to the GPU: it queues copies between VRAM and the slots of the
 * ring, in order, and waits for the oldest. Several threads move pieces of 2 MiB, a huge page of
 * the store, between slots and files; all of them work on the same few slots, so that the last
 * slot is through as soon as the first. One lock guards the job; it is never held across a call
 * of the driver or an access to a file.
 */
#include "backend/cuda/worker_copy.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cuda/worker_numa.h"
#include "lib/cleanup.h"

#define PIECE		GCR_SPACE_PIECE_BYTES
#define DEFAULT_THREADS 8
#define DEFAULT_SLOTS	8
#define DEFAULT_SLOT	(16ull << 20)
#define SLOT_PIECES_MAX 64 /* bits of slot.holes */

struct slot {
	char *memory;
	CUevent event;
	unsigned int pending; /* pieces that threads have not done with */
	bool filled;	      /* IN: and the GPU has not done with */
	uint64_t holes;	      /* IN: pieces that are zeros and were not read */
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
	struct slot *slots; /* transfer N of a job uses slot N modulo config.slots */
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
	bool going; /* false once it has ended; those who are busy with it are counted below */
	bool ended;
	struct gcr_copy_job job;
	uint64_t bytes;	    /* of the space */
	uint64_t transfers; /* slots full of it, the last one may be shorter */
	uint64_t arrived;   /* bytes */
	uint64_t submitted; /* transfers the GPU was given */
	uint64_t completed; /* and has done */
	uint64_t host_next; /* the transfer of which threads take the next piece */
	unsigned int host_piece;
	uint64_t pieces_left;
	unsigned int holders; /* threads that have a file open */
	bool device_busy;
	CUresult driver_result;
	struct gcr_error error;
};

static void unlock(pthread_mutex_t *lock)
{
	pthread_mutex_unlock(lock);
}
GCR_DEFINE_CLEANUP(pthread_mutex_t *, unlock);

static pthread_mutex_t *locked(pthread_mutex_t *lock)
{
	pthread_mutex_lock(lock);
	return lock;
}

#define LOCK_SCOPE(copier)                                \
	_cleanup_(unlock_cleanup) __attribute__((unused)) \
	pthread_mutex_t *held_ = locked(&(copier)->lock)

static struct slot *slot_of(const struct gcr_copier *copier, uint64_t transfer)
{
	return &copier->slots[transfer % copier->config.slots];
}

static size_t transfer_bytes(const struct gcr_copier *copier, uint64_t transfer)
{
	uint64_t left = copier->bytes - transfer * copier->config.slot_bytes;

	return left < copier->config.slot_bytes ? left : copier->config.slot_bytes;
}

static unsigned int transfer_pieces(const struct gcr_copier *copier, uint64_t transfer)
{
	return (unsigned int)(transfer_bytes(copier, transfer) / PIECE);
}

/* ---- under the lock ---- */

/* Tell whoever waits if nobody is busy with a job that has ended. */
static void check_ended(struct gcr_copier *copier)
{
	if (!copier->has_job || copier->going || copier->ended || copier->holders ||
	    copier->device_busy || copier->submitted != copier->completed)
		return;
	copier->ended = true;
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

static bool is_complete(const struct gcr_copier *copier)
{
	return copier->job.direction == GCR_COPY_OUT ? copier->pieces_left == 0
						     : copier->completed == copier->transfers;
}

/* Can the GPU be given the next transfer? */
static bool can_submit(const struct gcr_copier *copier)
{
	const struct slot *slot = slot_of(copier, copier->submitted);
	uint64_t in_flight = copier->submitted - copier->completed;

	if (copier->submitted == copier->transfers || in_flight == copier->config.slots)
		return false;
	if (copier->job.direction == GCR_COPY_IN)
		return slot->filled &&
		       (!copier->job.in_flight || in_flight < copier->job.in_flight);
	return slot->pending == 0 && copier->submitted * copier->config.slot_bytes +
						     transfer_bytes(copier, copier->submitted) <=
					     copier->arrived;
}

/* Take the next piece for a thread, if there is one. */
static bool claim(struct gcr_copier *copier, uint64_t *ret_transfer, unsigned int *ret_piece)
{
	uint64_t transfer = copier->host_next;
	struct slot *slot = slot_of(copier, transfer);

	if (!copier->going || transfer == copier->transfers)
		return false;
	if (copier->job.direction == GCR_COPY_OUT) {
		if (transfer >= copier->completed)
			return false;
	} else if (copier->host_piece == 0) {
		if (transfer >= copier->completed + copier->config.slots ||
		    copier->arrived != copier->bytes)
			return false;
		slot->pending = transfer_pieces(copier, transfer);
		slot->holes = 0;
	}
	*ret_transfer = transfer;
	*ret_piece = copier->host_piece++;
	if (copier->host_piece == transfer_pieces(copier, transfer)) {
		copier->host_piece = 0;
		copier->host_next++;
	}
	return true;
}

static void piece_done(struct gcr_copier *copier, uint64_t transfer, unsigned int piece, bool hole)
{
	struct slot *slot = slot_of(copier, transfer);

	if (hole)
		slot->holes |= UINT64_C(1) << piece;
	copier->pieces_left--;
	if (--slot->pending > 0)
		return;
	slot->filled = copier->job.direction == GCR_COPY_IN;
	pthread_cond_signal(&copier->device_wake);
	if (copier->going && is_complete(copier))
		end(copier);
}

/* ---- the thread that talks to the GPU ---- */

/* A slot full towards VRAM: runs of data and runs of zeros. */
static CUresult submit_in(const struct gcr_copier *copier, const struct slot *slot, CUdeviceptr to,
			  unsigned int pieces, const char **ret_call)
{
	const struct gcr_driver *driver = copier->driver;
	CUresult result = CUDA_SUCCESS;

	for (unsigned int first = 0, next; first < pieces && result == CUDA_SUCCESS; first = next) {
		bool hole = slot->holes >> first & 1;

		for (next = first + 1; next < pieces; next++)
			if ((slot->holes >> next & 1) != hole)
				break;
		*ret_call = hole ? "cuMemsetD8Async" : "cuMemcpyHtoDAsync";
		if (hole)
			result = driver->cuMemsetD8Async(to + first * PIECE, 0,
							 (next - first) * PIECE, copier->stream);
		else
			result = driver->cuMemcpyHtoDAsync_v2(
				to + first * PIECE, slot->memory + first * PIECE,
				(next - first) * PIECE, copier->stream);
	}
	return result;
}

static CUresult submit(struct gcr_copier *copier, uint64_t transfer, const char **ret_call)
{
	const struct gcr_driver *driver = copier->driver;
	struct slot *slot = slot_of(copier, transfer);
	CUdeviceptr address = copier->job.base + transfer * copier->config.slot_bytes;
	CUresult result;

	if (copier->job.direction == GCR_COPY_IN) {
		result = submit_in(copier, slot, address, transfer_pieces(copier, transfer),
				   ret_call);
	} else {
		*ret_call = "cuMemcpyDtoHAsync";
		result = driver->cuMemcpyDtoHAsync_v2(
			slot->memory, address, transfer_bytes(copier, transfer), copier->stream);
	}
	if (result != CUDA_SUCCESS)
		return result;
	*ret_call = "cuEventRecord";
	return driver->cuEventRecord(slot->event, copier->stream);
}

/* One step; false if there is nothing to do. The lock is given away meanwhile. */
static bool device_step(struct gcr_copier *copier)
{
	const char *call = "cuEventSynchronize";
	struct gcr_error error;
	CUresult result;
	bool submitting;

	if (!copier->has_job)
		return false;
	submitting = copier->going && can_submit(copier);
	if (!submitting && copier->submitted == copier->completed)
		return false;

	copier->device_busy = true;
	pthread_mutex_unlock(&copier->lock);
	if (submitting)
		result = submit(copier, copier->submitted, &call);
	else
		result = copier->driver->cuEventSynchronize(
			slot_of(copier, copier->completed)->event);
	if (result != CUDA_SUCCESS)
		/* What was queued before may still be on its way. */
		copier->driver->cuStreamSynchronize(copier->stream);
	pthread_mutex_lock(&copier->lock);
	copier->device_busy = false;

	if (result != CUDA_SUCCESS) {
		gcr_driver_check(copier->driver, result, call, &error);
		copier->completed = copier->submitted;
		fail(copier, result, &error);
	} else if (submitting) {
		copier->submitted++;
	} else {
		struct slot *slot = slot_of(copier, copier->completed);

		if (copier->job.direction == GCR_COPY_OUT)
			slot->pending = transfer_pieces(copier, copier->completed);
		slot->filled = false;
		copier->completed++;
		if (copier->going && is_complete(copier))
			end(copier);
		pthread_cond_broadcast(&copier->host_wake);
	}
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

static int copy_piece(struct gcr_copier *copier, struct gcr_space_cursor *cursor, uint64_t transfer,
		      unsigned int piece, bool *ret_hole, struct gcr_error *error)
{
	uint64_t offset = transfer * copier->config.slot_bytes + piece * PIECE;
	char *memory = slot_of(copier, transfer)->memory + piece * PIECE;

	*ret_hole = false;
	if (copier->job.direction == GCR_COPY_OUT)
		return gcr_space_write(cursor, offset, memory, PIECE, error);
	return gcr_space_read(cursor, offset, memory, PIECE, ret_hole, error);
}

static void *run_host(void *data)
{
	struct gcr_copier *copier = data;
	struct gcr_space_cursor cursor;
	bool holding = false;

	pthread_mutex_lock(&copier->lock);
	for (;;) {
		struct gcr_error error;
		unsigned int piece;
		uint64_t transfer;
		bool hole;
		int r;

		if (claim(copier, &transfer, &piece)) {
			if (!holding) {
				gcr_space_cursor_init(&cursor, copier->job.space);
				copier->holders++;
				holding = true;
			}
			pthread_mutex_unlock(&copier->lock);
			r = copy_piece(copier, &cursor, transfer, piece, &hole, &error);
			pthread_mutex_lock(&copier->lock);
			if (r < 0)
				fail(copier, CUDA_SUCCESS, &error);
			else
				piece_done(copier, transfer, piece, hole);
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

/* ---- making and ending one ---- */

void gcr_copier_config_default(struct gcr_copier_config *ret_config)
{
	unsigned int cpus = gcr_numa_cpus();

	*ret_config = (struct gcr_copier_config){
		.threads = cpus < DEFAULT_THREADS ? cpus : DEFAULT_THREADS,
		.slots = DEFAULT_SLOTS,
		.slot_bytes = DEFAULT_SLOT,
	};
}

GCR_DEFINE_CLEANUP(struct gcr_copier *, gcr_copier_destroy);

static int create_ring(struct gcr_copier *copier, struct gcr_error *error)
{
	const struct gcr_driver *driver = copier->driver;
	int r;

	copier->ring_bytes = copier->config.slots * copier->config.slot_bytes;
	copier->ring = aligned_alloc(PIECE, copier->ring_bytes);
	copier->slots = calloc(copier->config.slots, sizeof(*copier->slots));
	if (!copier->ring || !copier->slots)
		return gcr_error_set(error, ENOMEM, "out of memory for %zu MiB to copy through",
				     copier->ring_bytes >> 20);
	madvise(copier->ring, copier->ring_bytes, MADV_HUGEPAGE);
	r = gcr_driver_check(driver,
			     driver->cuMemHostRegister_v2(copier->ring, copier->ring_bytes,
							  CU_MEMHOSTREGISTER_PORTABLE),
			     "cuMemHostRegister", error);
	if (r < 0)
		return r;
	copier->registered = true;
	r = gcr_driver_check(driver,
			     driver->cuStreamCreate(&copier->stream, CU_STREAM_NON_BLOCKING),
			     "cuStreamCreate", error);
	for (unsigned int i = 0; i < copier->config.slots && r == 0; i++) {
		struct slot *slot = &copier->slots[i];

		slot->memory = copier->ring + i * copier->config.slot_bytes;
		r = gcr_driver_check(driver,
				     driver->cuEventCreate(&slot->event, CU_EVENT_DISABLE_TIMING),
				     "cuEventCreate", error);
	}
	return r;
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
	/* With some of them it is slower, and works. */
	if (copier->has_device_thread && copier->threads_count > 0)
		return 0;
	return gcr_error_set(error, ENOMEM, "no thread: %s", strerror(r));
}

int gcr_copier_create(const struct gcr_driver *driver, CUcontext context,
		      const struct gcr_copier_config *config, struct gcr_copier **ret_copier,
		      struct gcr_error *error)
{
	_cleanup_(gcr_copier_destroy_cleanup) struct gcr_copier *copier = NULL;
	int r;

	if (config->slot_bytes == 0 || config->slot_bytes % PIECE ||
	    config->slot_bytes / PIECE > SLOT_PIECES_MAX || !config->slots || !config->threads)
		return gcr_error_set(error, EINVAL, "no such ring to copy through");
	copier = calloc(1, sizeof(*copier));
	if (!copier)
		return gcr_error_set(error, ENOMEM, "out of memory");
	copier->driver = driver;
	copier->context = context;
	copier->config = *config;
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->device_wake, NULL);
	pthread_cond_init(&copier->host_wake, NULL);
	pthread_cond_init(&copier->ended_wake, NULL);
	copier->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (copier->event_fd < 0)
		return gcr_error_set(error, ENOMEM, "no eventfd: %s", strerror(errno));
	r = create_ring(copier, error);
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
	LOCK_SCOPE(copier);

	copier->job = *job;
	copier->bytes = gcr_space_bytes(job->space);
	copier->transfers =
		(copier->bytes + copier->config.slot_bytes - 1) / copier->config.slot_bytes;
	copier->pieces_left = copier->bytes / PIECE;
	copier->arrived = 0;
	copier->submitted = 0;
	copier->completed = 0;
	copier->host_next = 0;
	copier->host_piece = 0;
	copier->driver_result = CUDA_SUCCESS;
	copier->error.number = 0;
	for (unsigned int i = 0; i < copier->config.slots; i++) {
		copier->slots[i].pending = 0;
		copier->slots[i].filled = false;
	}
	copier->has_job = true;
	copier->going = true;
	copier->ended = false;
	if (is_complete(copier))
		end(copier);
}

void gcr_copier_arrived(struct gcr_copier *copier, uint64_t bytes)
{
	LOCK_SCOPE(copier);

	copier->arrived = bytes;
	pthread_cond_signal(&copier->device_wake);
	if (copier->job.direction == GCR_COPY_IN)
		pthread_cond_broadcast(&copier->host_wake);
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

int gcr_copier_check(struct gcr_copier *copier, CUresult *ret_driver_result,
		     struct gcr_error *error)
{
	LOCK_SCOPE(copier);

	return take_error(copier, ret_driver_result, error);
}

/* The lock is held. */
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
	LOCK_SCOPE(copier);

	wait_ended(copier);
	return take_error(copier, ret_driver_result, error);
}

void gcr_copier_stop(struct gcr_copier *copier)
{
	LOCK_SCOPE(copier);

	if (!copier->has_job)
		return;
	if (copier->going)
		end(copier);
	wait_ended(copier);
}

/* SPDX-License-Identifier: MIT */
/*
 * Streams. Each has a thread that runs its operations in order; an operation has a fence, and waits
 * for the fences on which it depends. One lock protects everything: this is a test double.
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <time.h>

struct operation {
	struct operation *next;
	struct work work;
	struct fence *fence;
	size_t wait_count;
	struct fence *waits[];
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a fence is done, or a queue has grown */
	struct CUstream_st *streams;
	uint64_t pending; /* operations queued or running */
	uint64_t next_id;
} work = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

#define PER_THREAD_STREAMS 8

__thread bool per_thread_default;
static __thread struct {
	CUcontext context;
	CUstream stream;
} thread_streams[PER_THREAD_STREAMS];

struct fence *fence_ref(struct fence *fence)
{
	if (fence)
		atomic_fetch_add(&fence->references, 1);
	return fence;
}

void fence_unref(struct fence *fence)
{
	if (!fence || atomic_fetch_sub(&fence->references, 1) != 1)
		return;
	for (size_t i = 0; i < fence->part_count; i++)
		fence_unref(fence->parts[i]);
	free(fence->parts);
	free(fence);
}

/* work.lock is held. */
static bool fence_reached(struct fence *fence)
{
	if (fence->done || !fence->part_count)
		return fence->done;
	for (size_t i = 0; i < fence->part_count; i++) {
		if (!fence_reached(fence->parts[i]))
			return false;
		if (fence->time_ns < fence->parts[i]->time_ns)
			fence->time_ns = fence->parts[i]->time_ns;
	}
	fence->done = true;
	return true;
}

/* Combines several fences into one. Takes over `parts` and its references, also on failure. */
static struct fence *fence_join(struct fence **parts, size_t count)
{
	struct fence *fence = calloc(1, sizeof(*fence));

	if (!fence) {
		for (size_t i = 0; i < count; i++)
			fence_unref(parts[i]);
		free(parts);
		return NULL;
	}
	atomic_store(&fence->references, 1);
	fence->parts = parts;
	fence->part_count = count;
	return fence;
}

bool fence_done(struct fence *fence)
{
	GCR_LOCK_SCOPE(&work.lock);

	return fence_reached(fence);
}

void fence_wait(struct fence *fence)
{
	GCR_LOCK_SCOPE(&work.lock);

	while (!fence_reached(fence))
		pthread_cond_wait(&work.changed, &work.lock);
}

bool streams_idle(void)
{
	GCR_LOCK_SCOPE(&work.lock);

	return work.pending == 0;
}

bool streams_idle_until(uint64_t deadline_ns)
{
	struct timespec deadline = {(time_t)(deadline_ns / 1000000000ull),
				    (long)(deadline_ns % 1000000000ull)};
	GCR_LOCK_SCOPE(&work.lock);
	int r = 0;

	while (work.pending && r != ETIMEDOUT) {
		if (deadline_ns)
			r = pthread_cond_clockwait(&work.changed, &work.lock, CLOCK_MONOTONIC,
						   &deadline);
		else
			pthread_cond_wait(&work.changed, &work.lock);
	}
	return work.pending == 0;
}

static void *stream_thread(void *argument)
{
	CUstream stream = argument;

	sim_set_callback_thread();
	sim_thread_name(sim_vendor.stream_thread_name);
	pthread_mutex_lock(&work.lock);
	for (;;) {
		struct operation *operation = stream->head;

		if (!operation) {
			if (stream->closing)
				break;
			pthread_cond_wait(&work.changed, &work.lock);
			continue;
		}
		for (size_t i = 0; i < operation->wait_count; i++)
			while (!fence_reached(operation->waits[i]))
				pthread_cond_wait(&work.changed, &work.lock);
		pthread_mutex_unlock(&work.lock);
		if (!atomic_load(&context_owner(stream->context)->failure))
			work_execute(context_owner(stream->context), &operation->work);
		if (operation->work.kind == WORK_GRAPH)
			graph_program_unref(operation->work.graph.program);
		pthread_mutex_lock(&work.lock);
		stream->head = operation->next;
		if (!stream->head)
			stream->tail = &stream->head;
		operation->fence->time_ns = sim_now_ns();
		operation->fence->done = true;
		work.pending--;
		pthread_cond_broadcast(&work.changed);
		for (size_t i = 0; i < operation->wait_count; i++)
			fence_unref(operation->waits[i]);
		fence_unref(operation->fence);
		free(operation);
	}
	for (struct CUstream_st **link = &work.streams; *link; link = &(*link)->next)
		if (*link == stream) {
			*link = stream->next;
			break;
		}
	pthread_mutex_unlock(&work.lock);
	fence_unref(stream->last);
	free(stream);
	return NULL;
}

CUstream stream_create(CUcontext context, unsigned flags, int priority, bool legacy)
{
	CUstream stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->magic = STREAM_MAGIC;
	stream->context = context;
	stream->flags = flags;
	stream->priority = priority;
	stream->legacy = legacy;
	stream->tail = &stream->head;
	if (sim_thread_start(&stream->thread, stream_thread, stream) < 0) {
		free(stream);
		return NULL;
	}
	pthread_detach(stream->thread);
	pthread_mutex_lock(&work.lock);
	stream->id = ++work.next_id;
	stream->next = work.streams;
	work.streams = stream;
	pthread_mutex_unlock(&work.lock);
	return stream;
}

/*
 * Marks the stream as closing. Its thread frees the stream when the queue is empty; until then the
 * remaining work counts as the context's. work.lock is held.
 */
static void stream_close(CUstream stream)
{
	if (stream->capture) {
		stream->capture->invalidated = true;
		capture_unref(stream->capture);
		stream->capture = NULL;
	}
	stream->closing = true;
	pthread_cond_broadcast(&work.changed);
}

bool stream_destroy(CUstream handle)
{
	GCR_LOCK_SCOPE(&work.lock);

	for (CUstream stream = work.streams; stream; stream = stream->next)
		if (stream == handle && !stream->legacy && !stream->closing) {
			stream_close(stream);
			return true;
		}
	return false;
}

void streams_destroy(CUcontext context)
{
	CUstream next;
	GCR_LOCK_SCOPE(&work.lock);

	for (CUstream stream = work.streams; stream; stream = next) {
		next = stream->next;
		if (stream->context == context && !stream->closing)
			stream_close(stream);
	}
}

void streams_detach(CUcontext context)
{
	GCR_LOCK_SCOPE(&work.lock);

	context->ended = true;
	for (CUstream stream = work.streams; stream; stream = stream->next) {
		if (stream->context != context)
			continue;
		if (stream->capture)
			stream->capture->invalidated = true;
		if (stream == context->legacy)
			stream_close(stream);
	}
}

static CUstream per_thread_stream(CUcontext context)
{
	unsigned free_slot = 0;

	for (unsigned i = 0; i < PER_THREAD_STREAMS; i++) {
		if (thread_streams[i].context == context)
			return thread_streams[i].stream;
		if (!thread_streams[i].context)
			free_slot = i;
	}
	thread_streams[free_slot].context = context;
	thread_streams[free_slot].stream = stream_create(context, CU_STREAM_DEFAULT, 0, false);
	return thread_streams[free_slot].stream;
}

CUresult stream_argument(CUstream handle, CUstream *ret_stream)
{
	CUcontext context = context_of_streams();
	CUresult result;
	CUstream stream;
	bool detached;

	if (!handle)
		handle = per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		result = context_check(context);
		if (result)
			return result;
		*ret_stream = handle == CU_STREAM_LEGACY ? context->legacy
							 : per_thread_stream(context);
		return *ret_stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&work.lock);
	for (stream = work.streams; stream; stream = stream->next)
		if (stream == handle && !stream->closing)
			break;
	detached = stream && stream->context->ended;
	pthread_mutex_unlock(&work.lock);
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (detached)
		return SIM_ERROR_STREAM_DETACHED;
	*ret_stream = stream;
	return (CUresult)atomic_load(&context_owner(stream->context)->failure);
}

/*
 * Returns true if an operation of `stream` has to wait for the newest one of `other`: the legacy
 * default stream and the blocking streams of a context wait for each other.
 */
static bool stream_orders(const struct CUstream_st *stream, const struct CUstream_st *other)
{
	if (other == stream || other->context != stream->context || !other->last)
		return false;
	if (stream->legacy)
		return !(other->flags & CU_STREAM_NON_BLOCKING);
	return other->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static struct fence *context_barrier(CUcontext context)
{
	if (context->barrier && fence_reached(context->barrier)) {
		fence_unref(context->barrier);
		context->barrier = NULL;
	}
	return context->barrier;
}

static CUresult submit_locked(CUstream stream, const struct work *item, struct fence *wait,
			      struct fence **ret_fence)
{
	struct operation *operation;
	struct fence *fence;
	struct fence *barrier = context_barrier(stream->context);
	size_t count = (wait ? 1 : 0) + (barrier ? 1 : 0);

	for (CUstream other = work.streams; other; other = other->next) {
		if (stream->legacy && other->capture && other->context == stream->context &&
		    !(other->flags & CU_STREAM_NON_BLOCKING)) {
			other->capture->invalidated = true;
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
		count += stream_orders(stream, other);
	}
	operation = calloc(1, sizeof(*operation) + count * sizeof(operation->waits[0]));
	fence = calloc(1, sizeof(*fence));
	if (!operation || !fence) {
		free(operation);
		free(fence);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	atomic_store(&fence->references, 2); /* the operation's and stream->last */
	operation->work = *item;
	operation->fence = fence;
	if (wait)
		operation->waits[operation->wait_count++] = fence_ref(wait);
	if (barrier)
		operation->waits[operation->wait_count++] = fence_ref(barrier);
	for (CUstream other = work.streams; other; other = other->next)
		if (stream_orders(stream, other))
			operation->waits[operation->wait_count++] = fence_ref(other->last);
	fence_unref(stream->last);
	stream->last = fence;
	*stream->tail = operation;
	stream->tail = &operation->next;
	work.pending++;
	if (ret_fence)
		*ret_fence = fence_ref(fence);
	pthread_cond_broadcast(&work.changed);
	return CUDA_SUCCESS;
}

CUresult stream_submit(CUstream stream, const struct work *item, struct fence *wait,
		       struct fence **ret_fence)
{
	GCR_LOCK_SCOPE(&work.lock);

	if (stream->capture) {
		if (stream->capture->invalidated)
			return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		if (ret_fence)
			*ret_fence = NULL;
		stream->unjoined = true;
		return item->kind == WORK_NOTHING ? CUDA_SUCCESS
						  : capture_append(stream->capture, item);
	}
	return submit_locked(stream, item, wait, ret_fence);
}

bool stream_done(CUstream stream)
{
	GCR_LOCK_SCOPE(&work.lock);

	return !stream->last || stream->last->done;
}

CUresult stream_wait(CUstream stream)
{
	struct fence *fence;

	pthread_mutex_lock(&work.lock);
	fence = fence_ref(stream->last);
	pthread_mutex_unlock(&work.lock);
	if (fence)
		fence_wait(fence);
	fence_unref(fence);
	return (CUresult)atomic_load(&context_owner(stream->context)->failure);
}

/* Also waits for the work of the context's green contexts, even ended ones. */
void context_wait(CUcontext context)
{
	for (;;) {
		struct fence *fence = NULL;

		pthread_mutex_lock(&work.lock);
		for (CUstream stream = work.streams; stream && !fence; stream = stream->next)
			if ((stream->context == context || stream->context->owner == context) &&
			    stream->last && !stream->last->done)
				fence = fence_ref(stream->last);
		pthread_mutex_unlock(&work.lock);
		if (!fence)
			return;
		fence_wait(fence);
		fence_unref(fence);
	}
}

/* Invalidates all captures of the context. Returns true if there was one. work.lock is held. */
static bool captures_end(CUcontext context)
{
	bool found = false;

	for (CUstream stream = work.streams; stream; stream = stream->next)
		if (stream->context == context && stream->capture) {
			stream->capture->invalidated = true;
			found = true;
		}
	return found;
}

CUresult context_ends_captures(CUcontext context)
{
	GCR_LOCK_SCOPE(&work.lock);

	return captures_end(context) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult context_fence(CUcontext context, struct fence **ret_fence)
{
	struct fence **parts, *fence;
	size_t count = 0;
	GCR_LOCK_SCOPE(&work.lock);

	if (captures_end(context))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	for (CUstream stream = work.streams; stream; stream = stream->next)
		count += stream->context == context && stream->last;
	*ret_fence = NULL;
	if (!count)
		return CUDA_SUCCESS;
	parts = calloc(count, sizeof(*parts));
	if (!parts)
		return CUDA_ERROR_OUT_OF_MEMORY;
	count = 0;
	for (CUstream stream = work.streams; stream; stream = stream->next)
		if (stream->context == context && stream->last)
			parts[count++] = fence_ref(stream->last);
	fence = fence_join(parts, count);
	*ret_fence = fence;
	return fence ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult context_wait_fence(CUcontext context, struct fence *fence)
{
	struct fence **parts, *barrier;
	size_t count = 0;
	GCR_LOCK_SCOPE(&work.lock);

	if (captures_end(context))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	parts = calloc(2, sizeof(*parts));
	if (!parts)
		return CUDA_ERROR_OUT_OF_MEMORY;
	parts[count++] = fence_ref(fence);
	if (context->barrier && !fence_reached(context->barrier))
		parts[count++] = fence_ref(context->barrier);
	barrier = fence_join(parts, count);
	if (!barrier)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fence_unref(context->barrier);
	context->barrier = barrier;
	return CUDA_SUCCESS;
}

CUresult capture_forbids(CUstream stream)
{
	GCR_LOCK_SCOPE(&work.lock);

	for (CUstream other = work.streams; other; other = other->next) {
		struct capture *capture = other->capture;
		bool mine;

		if (!capture)
			continue;
		mine = pthread_equal(capture->thread, pthread_self());
		if (stream ? other == stream
			   : capture_thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
				     capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
				     (mine ||
				      (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
				       capture_thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL))) {
			capture->invalidated = true;
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return CUDA_SUCCESS;
}

CUresult stream_capture_begin(CUstream stream, struct capture *capture)
{
	GCR_LOCK_SCOPE(&work.lock);

	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	stream->capture = capture_ref(capture);
	stream->unjoined = false;
	return CUDA_SUCCESS;
}

CUresult stream_capture_join(CUstream stream, struct CUevent_st *event)
{
	GCR_LOCK_SCOPE(&work.lock);

	if (!event->capture) {
		if (!stream->capture)
			return CUDA_SUCCESS;
		stream->capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (event->capture->ended)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (stream->capture && stream->capture != event->capture) {
		stream->capture->invalidated = event->capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!stream->capture) {
		stream->capture = capture_ref(event->capture);
		stream->unjoined = true;
	} else {
		for (CUstream other = work.streams; other; other = other->next)
			if (other == event->capture_stream && other != stream)
				other->unjoined = false;
	}
	return CUDA_SUCCESS;
}

/* Ends the capture in all of its streams. */
CUresult stream_capture_end(CUstream stream, struct capture **ret_capture)
{
	struct capture *capture = stream->capture;
	CUresult result = CUDA_SUCCESS;
	GCR_LOCK_SCOPE(&work.lock);

	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	*ret_capture = capture_ref(capture);
	capture->ended = true;
	for (CUstream other = work.streams; other; other = other->next) {
		if (other->capture != capture)
			continue;
		if (other != stream && other->unjoined)
			result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
		other->capture = NULL;
		capture_unref(capture);
	}
	if (capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return result;
}

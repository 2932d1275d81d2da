/* SPDX-License-Identifier: MIT */
/* The streams with an open capture. `lock` guards the list; no driver call is made with it held. */
#include "backend/preload/gate/capture.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cuda/cuda_api_later.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/gate/hip_idle.h"
#include "backend/preload/base/listener.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#define CAPTURES_MAX 256

/* HIP has no other name for the default stream before ROCm 6.3. */
#ifdef GCR_HIP
#define DEFAULT_STREAM NULL
#else
#define DEFAULT_STREAM CU_STREAM_LEGACY
#endif

struct capture {
	CUstream stream; /* CU_STREAM_PER_THREAD: the default stream of `thread` */
	pid_t thread;	 /* the thread that began the capture */
	CUcontext context;
	bool is_going; /* its context is a green one that is about to be destroyed */
};

static struct {
	pthread_mutex_t lock;
	struct capture list[CAPTURES_MAX];
	uint32_t count;
	uint64_t changes;
} captures = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t count(void)
{
	return __atomic_load_n(&captures.count, __ATOMIC_ACQUIRE);
}

/* Sets the number of open captures, here and in the page. The caller holds captures.lock. */
static void set_count(uint32_t now)
{
	struct gcr_page *page = gcr_gate_page();

	captures.changes++;
	__atomic_store_n(&captures.count, now, __ATOMIC_RELEASE);
	if (page)
		__atomic_store_n(&page->captures, now, __ATOMIC_RELAXED);
}

/* Removes entry @i from the list. Lock: captures. */
static void remove_at(uint32_t i)
{
	captures.list[i] = captures.list[captures.count - 1];
	set_count(captures.count - 1);
}

static CUstream plain(CUstream stream, bool per_thread)
{
	if (stream)
		return stream;
	return per_thread ? CU_STREAM_PER_THREAD : DEFAULT_STREAM;
}

/*
 * Is @stream, as this thread names it, the stream of the capture? CU_STREAM_PER_THREAD is another
 * stream in each thread. Lock: captures.
 */
static bool is_same(const struct capture *capture, CUstream stream)
{
	return capture->stream == stream &&
	       (stream != CU_STREAM_PER_THREAD || capture->thread == gettid());
}

static void insert(const struct capture *capture)
{
	GCR_LOCK_SCOPE(&captures.lock);
	for (uint32_t i = 0; i < captures.count; i++)
		if (is_same(&captures.list[i], capture->stream))
			remove_at(i--);
	if (captures.count == CAPTURES_MAX) {
		gcr_gate_incomplete("more stream captures than can be watched");
		return;
	}
	captures.list[captures.count] = *capture;
	set_count(captures.count + 1);
}

static void add(CUstream stream)
{
	__typeof__(cuStreamGetCtx) *get_context = GCR_REAL(cuStreamGetCtx);
	struct capture capture = {.stream = stream, .thread = gettid()};

	if (get_context)
		get_context(stream, &capture.context);
	insert(&capture);
}

/* Removes the capture of this stream from the list. False: the list has none. */
static bool take_out(CUstream stream, struct capture *ret_capture)
{
	if (count() == 0)
		return false;
	GCR_LOCK_SCOPE(&captures.lock);
	for (uint32_t i = 0; i < captures.count; i++) {
		if (!is_same(&captures.list[i], stream))
			continue;
		*ret_capture = captures.list[i];
		remove_at(i);
		return true;
	}
	return false;
}

static bool is_capturing(CUstream stream)
{
	__typeof__(cuStreamIsCapturing) *ask = GCR_REAL(cuStreamIsCapturing);
	CUstreamCaptureStatus status;

	return ask && ask(stream, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gcr_captures_has(CUstream stream, bool per_thread)
{
	return count() != 0 && is_capturing(plain(stream, per_thread));
}

bool gcr_captures_open(void)
{
	return count() != 0;
}

uint32_t gcr_captures_thread(void)
{
	GCR_LOCK_SCOPE(&captures.lock);
	return captures.count ? (uint32_t)captures.list[0].thread : 0;
}

/* Removes the captures in the context; with @only_going those that green_going() has marked. */
static void remove_of(CUcontext context, bool only_going)
{
	if (count() == 0)
		return;
	GCR_LOCK_SCOPE(&captures.lock);
	for (uint32_t i = 0; i < captures.count; i++)
		if (captures.list[i].context == context &&
		    (!only_going || captures.list[i].is_going))
			remove_at(i--);
}

static void context_gone(CUcontext context)
{
	remove_of(context, false);
}

GCR_LISTEN(context_gone, context_gone);

/*
 * Called before a green context is destroyed: marks its captures. Once the context is gone,
 * remove_of() removes those; if the context stays, the marks stay, too.
 */
static void green_going(CUcontext context)
{
	if (count() == 0)
		return;
	GCR_LOCK_SCOPE(&captures.lock);
	for (uint32_t i = 0; i < captures.count; i++)
		captures.list[i].is_going |= captures.list[i].context == context;
}

GCR_LISTEN(green_going, green_going);

static void green_gone(CUcontext context)
{
	remove_of(context, true);
}

GCR_LISTEN(green_gone, green_gone);

/*
 * Has this capture ended? The default stream of another thread cannot be queried; its capture has
 * ended if the thread has. A stream of a green context is queried with the owner context current,
 * since a thread of the program may have the green context current.
 */
static bool has_ended(const struct capture *capture)
{
	__typeof__(cuCtxPushCurrent_v2) *push = GCR_REAL(cuCtxPushCurrent_v2);
	__typeof__(cuCtxPopCurrent_v2) *pop = GCR_REAL(cuCtxPopCurrent_v2);
	CUcontext context;
	bool ended;

	if (capture->stream == CU_STREAM_PER_THREAD)
		return syscall(SYS_tgkill, getpid(), capture->thread, 0) < 0 && errno == ESRCH;
	if (!capture->context || !push || !pop ||
	    push(gcr_green_owner(capture->context)) != CUDA_SUCCESS)
		return false;
	ended = !is_capturing(capture->stream);
	pop(&context);
	return ended;
}

static bool get(uint32_t i, struct capture *ret_capture, uint64_t *ret_changes)
{
	GCR_LOCK_SCOPE(&captures.lock);
	if (i >= captures.count)
		return false;
	*ret_capture = captures.list[i];
	*ret_changes = captures.changes;
	return true;
}

void gcr_captures_verify(void)
{
	struct capture capture;
	uint64_t changes;

	for (uint32_t i = 0; get(i, &capture, &changes); i++) {
		if (!has_ended(&capture))
			continue;
		GCR_LOCK_SCOPE(&captures.lock);
		/* If the list has changed since get(), stop here: the next call looks again. */
		if (captures.changes != changes)
			return;
		remove_at(i--);
	}
}

static void forget(void)
{
	captures.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	captures.count = 0;
}

GCR_LISTEN(fork, forget);

/* ---- the driver's functions ---- */

/* Not declared in cuda_api.h. */
CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
				     const CUgraphNode *dependencies,
				     const CUgraphEdgeData *dependencyData, size_t numDependencies,
				     CUstreamCaptureMode mode);

#define BEGIN(symbol, like, per_thread, parameters, arguments)                                  \
	GCR_OWN_AS(symbol, like);                                                               \
	CUresult gcr_own_##symbol parameters                                                    \
	{                                                                                       \
		__typeof__(like) *real = (__typeof__(like) *)gcr_entry_real(GCR_ENTRY(symbol)); \
		CUresult result;                                                                \
                                                                                                \
		if (!real)                                                                      \
			return CUDA_ERROR_NOT_FOUND;                                            \
		GCR_GATE_WHOLE(symbol);                                                         \
		gcr_hip_idle_let_pass();                                                        \
		result = real arguments;                                                        \
		if (result == CUDA_SUCCESS)                                                     \
			add(plain(stream, per_thread));                                         \
		return result;                                                                  \
	}
#define BEGIN_TO_GRAPH(symbol, per_thread)                                                        \
	BEGIN(symbol, cuStreamBeginCaptureToGraph, per_thread,                                    \
	      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,                   \
	       const CUgraphEdgeData *data, size_t dependencies_count, CUstreamCaptureMode mode), \
	      (stream, graph, dependencies, data, dependencies_count, mode))

#ifndef GCR_HIP
BEGIN(cuStreamBeginCapture, cuStreamBeginCapture, false, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, true, (CUstream stream), (stream))
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, true)

#define BEGIN_TO_CIG(symbol, per_thread)                     \
	BEGIN(symbol, cuStreamBeginCaptureToCig, per_thread, \
	      (CUstream stream, CUstreamCigCaptureParams * parameters), (stream, parameters))
#define BEGIN_AGAIN(symbol, per_thread)                                  \
	BEGIN(symbol, cuStreamBeginRecaptureToGraph, per_thread,         \
	      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, \
	       CUgraphRecaptureCallback function, void *data),           \
	      (stream, mode, graph, function, data))

BEGIN_TO_CIG(cuStreamBeginCaptureToCig, false)
BEGIN_TO_CIG(cuStreamBeginCaptureToCig_ptsz, true)
BEGIN_AGAIN(cuStreamBeginRecaptureToGraph, false)
BEGIN_AGAIN(cuStreamBeginRecaptureToGraph_ptsz, true)
#endif
BEGIN(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2, false,
      (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2, true,
      (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph, false)

/*
 * An entry is removed before the capture ends or the stream is destroyed: right after the driver's
 * call another thread may begin a capture in the same stream, or in a new one with the same handle.
 */

/*
 * Ends a capture by @real. After an error the entry is put back if the stream is still capturing:
 * ending a capture that was invalidated returns an error but ends it; ending one from the wrong
 * thread does not.
 */
static CUresult end(__typeof__(cuStreamEndCapture) *real, CUstream stream, bool per_thread,
		    CUgraph *graph)
{
	struct capture capture;
	bool was_known = take_out(plain(stream, per_thread), &capture);
	CUresult result = real(stream, graph);

	if (result != CUDA_SUCCESS && was_known && is_capturing(plain(stream, per_thread)))
		insert(&capture);
	return result;
}

#define END(symbol, per_thread)                                              \
	GCR_OWN_AS(symbol, cuStreamEndCapture);                              \
	CUresult gcr_own_##symbol(CUstream stream, CUgraph *graph)           \
	{                                                                    \
		__typeof__(cuStreamEndCapture) *real =                       \
			(__typeof__(real))gcr_entry_real(GCR_ENTRY(symbol)); \
                                                                             \
		if (!real)                                                   \
			return CUDA_ERROR_NOT_FOUND;                         \
		GCR_GATE_WHOLE(symbol);                                      \
		return end(real, stream, per_thread, graph);                 \
	}

END(cuStreamEndCapture, false)
END(cuStreamEndCapture_ptsz, true)

#ifndef GCR_HIP

static CUresult end_to_cig(__typeof__(cuStreamEndCaptureToCig) *real, CUstream stream,
			   bool per_thread)
{
	struct capture capture;
	bool was_known = take_out(plain(stream, per_thread), &capture);
	CUresult result = real(stream);

	if (result != CUDA_SUCCESS && was_known && is_capturing(plain(stream, per_thread)))
		insert(&capture);
	return result;
}

#define END_TO_CIG(symbol, per_thread)                                       \
	GCR_OWN_AS(symbol, cuStreamEndCaptureToCig);                         \
	CUresult gcr_own_##symbol(CUstream stream)                           \
	{                                                                    \
		__typeof__(cuStreamEndCaptureToCig) *real =                  \
			(__typeof__(real))gcr_entry_real(GCR_ENTRY(symbol)); \
                                                                             \
		if (!real)                                                   \
			return CUDA_ERROR_NOT_FOUND;                         \
		GCR_GATE_WHOLE(symbol);                                      \
		return end_to_cig(real, stream, per_thread);                 \
	}

END_TO_CIG(cuStreamEndCaptureToCig, false)
END_TO_CIG(cuStreamEndCaptureToCig_ptsz, true)

#endif

static CUresult destroy(__typeof__(cuStreamDestroy_v2) *real, CUstream stream)
{
	struct capture capture;
	bool was_known = take_out(stream, &capture);
	CUresult result;

	if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
		GCR_TELL(stream_gone, stream);
	result = real(stream);
	if (result != CUDA_SUCCESS && was_known)
		insert(&capture);
	return result;
}

#define DESTROY(symbol)                                         \
	GCR_OWN(symbol);                                        \
	CUresult gcr_own_##symbol(CUstream stream)              \
	{                                                       \
		__typeof__(symbol) *real = GCR_WRAPPED(symbol); \
                                                                \
		if (!real)                                      \
			return CUDA_ERROR_NOT_FOUND;            \
		GCR_GATE_WHOLE(symbol);                         \
		return destroy(real, stream);                   \
	}

#ifndef GCR_HIP
DESTROY(cuStreamDestroy)
#endif
DESTROY(cuStreamDestroy_v2)

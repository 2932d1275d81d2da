/* SPDX-License-Identifier: MIT */
/*
 * Host functions that the program gives the driver to run in stream order. Driver calls of such a
 * function pass a closing gate. Otherwise there would be a deadlock: the stream waits for the
 * function, the function for the gate, and the gate for the stream.
 */
#include <stdlib.h>

#include "backend/cuda/cuda_api_later.h"
#include "backend/preload/gate/capture.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/thread.h"
#include "lib/cleanup.h"

struct callback {
	CUhostFn host;
	CUstreamCallback stream;
	void *data;
};

/*
 * Marks the thread as one of the driver's. In CUDA only the driver's own threads run these
 * functions, so the mark stays. In HIP a thread of the program that waits for a stream may run
 * them, and counts as the driver's only while the function runs.
 */
static void run_begins(void)
{
#ifdef GCR_HIP
	gcr_thread.is_drivers++;
#else
	gcr_thread.is_drivers = 1;
#endif
}

static void run_ends(void)
{
#ifdef GCR_HIP
	/* 0 in a child that was forked inside the function. */
	if (gcr_thread.is_drivers)
		gcr_thread.is_drivers--;
#endif
}

static void run_host(void *argument)
{
	struct callback callback = *(struct callback *)argument;

	free(argument);
	run_begins();
	callback.host(callback.data);
	run_ends();
}

static void run_stream(CUstream stream, CUresult status, void *argument)
{
	struct callback callback = *(struct callback *)argument;

	free(argument);
	run_begins();
	callback.stream(stream, status, callback.data);
	run_ends();
}

/*
 * Makes the data with which run_host() or run_stream() calls the program's function; they free it.
 * NULL: pass the program's function on unchanged. This is so in a capture, where the function
 * becomes part of a graph, can be queried there, and may run any number of times. If the driver
 * call fails, the few bytes are not freed: the error may be that of an earlier call, and the
 * function may still run.
 */
static struct callback *make(CUstream stream, bool per_thread, struct callback what)
{
	struct callback *callback;

	if ((!what.host && !what.stream) || gcr_captures_has(stream, per_thread))
		return NULL;
	callback = malloc(sizeof(*callback));
	if (callback)
		*callback = what;
	return callback;
}

static CUresult launch(__typeof__(cuLaunchHostFunc) *real, bool per_thread, CUstream stream,
		       CUhostFn function, void *data)
{
	struct callback *callback =
		make(stream, per_thread, (struct callback){.host = function, .data = data});

	gcr_thread_submitted();
	return callback ? real(stream, run_host, callback) : real(stream, function, data);
}

static CUresult add(__typeof__(cuStreamAddCallback) *real, bool per_thread, CUstream stream,
		    CUstreamCallback function, void *data, unsigned int flags)
{
	struct callback *callback =
		make(stream, per_thread, (struct callback){.stream = function, .data = data});

	gcr_thread_submitted();
	return callback ? real(stream, run_stream, callback, flags)
			: real(stream, function, data, flags);
}

#define LAUNCH(symbol, per_thread)                                                \
	GCR_OWN_AS(symbol, cuLaunchHostFunc);                                     \
	CUresult gcr_own_##symbol(CUstream stream, CUhostFn function, void *data) \
	{                                                                         \
		__typeof__(cuLaunchHostFunc) *real =                              \
			(__typeof__(real))gcr_entry_real(GCR_ENTRY(symbol));      \
                                                                                  \
		if (!real)                                                        \
			return CUDA_ERROR_NOT_FOUND;                              \
		GCR_GATE(symbol);                                                 \
		return launch(real, per_thread, stream, function, data);          \
	}

#define ADD(symbol, per_thread)                                                           \
	GCR_OWN_AS(symbol, cuStreamAddCallback);                                          \
	CUresult gcr_own_##symbol(CUstream stream, CUstreamCallback function, void *data, \
				  unsigned int flags)                                     \
	{                                                                                 \
		__typeof__(cuStreamAddCallback) *real =                                   \
			(__typeof__(real))gcr_entry_real(GCR_ENTRY(symbol));              \
                                                                                          \
		if (!real)                                                                \
			return CUDA_ERROR_NOT_FOUND;                                      \
		GCR_GATE(symbol);                                                         \
		return add(real, per_thread, stream, function, data, flags);              \
	}

LAUNCH(cuLaunchHostFunc, false)
LAUNCH(cuLaunchHostFunc_ptsz, true)
ADD(cuStreamAddCallback, false)
ADD(cuStreamAddCallback_ptsz, true)

#ifndef GCR_HIP

#define LAUNCH_V2(symbol, per_thread)                                               \
	GCR_OWN_AS(symbol, cuLaunchHostFunc_v2);                                    \
	CUresult gcr_own_##symbol(CUstream stream, CUhostFn function, void *data,   \
				  unsigned int mode)                                \
	{                                                                           \
		__typeof__(cuLaunchHostFunc_v2) *real =                             \
			(__typeof__(real))gcr_entry_real(GCR_ENTRY(symbol));        \
		struct callback *callback;                                          \
                                                                                    \
		if (!real)                                                          \
			return CUDA_ERROR_NOT_FOUND;                                \
		GCR_GATE(symbol);                                                   \
		callback = make(stream, per_thread,                                 \
				(struct callback){.host = function, .data = data}); \
		gcr_thread_submitted();                                             \
		return callback ? real(stream, run_host, callback, mode)            \
				: real(stream, function, data, mode);               \
	}

LAUNCH_V2(cuLaunchHostFunc_v2, false)
LAUNCH_V2(cuLaunchHostFunc_v2_ptsz, true)

#endif

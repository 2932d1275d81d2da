/* SPDX-License-Identifier: MIT */
/*
 * Listeners: a file that has news calls all functions of a list by the list's name, and does not
 * know the files that they are in. A function enters the list at link time: no code has to run for
 * it, which could come too late in a library that is called before its constructors. The order of
 * the calls is not defined, so no listener may rely on what another one has done.
 *
 *	GCR_LISTEN(fork, gcr_pools_forget);		in the file of the function
 *	GCR_TELL(fork);					calls each listener, without arguments
 *	GCR_TELL(context_gone, context);
 */
#ifndef GCR_PRELOAD_LISTENER_H
#define GCR_PRELOAD_LISTENER_H

#include "backend/cuda/cuda_api.h"

/*
 * Told in the child of a fork, before any other code of the library: drop the state, which is the
 * parent's. Async-signal-safe: another thread of the parent may have held any lock. Descriptors are
 * closed; memory is not freed.
 */
typedef void gcr_listener_fork(void);

/*
 * Told when a context was destroyed or reset, and everything made in it is gone. Called inside the
 * gate.
 */
typedef void gcr_listener_context_gone(CUcontext context);

/*
 * Told when a green context is about to be destroyed, which can fail, and when it was. Memory that
 * was allocated in it belongs to the primary context and stays. At the second call another context
 * may have got this handle already, so a listener marks at the first call which of its records go.
 */
typedef void gcr_listener_green_going(CUcontext context);
typedef void gcr_listener_green_gone(CUcontext context);

/*
 * The primary context of @device was destroyed or reset, or was found to be gone. Called with
 * gcr_context_primary_lock(), or with the gate closed. Told before gcr_listener_context_gone().
 */
typedef void gcr_listener_primary_gone(CUdevice device);

/* Told when a stream of the program's own is about to be destroyed. Called inside the gate. */
typedef void gcr_listener_stream_gone(CUstream stream);

/* HIP only: the first call that passes the gate; told once, before it passes. Keeps errno. */
typedef void gcr_listener_first_call(void);

/* The driver has been initialised. May be told again. */
typedef void gcr_listener_start(void);

#define GCR_LISTEN(news, function)                                   \
	static gcr_listener_##news *const listen_##news##_##function \
		__attribute__((used, section("gcr_listen_" #news))) = function

#define GCR_TELL(news, ...)                                                            \
	do {                                                                           \
		for (gcr_listener_##news *const *listener = __start_gcr_listen_##news; \
		     listener < __stop_gcr_listen_##news; listener++)                  \
			(*listener)(__VA_ARGS__);                                      \
	} while (0)

/*
 * The linker defines the start and the end of a section with such a name. Weak: a library may have
 * no listener of some list.
 */
#define GCR_LISTENERS(news)                                           \
	extern gcr_listener_##news *const __start_gcr_listen_##news[] \
		__attribute__((visibility("hidden"), weak));          \
	extern gcr_listener_##news *const __stop_gcr_listen_##news[]  \
		__attribute__((visibility("hidden"), weak))

GCR_LISTENERS(fork);
GCR_LISTENERS(context_gone);
GCR_LISTENERS(green_going);
GCR_LISTENERS(green_gone);
GCR_LISTENERS(primary_gone);
GCR_LISTENERS(stream_gone);
GCR_LISTENERS(first_call);
GCR_LISTENERS(start);

#endif

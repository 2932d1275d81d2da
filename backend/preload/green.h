/* SPDX-License-Identifier: MIT */
/*
 * The program's green contexts: each has a part of a GPU's SMs and streams of its own, while all
 * that is made in it belongs to the primary context, which it keeps. With GCR_HIP there are none.
 */
#ifndef GCR_PRELOAD_GREEN_H
#define GCR_PRELOAD_GREEN_H

#include <stdbool.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/context.h"
#include "backend/preload/entry_points.h"
#include "lib/error.h"

#ifdef GCR_HIP

static inline CUcontext gcr_green_owner(CUcontext context)
{
	return context;
}

static inline void gcr_greens_forget(void)
{
}

#else

/* The primary context behind @context if that is a green one's (cuCtxFromGreenCtx), else itself. */
CUcontext gcr_green_owner(CUcontext context);

/* Is there one that belongs to this primary context? */
bool gcr_green_is_owner(CUcontext context);

/*
 * For the agent, with the gate closed: wait until the work of every green context is done, and what
 * is left of those that are destroyed. Returns as gcr_contexts_wait() does.
 */
int gcr_greens_wait(gcr_pause *pause, void *patience, struct gcr_error *error);

/*
 * The primary context of the device has gone or was reset. Whether the driver still knows a green
 * one that was left in it is not documented: the process is `driver`'s from there on.
 */
void gcr_greens_primary_gone(CUdevice device);

/* In the child of a fork. */
void gcr_greens_forget(void);

#endif

/* cuCtxGetCurrent(), but for a green context its owner. */
static inline CUresult gcr_green_current_owner(CUcontext *ret_context)
{
	CUcontext context = NULL;
	CUresult result = GCR_REAL(cuCtxGetCurrent)(&context);

	if (result == CUDA_SUCCESS)
		*ret_context = gcr_green_owner(context);
	return result;
}

#endif

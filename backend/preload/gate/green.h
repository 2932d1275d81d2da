/* SPDX-License-Identifier: MIT */
/*
 * The program's green contexts. A green context has a part of a GPU's SMs and its own streams, but
 * everything made in it belongs to the primary context, which it keeps alive. HIP has none.
 */
#ifndef GCR_PRELOAD_GREEN_H
#define GCR_PRELOAD_GREEN_H

#include <stdbool.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/gate/context.h"
#include "backend/preload/driver/entry_points.h"
#include "lib/error.h"

#ifdef GCR_HIP

static inline CUcontext gcr_green_owner(CUcontext context)
{
	return context;
}

#else

/* For a green context (cuCtxFromGreenCtx): returns the primary context behind it. Else @context. */
CUcontext gcr_green_owner(CUcontext context);

/* Does the program have a green context that belongs to this primary context? */
bool gcr_green_is_owner(CUcontext context);

/*
 * For the agent, with the gate closed: waits until the work of every green context is done,
 * including work left by destroyed ones. Returns as gcr_contexts_wait() does.
 */
int gcr_greens_wait(gcr_pause *pause, void *patience, struct gcr_error *error);

#endif

/* As cuCtxGetCurrent(), but returns the owner of a green context instead of the green context. */
static inline CUresult gcr_green_current_owner(CUcontext *ret_context)
{
	CUcontext context = NULL;
	CUresult result = GCR_REAL(cuCtxGetCurrent)(&context);

	if (result == CUDA_SUCCESS)
		*ret_context = gcr_green_owner(context);
	return result;
}

#endif

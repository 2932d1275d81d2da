/* SPDX-License-Identifier: MIT */
/*
 * The stacks of the program's kernels while its memory is out. They are VRAM of each context, of
 * the size of its stack limit, and most of what the driver checkpoints. For the agent, with the
 * gate closed and the GPU idle: so the program never sees a limit that it did not set.
 */
#ifndef GCR_PRELOAD_LIMIT_H
#define GCR_PRELOAD_LIMIT_H

#include "lib/error.h"

#ifdef GCR_HIP

/* The memory for kernels' stacks belongs to the queues, which stay on the GPU. */
static inline void gcr_limits_shrink(void)
{
}

static inline int gcr_limits_restore(struct gcr_error *error)
{
	return 0;
}

#else

/*
 * Sets the stack limit of every context to 0 and remembers the old one. A context that refuses
 * keeps its limit, and so does a primary context while green contexts of it exist.
 */
void gcr_limits_shrink(void);

/*
 * Sets each limit back to exactly its old value; contexts that were destroyed in between are
 * forgotten. -ENOMEM: the GPU has no room for the stacks; -EIO. Limits that are not restored yet
 * stay remembered, so the call can be repeated.
 */
int gcr_limits_restore(struct gcr_error *error);

#endif
#endif

/* SPDX-License-Identifier: MIT */
/*
 * The stacks of the program's kernels, while its memory is out: VRAM of each context, as much as
 * its stack limit says, and most of what the driver checkpoints. For the agent, with the gate
 * closed and the GPU idle: so the program never sees the limit that is not its own.
 */
#ifndef GCR_PRELOAD_LIMIT_H
#define GCR_PRELOAD_LIMIT_H

#include "lib/error.h"

#ifdef GCR_HIP

/* What kernels need for their stacks belongs to the queues, which stay on the GPU. */
static inline void gcr_limits_shrink(void)
{
}

static inline int gcr_limits_restore(struct gcr_error *error)
{
	return 0;
}

static inline void gcr_limits_forget(void)
{
}

#else

/*
 * Set the stack limit of every context to 0 and remember what it was. A context that will not have
 * that stays as it is, and a primary one while there are green ones of it.
 */
void gcr_limits_shrink(void);

/*
 * Set each back to exactly what it was; contexts that have gone meanwhile are forgotten. -ENOMEM:
 * the GPU has no room for it; -EIO. What is not back yet is still remembered: call again.
 */
int gcr_limits_restore(struct gcr_error *error);

/* In the child of a fork. */
void gcr_limits_forget(void);

#endif
#endif

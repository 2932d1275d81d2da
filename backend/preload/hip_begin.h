/* SPDX-License-Identifier: MIT */
/* HIP initialises itself at the first call that needs it, and the library wakes up with it. */
#ifndef GCR_PRELOAD_HIP_BEGIN_H
#define GCR_PRELOAD_HIP_BEGIN_H

/*
 * Before a call that passes the gate: initialise HIP, if nobody has yet. In the child of a fork of
 * a program that has, HIP is of no use, and so are we.
 */
#ifdef GCR_HIP
void gcr_hip_begin(void);
#else
static inline void gcr_hip_begin(void)
{
}
#endif

#endif

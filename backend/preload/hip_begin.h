/* SPDX-License-Identifier: MIT */
/* HIP initialises itself at the first call that needs it, and the library wakes up with it. */
#ifndef GCR_PRELOAD_HIP_BEGIN_H
#define GCR_PRELOAD_HIP_BEGIN_H

#include <stdbool.h>

/*
 * Before a call that passes the gate: initialise HIP, if nobody has yet. In the child of a fork of
 * a program that has, HIP is of no use, and so are we. False: HIP cannot be used, as in a program
 * for another vendor's GPU that has been built for HIP too, and the call need not pass the gate.
 */
#ifdef GCR_HIP
bool gcr_hip_begin(void);
#else
static inline bool gcr_hip_begin(void)
{
	return true;
}
#endif

#endif

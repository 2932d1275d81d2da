/* SPDX-License-Identifier: MIT */
/* HIP initialises itself at the first call that needs it, and the library starts with it. */
#ifndef GCR_PRELOAD_HIP_BEGIN_H
#define GCR_PRELOAD_HIP_BEGIN_H

#include <stdbool.h>

/*
 * Called before a call passes the gate: initialises HIP if that has not been tried yet. Returns
 * false if HIP cannot be used, as in a program that was built for HIP too but runs on another
 * vendor's GPU; then the call need not pass the gate. In the child of a fork of a program that has
 * initialised HIP nothing is done: neither HIP nor the library can work there.
 */
#ifdef GCR_HIP
bool gcr_hip_begin(void);

/* Notes whether the last attempt to initialise HIP has failed. */
void gcr_hip_set_failed(bool failed);
#else
static inline bool gcr_hip_begin(void)
{
	return true;
}
#endif

#endif

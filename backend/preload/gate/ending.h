/* SPDX-License-Identifier: MIT */
/*
 * The end of the program. Once the driver's exit handler has run, the driver answers
 * CUDA_ERROR_DEINITIALIZED to every call: the program's memory can be neither taken nor given back,
 * and its gate must not close again. A frozen program that reaches exit(3) waits at the gate before
 * that point, and continues to exit after the thaw.
 */
#ifndef GCR_PRELOAD_ENDING_H
#define GCR_PRELOAD_ENDING_H

#include <stdbool.h>

/*
 * Called when the driver has been initialised, and when it has made its first context: registers an
 * exit handler that runs before the driver's own. May be called any number of times.
 */
void gcr_ending_expect(void);
void gcr_ending_expect_context(void);

/* Notes that exit(3) has begun, or that the driver reports the program's end. Irreversible. */
void gcr_ending_begin(void);
bool gcr_is_ending(void);

#endif

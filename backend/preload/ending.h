/* SPDX-License-Identifier: MIT */
/*
 * The end of the program. From its exit handler on the driver answers CUDA_ERROR_DEINITIALIZED to
 * every call: nothing can be taken from such a program or given back to it, and its gate must not
 * close again. A program that is frozen when it comes to exit(3) waits at the gate before that, and
 * goes on ending when it has been thawed.
 */
#ifndef GCR_PRELOAD_ENDING_H
#define GCR_PRELOAD_ENDING_H

#include <stdbool.h>

/*
 * The driver has just been initialised, or has made its first context: from now on the program's
 * exit is noticed before the driver's own exit handler runs. May be called again and again.
 */
void gcr_ending_expect(void);
void gcr_ending_expect_context(void);

/* It is ending: exit(3) has begun, or the driver says so. There is no way back. */
void gcr_ending_begin(void);
bool gcr_is_ending(void);

/* In the child of a fork. */
void gcr_ending_forget(void);

#endif

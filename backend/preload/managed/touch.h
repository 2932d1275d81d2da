/* SPDX-License-Identifier: MIT */
/*
 * Which pages of managed memory the CPU may have written to. The CPU cannot write to a page that it
 * has not mapped; a page that a GPU has taken is not mapped (proc_pid_pagemap(5)), and comes back
 * by a page fault of the thread that touches it.
 */
#ifndef GCR_PRELOAD_TOUCH_H
#define GCR_PRELOAD_TOUCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GCR_TOUCH_PAGE_BYTES 4096ull

/* Call before the other functions. Pages whose state cannot be read then count as mapped. */
void gcr_touch_begin(void);
void gcr_touch_end(void);

/* Number of page faults of the process, without those of this thread. */
uint64_t gcr_touch_faults(void);

/* Has the CPU any page of the range mapped? */
bool gcr_touch_is_mapped(uintptr_t start, size_t bytes);

/*
 * Finds the next pages from *@start on that the CPU has mapped, as a range cut to [*@start, @end)
 * and to @most bytes; sets *@start. False if there are none. Allocates nothing and takes no lock.
 */
bool gcr_touch_next(uintptr_t *start, uintptr_t end, size_t most, size_t *ret_bytes);

#endif

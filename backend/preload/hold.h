/* SPDX-License-Identifier: MIT */
/*
 * Holding addresses whose memory is out: nobody else can get them, and a thread that touches one,
 * in the kernel too, sleeps until there is memory again (userfaultfd(2)). One thread at a time, the
 * agent's.
 */
#ifndef GCR_PRELOAD_HOLD_H
#define GCR_PRELOAD_HOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"

struct gcr_hold_range {
	uintptr_t start;
	size_t bytes;
};

/*
 * From here to gcr_hold_pause() ranges can be held. -EOPNOTSUPP with words: the privilege is
 * missing. What is held stays so when paused.
 */
int gcr_hold_begin(struct gcr_error *error);
void gcr_hold_pause(void);

/*
 * From here on whoever touches a held page gets it instead of sleeping, also who sleeps already, as
 * @read_page fills it (a thread of ours calls it; -errno: that one sleeps on). A thread that sleeps
 * in a system call can be stopped no other way. NULL: as before; what was given stays.
 */
#define GCR_HOLD_PAGE_BYTES 4096ull
void gcr_hold_serve(int (*read_page)(uintptr_t page, void *data));

/*
 * A thread has touched what is held, and sleeps. While that is not so and nobody reads reports,
 * what becomes readable then, else -1. It stays so until gcr_hold_end().
 */
bool gcr_hold_is_touched(void);
int gcr_hold_touch_fd(void);

/* Hold the pages of [start, start + bytes) instead of what is mapped there, in one step. -errno. */
int gcr_hold(uintptr_t start, size_t bytes);

/*
 * The same in steps. Room to note @count more holds (-ENOMEM); memory that holds nothing yet,
 * to be given back by munmap(2), NULL if there is none; and its move to where it holds, -errno,
 * after which it is not the caller's any more. The last one allocates nothing and takes no lock.
 */
int gcr_hold_expect(size_t count);
void *gcr_hold_make(size_t bytes);
int gcr_hold_place(void *memory, uintptr_t start, size_t bytes);

/* Something else has been mapped over the range: it is not held any more. */
void gcr_hold_replaced(uintptr_t start, size_t bytes);

/* Is all of the range held? */
bool gcr_hold_covers(uintptr_t start, size_t bytes);

/* The lowest range that is still held, as long as there is one. */
bool gcr_hold_first(struct gcr_hold_range *ret_range);

/* Nothing is held any more: those who sleep try again. */
void gcr_hold_end(void);

/* In the child of a fork. */
void gcr_hold_forget(void);

#endif

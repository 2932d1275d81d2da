/* SPDX-License-Identifier: MIT */
/*
 * Holding addresses whose memory is out of the process. No other mapping can be made at a held
 * address, and a thread that touches one, also in a system call, sleeps until there is memory again
 * (userfaultfd(2)). Used by one thread at a time, the agent.
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
 * From gcr_hold_begin() to gcr_hold_pause() new ranges can be held; ranges that are held stay so
 * after the pause. Errors, with a message: -EOPNOTSUPP: the process lacks the privilege; -EIO: the
 * program has closed a descriptor of ours; -ENOMEM, ...
 */
int gcr_hold_begin(struct gcr_error *error);
void gcr_hold_pause(void);

/*
 * From this call on a thread that touches a held page, or already sleeps on one, gets the page as
 * @read_page fills it, instead of sleeping. A thread of the library calls @read_page; on -errno the
 * touching thread continues to sleep. The daemon cannot stop a thread that sleeps in a system call
 * in any other way. NULL ends this; pages that were given stay.
 */
#define GCR_HOLD_PAGE_BYTES 4096ull
void gcr_hold_serve(int (*read_page)(uintptr_t page, void *data));

/*
 * gcr_hold_is_touched(): has a thread touched a held page, and sleeps? Once true, the result stays
 * so until gcr_hold_end(). gcr_hold_touch_fd(): while the result is false and no thread of the
 * library reads the kernel's reports, a descriptor that becomes readable at the first touch;
 * otherwise -1.
 */
bool gcr_hold_is_touched(void);
int gcr_hold_touch_fd(void);

/* Replaces the mapping of [start, start + bytes) by held pages, in one step. -errno. */
int gcr_hold(uintptr_t start, size_t bytes);

/*
 * The same in steps. gcr_hold_expect() makes room to note @count more holds (-ENOMEM).
 * gcr_hold_make() returns memory that does not hold an address yet (the caller's, to be freed by
 * munmap(2)), or NULL. gcr_hold_place() moves that memory to the address to be held and takes
 * ownership of it; -errno. gcr_hold_place() allocates nothing and takes no lock.
 */
int gcr_hold_expect(size_t count);
void *gcr_hold_make(size_t bytes);
int gcr_hold_place(void *memory, uintptr_t start, size_t bytes);

/*
 * Takes the pages away that threads got in a held range (see gcr_hold_serve()); the range stays
 * held. Needs no memory, unless the program has locked such a page. -EBADF: the program has closed
 * a descriptor of ours; -ENOMEM, ...: some of the pages may be away.
 */
int gcr_hold_empty(uintptr_t start, size_t bytes);

/* Notes that another mapping has replaced the range: the range is not held any more. */
void gcr_hold_replaced(uintptr_t start, size_t bytes);

/* Is the whole range held? */
bool gcr_hold_covers(uintptr_t start, size_t bytes);

/* Returns the lowest held range; false if no range is held. */
bool gcr_hold_first(struct gcr_hold_range *ret_range);

/* Ends all holds. Threads that sleep repeat their access. */
void gcr_hold_end(void);

#endif

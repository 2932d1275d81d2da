/* SPDX-License-Identifier: MIT */
/*
 * The program's device memory that can be handed over: what cuMemAlloc and its family return is
 * made with the virtual memory functions, and what the program makes with those itself joins in.
 * The second half is the agent's: it is called with the gate closed and the GPU idle, never while
 * the driver has the process locked, and the table does not change meanwhile.
 */
#ifndef GCR_PRELOAD_MEMORY_H
#define GCR_PRELOAD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/error.h"
#include "lib/protocol.h"

/*
 * Is memory made so that it can be handed over? Not if GPUCR_PRELOAD_VMM=0 says so. The page's
 * GCR_PAGE_VMM is for who makes the page.
 */
bool gcr_memory_converts(void);

/*
 * Append the DEVICE extents, ordered by GPU, to @extents (at most @room of them; NULL with 0 to
 * count). Returns how many there are, or -ENOMEM. The order stands until the gate opens. Safe at
 * any time.
 */
ssize_t gcr_memory_describe(struct gcr_extent *extents, size_t room);

/*
 * Descriptors for the extents [first, first + count): exported now if the program made the handle,
 * else those kept since they were imported. They stay the table's; send duplicates by SCM_RIGHTS.
 * Errors, with words: -EMFILE (also if they cannot be put at high numbers), -EIO.
 */
int gcr_memory_export(size_t first, size_t count, int *ret_fds, struct gcr_error *error);

/*
 * Unmap and release all extents; their address ranges stay reserved. On failure what was unmapped
 * is mapped again; -EIO, or -ENOTRECOVERABLE if even that failed.
 */
int gcr_memory_unmap(struct gcr_error *error);

/* Undo gcr_memory_unmap() from the kept descriptors, and close those not needed any more. */
int gcr_memory_take_back(struct gcr_error *error);

/* Close the kept descriptors: from here on the bytes are in the store only. Calls no driver. */
void gcr_memory_commit(void);

/*
 * Import and map the extents [first, first + count); takes the descriptors, also on failure (they
 * are kept, at high numbers, closed in forked children: an imported handle cannot be exported). One
 * that has been taken is -1 in @fds: a child of fork(2) closes those that are left there.
 */
int gcr_memory_receive(size_t first, size_t count, int *fds, struct gcr_error *error);

/* Is every extent mapped again? If not, words say which is not. */
bool gcr_memory_complete(struct gcr_error *error);

/* Undo all gcr_memory_receive() calls since the commit: unmap, release, close. */
int gcr_memory_let_go(struct gcr_error *error);

/* In the child of a fork: close every descriptor, forget the table. */
void gcr_memory_forget(void);

/* A context has been destroyed or reset, and with it the memory allocated in it. */
void gcr_memory_context_gone(void *context);

/* Is the pointer ours (memory or managed)? For others' wrappers: cuMemFree asks the table first. */
bool gcr_memory_owns(unsigned long long address);

#endif

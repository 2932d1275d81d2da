/* SPDX-License-Identifier: MIT */
/*
 * The program's device memory that can be handed over: the library makes the memory of cuMemAlloc
 * and its family with the virtual memory functions, and adds the memory that the program makes with
 * those functions itself. The functions from gcr_memory_export() to gcr_memory_let_go() are the
 * agent's: they are called with the gate closed and the GPU idle, never while the driver has the
 * process locked, and the table does not change during a call.
 */
#ifndef GCR_PRELOAD_MEMORY_H
#define GCR_PRELOAD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/error.h"
#include "lib/protocol.h"

/*
 * Fills in the DEVICE extents, ordered by GPU (at most @room of them; NULL with 0 to count).
 * Returns their total number, or -ENOMEM. The order stays the same until the gate opens. Safe at
 * any time.
 */
ssize_t gcr_memory_describe(struct gcr_extent *extents, size_t room);

/*
 * Returns descriptors for the extents [first, first + count): exported now if the program made the
 * handle, else those kept since the import. The table owns them; send duplicates by SCM_RIGHTS.
 * Errors, with a message: -EMFILE (also if the descriptors cannot be moved to high numbers), -EIO.
 */
int gcr_memory_export(size_t first, size_t count, int *ret_fds, struct gcr_error *error);

/*
 * Unmaps and releases all extents; their address ranges stay reserved. On failure the extents are
 * mapped again; -EIO, or -ENOTRECOVERABLE if even that failed.
 */
int gcr_memory_unmap(struct gcr_error *error);

/* Undoes gcr_memory_unmap() from the kept descriptors, and closes those not needed any more. */
int gcr_memory_take_back(struct gcr_error *error);

/* Closes the kept descriptors: from here on only the store has the bytes. Calls no driver. */
void gcr_memory_commit(void);

/*
 * Imports and maps the extents [first, first + count). Takes the descriptors, also on failure (they
 * are kept at high numbers and closed in forked children: an imported handle cannot be exported).
 * Each descriptor that was taken is set to -1 in @fds: a child of fork(2) closes those that are
 * left there.
 */
int gcr_memory_receive(size_t first, size_t count, int *fds, struct gcr_error *error);

/*
 * Is every extent mapped again? On AMD GPUs the function then also gives access to the mappings
 * that waited for it. False, with a message: an extent is missing, access was refused, or there is
 * no memory.
 */
bool gcr_memory_complete(struct gcr_error *error);

/*
 * Undoes all gcr_memory_receive() calls since the commit: unmaps and releases the memory, and
 * closes its descriptors. -EIO, with a message: the other pieces are released all the same.
 */
int gcr_memory_let_go(struct gcr_error *error);

#endif

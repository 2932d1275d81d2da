/* SPDX-License-Identifier: MIT */
/*
 * Managed memory (cuMemAllocManaged): the driver refuses to checkpoint a process that has any. So
 * the agent writes its contents into files, frees it, holds the addresses, and makes it anew on
 * thaw. As memory.h: the agent's functions are called with the gate closed and the GPU idle.
 */
#ifndef GCR_PRELOAD_MANAGED_H
#define GCR_PRELOAD_MANAGED_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/error.h"
#include "lib/protocol.h"

/* As gcr_memory_describe(), for MANAGED extents. */
size_t gcr_managed_describe(struct gcr_extent *extents, size_t room);

/*
 * The files of extents [first, first + count) of the managed part of the table; takes the
 * descriptors and keeps them, at high numbers, until the gate opens or gcr_managed_forget().
 * Before TAKE_BACK and SETTLE they may be given anew.
 */
int gcr_managed_files(size_t first, size_t count, const int *fds, struct gcr_error *error);

/* The gate opens: they are not needed any more. */
void gcr_managed_close_files(void);

/*
 * All contents into the files, then all freed and the addresses held, after a trial has shown that
 * they can be had again. A CPU thread that touches a held address sleeps until it is back. On
 * failure all is as it was (-EOPNOTSUPP with the reason, -EIO), or -ENOTRECOVERABLE.
 */
int gcr_managed_out(struct gcr_error *error);

/*
 * All allocated again at the old addresses, contents, advice and attachment as before; then those
 * who sleep go on. On failure (-EADDRNOTAVAIL, -ENOMEM, -EIO) the addresses are held again, or
 * -ENOTRECOVERABLE. Nothing to do if nothing is out.
 */
int gcr_managed_in(struct gcr_error *error);

/* cuMemFree of @address, if it is managed memory that we know; false: it is not. */
bool gcr_managed_free(unsigned long long address, int *ret_result);

/* Is the pointer in managed memory that we know? */
bool gcr_managed_owns(unsigned long long address);

/* What was attached to a stream that has been destroyed. */
void gcr_managed_stream_gone(void *stream);

/* What was made in a context that has gone. */
void gcr_managed_context_gone(void *context);

/* In the child of a fork. */
void gcr_managed_forget(void);

#endif

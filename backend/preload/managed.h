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
ssize_t gcr_managed_describe(struct gcr_extent *extents, size_t room);

/*
 * The files of extents [first, first + count) of the managed part of the table; takes the
 * descriptors as gcr_memory_receive() does, and keeps them, at high numbers, until the gate opens
 * or gcr_managed_forget(). The daemon may send them once more before TAKE_BACK and SETTLE.
 */
int gcr_managed_files(size_t first, size_t count, int *fds, struct gcr_error *error);

/* The gate opens: they are not needed any more. */
void gcr_managed_close_files(void);

/*
 * All contents into the files, and a trial that shows that the memory can be had again; the
 * program's threads run. -EOPNOTSUPP with the reason, -EIO, -ENOSPC and so on: nothing has
 * happened. Done again, it begins anew.
 */
int gcr_managed_save(struct gcr_error *error);

/*
 * What has changed since into the files, and all addresses held: a CPU thread that touches one
 * sleeps until the memory is back. The program's threads are stopped, anywhere; no lock is taken
 * and no memory allocated. On failure nothing is held, or gcr_managed_is_held(), and then
 * gcr_managed_in() is the way back. -ENOTRECOVERABLE: they were not stopped to the end.
 */
int gcr_managed_hold(struct gcr_error *error);
bool gcr_managed_is_held(void);

/* What has been saved is not held after all; nothing, if it is. */
void gcr_managed_cancel(void);

/*
 * All freed, after the two above. -EINVAL: it is not held. On other failures (-EIO) it is held as
 * before, and gcr_managed_in() is the way back.
 */
int gcr_managed_out(struct gcr_error *error);

/*
 * Make ready for gcr_managed_in(). It blocks while another thread holds a lock of malloc(3), of the
 * dynamic linker, of pthread_create(3) or of the table. From here on threads get the pages that
 * they touch, so that they can be stopped: the files have to stay as they are until
 * gcr_managed_in() or gcr_managed_unprepare(), after which threads sleep again.
 */
int gcr_managed_prepare(struct gcr_error *error);
void gcr_managed_unprepare(void);

/*
 * All allocated again at the old addresses, contents, advice and attachment as before; then those
 * who sleep go on. The program's threads are stopped, else it is -EBUSY and nothing has happened.
 * On failure (-EADDRNOTAVAIL, -ENOMEM, -EIO) the addresses are held again, or -ENOTRECOVERABLE.
 * Nothing to do if nothing is out.
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

/* SPDX-License-Identifier: MIT */
/*
 * Managed memory (cuMemAllocManaged): the driver refuses to checkpoint a process that has any. So
 * the agent writes its contents into files, frees it, holds the addresses, and allocates it again
 * on thaw. As in memory.h, the agent's functions are called with the gate closed and the GPU idle.
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
 * Receives the files of extents [first, first + count) of the managed part of the table. Takes the
 * descriptors as gcr_memory_receive() does and keeps them, at high numbers, until the gate opens.
 * The daemon may send them again before TAKE_BACK and FINISH. -EIO: the program has closed an
 * earlier file, and the new one lacks what the program's threads wrote into that.
 */
int gcr_managed_files(size_t first, size_t count, int *fds, struct gcr_error *error);

/* The gate opens: close the files. */
void gcr_managed_close_files(void);

/*
 * Writes all contents into the files, and shows by a trial that the memory can be allocated again
 * at its addresses; the program's threads keep running. -EOPNOTSUPP with the reason, -EIO, -ENOSPC
 * and so on: nothing has changed. A second call starts from the beginning.
 */
int gcr_managed_save(struct gcr_error *error);

/*
 * Writes the bytes that have changed since gcr_managed_save() to the files, and holds all
 * addresses: a CPU thread that touches one sleeps until the memory is back. The program's threads
 * are stopped at arbitrary places, so this takes no lock and allocates no memory. On failure either
 * nothing is held, or gcr_managed_is_held() is true and gcr_managed_in() rolls back.
 * -ENOTRECOVERABLE: the threads did not stay stopped until the end.
 */
int gcr_managed_hold(struct gcr_error *error);
bool gcr_managed_is_held(void);

/* Forgets what gcr_managed_save() has prepared; does nothing if the memory is already held. */
void gcr_managed_cancel(void);

/*
 * Frees all managed memory, after gcr_managed_save() and gcr_managed_hold(). -EINVAL: the memory is
 * not held. On other failures (-EIO) it is held as before, and gcr_managed_in() rolls back.
 */
int gcr_managed_out(struct gcr_error *error);

/*
 * Prepares for gcr_managed_in(). Blocks while another thread holds a lock of malloc(3), of the
 * dynamic linker, of pthread_create(3) or of the table. From here on, threads get the pages that
 * they touch, so that they can be stopped. The files must not change until gcr_managed_in() or
 * gcr_managed_unprepare(), after which threads sleep again. -EIO: a write may be missing in the
 * files, and the memory stays out for ever; or the program has closed a descriptor of ours.
 */
int gcr_managed_prepare(struct gcr_error *error);
void gcr_managed_unprepare(void);

/*
 * Allocates all managed memory again at the old addresses, with the same contents, advice and
 * attachment; then wakes the threads that sleep. The program's threads must be stopped, else -EBUSY
 * and nothing has changed. On failure (-EADDRNOTAVAIL, -ENOMEM, -EIO) the addresses are held again,
 * or -ENOTRECOVERABLE is returned. Does nothing if no memory is out.
 */
int gcr_managed_in(struct gcr_error *error);

/* cuMemFree of @address. Returns false if it is not managed memory known to the library. */
bool gcr_managed_free(unsigned long long address, int *ret_result);

/* Is the pointer in managed memory known to the library? */
bool gcr_managed_owns(unsigned long long address);

#endif

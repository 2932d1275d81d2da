/* SPDX-License-Identifier: MIT */
/*
 * Managed memory on its way between a program's library and the store. The library reads and writes
 * files by itself, and may keep their descriptors for ever, write past their end, or after all is
 * over. So no file of the store is handed to it: the files here are on a tmpfs that nobody else
 * sees, as large as what the program has, and the daemon copies between them and the store.
 *
 * Where the store is a directory of /dev/shm, in which every user may write anyway, the files are
 * the store's own, and nothing is copied.
 *
 * Of one task, on its thread. A copy of what is in transit takes memory of the host for a moment:
 * on the way out until the program has been told that all is in the store.
 */
#ifndef GCR_FS_ENGINE_TRANSIT_H
#define GCR_FS_ENGINE_TRANSIT_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/store/store.h"
#include "lib/error.h"

struct gcr_transit;

enum gcr_transit_way {
	GCR_TRANSIT_OUT, /* from the program to the store */
	GCR_TRANSIT_IN,
};

/*
 * Empty files for the extents of @snapshot from @first on, for a process of @uid. With @way,
 * whether the host has the memory: what is in transit is in memory twice. -EBUSY: its user holds up
 * too many earlier ones; -ENOMEM, -EMFILE, ..., with words.
 */
int gcr_transit_create(struct gcr_snapshot *snapshot, size_t first, uid_t uid,
		       enum gcr_transit_way way, struct gcr_transit **ret_transit,
		       struct gcr_error *error);

/* Its file of the snapshot's extent @index, for reading and writing; the caller's. -errno. */
int gcr_transit_open(const struct gcr_transit *transit, size_t index);

/*
 * Copy everything to the other side, on threads; one copy at a time. GCR_TRANSIT_IN: before the
 * library has any of the files. GCR_TRANSIT_OUT: what it writes meanwhile may be copied or not.
 * -ENOMEM, -EAGAIN: there are no threads.
 */
int gcr_transit_begin(struct gcr_transit *transit, enum gcr_transit_way way);
/*
 * Wait for it; 0 if none has begun. It is asked now and then whether the copy is to be given up
 * (NULL: it is not): -ECANCELED. -EIO: a file is too short, -ENOSPC, ..., with words.
 */
int gcr_transit_end(struct gcr_transit *transit, bool (*is_to_stop)(void *data), void *data,
		    struct gcr_error *error);

/* A copy that is under way ends early. */
void gcr_transit_stop(struct gcr_transit *transit);

/* Are there files that are not the store's, for this one's? */
bool gcr_transit_is_apart(const struct gcr_snapshot *snapshot);

/*
 * @keeps: a library may yet need what the files have, and keeps them open. Else files that are open
 * are cut to nothing soon (fs/engine/emptying.h), so that no memory stays in them; who reads one
 * then finds it too short. NULL: there is none.
 */
void gcr_transit_destroy(struct gcr_transit *transit, bool keeps);

#endif

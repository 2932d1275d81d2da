/* SPDX-License-Identifier: MIT */
/*
 * Transit files: managed memory on its way between a program's library and the store. The library
 * reads and writes files by itself, and may keep their descriptors for ever, write past their end,
 * or write after the verb has ended. Therefore no file of the store is handed to the library. The
 * transit files are on a tmpfs that no other process sees, and as large as the program's managed
 * memory; the daemon copies between them and the store.
 *
 * Where the store is a directory of /dev/shm, in which every user may write anyway, the files are
 * the store's own, and nothing is copied.
 *
 * A transit belongs to one task, on its thread. The files take host memory for a while: in a freeze
 * until the program has been told that all bytes are in the store.
 */
#ifndef GCR_FS_ENGINE_TRANSIT_H
#define GCR_FS_ENGINE_TRANSIT_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/base/quota.h"
#include "fs/store/store.h"
#include "lib/error.h"

struct gcr_transit;

/* The direction of a copy. */
enum gcr_transit_way {
	GCR_TRANSIT_OUT, /* from the program to the store */
	GCR_TRANSIT_IN,
	GCR_TRANSIT_BACK, /* the changes since GCR_TRANSIT_IN, into files that are complete */
};

/*
 * Creates empty files for the extents of @snapshot from @first on, for a process whose memory
 * counts for @uid. @way decides how much free host memory is checked for, since bytes in transit
 * are in memory twice. Each file keeps a descriptor, which the caller has charged, until the
 * transit is destroyed. -EBUSY: files of earlier verbs of the same user are still to be emptied;
 * -ENFILE:
 * @quota leaves users no more descriptors; -ENOMEM, -EMFILE, ..., with a message.
 */
int gcr_transit_create(struct gcr_snapshot *snapshot, size_t first, struct gcr_quota *quota,
		       uid_t uid, enum gcr_transit_way way, struct gcr_transit **ret_transit,
		       struct gcr_error *error);

/*
 * Opens the transit file of the snapshot's extent @index, for reading and writing. Returns a
 * descriptor that the caller closes, or -errno.
 */
int gcr_transit_open(const struct gcr_transit *transit, size_t index);

/* Bytes of memory that the files have now, without what is past their extents' ends. */
uint64_t gcr_transit_held_bytes(const struct gcr_transit *transit);

/*
 * Begins to copy all files to the other side, on threads; one copy at a time. GCR_TRANSIT_IN: to be
 * called before the library has any of the files. GCR_TRANSIT_OUT, GCR_TRANSIT_BACK: bytes that the
 * library writes during the copy may be copied or not. GCR_TRANSIT_BACK takes room for what files
 * of the store have been made smaller since the freeze: -EDQUOT, -ENOSPC from gcr_transit_end().
 * -ENOMEM, -EAGAIN, ...: the copy could not be begun.
 */
int gcr_transit_begin(struct gcr_transit *transit, enum gcr_transit_way way);
/*
 * Waits for the end of the copy; 0 if none has begun. @is_to_stop (or NULL) is called now and then
 * with @data; if it returns true, the copy is given up: -ECANCELED. -EIO: a file is too short;
 * -ENOSPC, ... All with a message.
 */
int gcr_transit_end(struct gcr_transit *transit, bool (*is_to_stop)(void *data), void *data,
		    struct gcr_error *error);

/* Tells a copy that is under way to end early, and waits until its threads have ended. */
void gcr_transit_stop(struct gcr_transit *transit);

/*
 * Does the store of @snapshot need separate transit files, because its own ones cannot be handed
 * out?
 */
bool gcr_transit_is_apart(const struct gcr_snapshot *snapshot);

/*
 * Destroys the transit. @keeps: the library may still need the files' contents, and keeps the files
 * open. Otherwise files that are still open are truncated soon (fs/engine/emptying.h), so that no
 * memory stays in them; a reader then finds them too short. NULL is allowed.
 */
void gcr_transit_destroy(struct gcr_transit *transit, bool keeps);

#endif

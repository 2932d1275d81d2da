/* SPDX-License-Identifier: MIT */
/*
 * -o spill: the directory on a disk to which packed segments may be moved, and the account of its
 * use. Segments are files DIR/gpucrfs-<machine>-<boot>-<random>/<uid>/<number>-<random>: the store
 * has one such directory name for its life, and no path is ever used twice. A symbolic link,
 * packs/spill, names the directory. A segment that has been moved is a symbolic link in the store.
 * At the next start, files that no link names are removed, and so are the directories of this
 * machine's earlier boots, whose stores no longer exist.
 *
 * Calls may block on the disk, so the caller must hold no lock, except for gcr_spill_give().
 */
#ifndef GCR_FS_PACK_SPILL_H
#define GCR_FS_PACK_SPILL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

struct gcr_spill; /* thread-safe */

#define GCR_SPILL_NAME "spill" /* the link's name below packs/ */

struct gcr_spill_options {
	const char *path; /* absolute; NULL: no segments are moved, but existing ones are found */
	uint64_t limit_bytes;	    /* UINT64_MAX: no limit */
	unsigned int limit_percent; /* of the file system's size; 0: use limit_bytes */
};

/*
 * Opens the directory and removes leftovers of earlier daemons; to be called before packs of the
 * store are opened. Sets @error: -ENOENT there is no such directory, -EPERM other users have access
 * to it, -ENOTDIR, -EROFS, ... If the store already has segments on a disk, a failure is only
 * logged, and no more segments are moved.
 */
int gcr_spill_open(int store_fd, const struct gcr_spill_options *options,
		   struct gcr_spill **ret_spill, struct gcr_error *error);
/* Removes the store's directory if no segment is left. NULL is allowed. */
void gcr_spill_close(struct gcr_spill *spill);

/* Is there a directory to which segments may be moved? NULL is allowed. */
bool gcr_spill_is_on(const struct gcr_spill *spill);

/* Reserves bytes. -ENOSPC, with @error set: the limit or the disk has no room for them. */
int gcr_spill_take(struct gcr_spill *spill, uint64_t bytes, struct gcr_error *error);
/*
 * The total that all users may have at present, including the bytes in use: the limit, or the room
 * on the disk. -EOPNOTSUPP there is no directory; -errno the disk does not answer.
 */
int gcr_spill_room(struct gcr_spill *spill, uint64_t *ret_bytes);
/* Charges bytes that an earlier daemon has taken. NULL is allowed, as below. */
void gcr_spill_take_there(struct gcr_spill *spill, uint64_t bytes);
void gcr_spill_give(struct gcr_spill *spill, uint64_t bytes);

/*
 * Creates an empty file for a segment: returns a descriptor, and its path; the caller owns both.
 * -EPERM: other users could read the file; -errno.
 */
int gcr_spill_create_file(struct gcr_spill *spill, uid_t uid, uint32_t number, char **ret_path);
/*
 * Opens the file of a segment, for reading at least. -EPROTO: not a segment of ours; -errno. NULL
 * is allowed, as below.
 */
int gcr_spill_open_file(const struct gcr_spill *spill, const char *path);
/*
 * Finds the file of a segment whose disk is mounted elsewhere: the same name in the present
 * directory. The caller frees the path. -ENOENT, and errors as above.
 */
int gcr_spill_find_file(const struct gcr_spill *spill, const char *path, char **ret_path);
/*
 * Removes the file, and its directories if they are empty. -ENOENT; -EPROTO not a segment's path;
 * -errno.
 */
int gcr_spill_remove_file(struct gcr_spill *spill, const char *path);

/* Is this a possible path of the segment? */
bool gcr_spill_is_path(const char *path, uid_t uid, uint32_t number);

#endif

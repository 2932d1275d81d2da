/* SPDX-License-Identifier: MIT */
/*
 * -o spill: the directory on a disk to which packed segments may go, and how much of it is taken.
 * Segments stand in DIR/gpucrfs-<machine>-<boot>-<random>/<uid>/<number>-<random>: the store has
 * one such name for its life, and no path is ever used twice; and a symbolic link, packs/spill,
 * that says where the directory is. A segment that has gone there is a symbolic link in the store.
 * What no link names is removed at the next start, as are the directories of this machine's earlier
 * boots, whose stores are gone with them.
 *
 * Calls of the disk may take long: nobody calls these with a lock held, but for gcr_spill_give().
 */
#ifndef GCR_FS_PACK_SPILL_H
#define GCR_FS_PACK_SPILL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

struct gcr_spill; /* thread-safe */

#define GCR_SPILL_NAME "spill" /* the link below packs/ */

struct gcr_spill_options {
	const char *path; /* absolute; NULL: nothing goes to a disk, but what is there is found */
	uint64_t limit_bytes;	    /* UINT64_MAX: there is none */
	unsigned int limit_percent; /* of the file system's size; 0: limit_bytes counts */
};

/*
 * What earlier daemons have left is tidied up: nobody may have opened packs of the store yet.
 * Errors, with words: -ENOENT there is no such directory, -EPERM it is not ours alone, -ENOTDIR,
 * -EROFS, ... If the store has segments on a disk already there are none: it is told in the log,
 * and nothing more goes there.
 */
int gcr_spill_open(int store_fd, const struct gcr_spill_options *options,
		   struct gcr_spill **ret_spill, struct gcr_error *error);
/* If nothing is packed any more, its directory goes. NULL is allowed. */
void gcr_spill_close(struct gcr_spill *spill);

/* Is there a directory to which segments may go? NULL is allowed. */
bool gcr_spill_is_on(const struct gcr_spill *spill);

/* Promise so many bytes. -ENOSPC, with words: the limit, or the disk, has no room for them. */
int gcr_spill_take(struct gcr_spill *spill, uint64_t bytes, struct gcr_error *error);
/*
 * What all may have there at present, with what they have: the limit, or what is left of the disk.
 * -EOPNOTSUPP there is no directory, -errno the disk does not say.
 */
int gcr_spill_room(struct gcr_spill *spill, uint64_t *ret_bytes);
/* An earlier daemon has taken them. NULL is allowed, as below. */
void gcr_spill_take_there(struct gcr_spill *spill, uint64_t bytes);
void gcr_spill_give(struct gcr_spill *spill, uint64_t bytes);

/*
 * A new, empty file for a segment: a descriptor and its path, the caller's. -EPERM: others could
 * read it there; -errno
 */
int gcr_spill_create_file(struct gcr_spill *spill, uid_t uid, uint32_t number, char **ret_path);
/* For reading at least. -EPROTO: it is no segment of ours; -errno. NULL is allowed, as below. */
int gcr_spill_open_file(const struct gcr_spill *spill, const char *path);
/*
 * The disk may be mounted elsewhere: the same file in the directory that is used now, and where
 * that is, for the caller to free. -ENOENT and as above
 */
int gcr_spill_find_file(const struct gcr_spill *spill, const char *path, char **ret_path);
/* And its directories, if nothing else is in them. -ENOENT, -EPROTO it is of no segment, -errno */
int gcr_spill_remove_file(struct gcr_spill *spill, const char *path);

/* Is this where a segment may be? */
bool gcr_spill_is_path(const char *path, uid_t uid, uint32_t number);

#endif

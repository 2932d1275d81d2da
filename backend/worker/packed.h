/* SPDX-License-Identifier: MIT */
/*
 * Reads the pieces of a session's files that are packed, wholly or in parts (lib/pack_file.h), in
 * their unpacked form. Tables and segments belong to the daemon, which does not change them during
 * the session; they are only read. For one thread.
 */
#ifndef GCR_BACKEND_WORKER_PACKED_H
#define GCR_BACKEND_WORKER_PACKED_H

#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"

struct gcr_packed;

/*
 * Makes a reader. @tables_fd, @segments_fd: descriptors of directories, which stay the caller's.
 * -ENOMEM.
 */
int gcr_packed_create(int tables_fd, int segments_fd, struct gcr_packed **ret_packed);
void gcr_packed_destroy(struct gcr_packed *packed); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_packed *, gcr_packed_destroy);

/*
 * Selects the file to read from, by its inode; the file may have no table. -EBADMSG: the table is
 * invalid, or not for a file of @file_bytes.
 */
int gcr_packed_open(struct gcr_packed *packed, ino_t ino, uint64_t file_bytes);

enum gcr_packed_what {
	GCR_PACKED_NOT,	  /* the piece is not packed: it is in the file itself */
	GCR_PACKED_ZEROS, /* only zeros: nothing is written to @ret_bytes */
	GCR_PACKED_BYTES,
};

/*
 * Reads piece number @piece (GCR_PACK_PIECE_BYTES) of the selected file. -EBADMSG: the packed data
 * is damaged, -ENOENT: its segment is missing, or an error of reading; the contents of @ret_bytes
 * are undefined then. Bytes from a disk are checked against the digest made when they were packed;
 * bytes from the store are not.
 */
int gcr_packed_read(struct gcr_packed *packed, uint64_t piece, void *ret_bytes,
		    enum gcr_packed_what *ret_what);

#endif

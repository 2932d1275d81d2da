/* SPDX-License-Identifier: MIT */
/*
 * Files of a session that stand packed, or parts of which do (lib/pack_file.h): their pieces, as
 * they were. Tables and segments are the daemon's, which changes nothing of them meanwhile; they
 * are only read. One thread.
 */
#ifndef GCR_BACKEND_WORKER_PACKED_H
#define GCR_BACKEND_WORKER_PACKED_H

#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"

struct gcr_packed;

/* @tables_fd, @segments_fd: directories, which stay the caller's. -ENOMEM. */
int gcr_packed_create(int tables_fd, int segments_fd, struct gcr_packed **ret_packed);
void gcr_packed_destroy(struct gcr_packed *packed); /* NULL is allowed */
GCR_DEFINE_CLEANUP(struct gcr_packed *, gcr_packed_destroy);

/*
 * What is read from now on is this file, which need not have a table. -EBADMSG: that is none, or
 * not of so many bytes.
 */
int gcr_packed_open(struct gcr_packed *packed, ino_t ino, uint64_t file_bytes);

enum gcr_packed_what {
	GCR_PACKED_NOT,	  /* it is in the file itself */
	GCR_PACKED_ZEROS, /* nothing but zeros: nothing is written to @ret_bytes */
	GCR_PACKED_BYTES,
};

/*
 * A piece of it (GCR_PACK_PIECE_BYTES). -EBADMSG: what is there was not packed so, -ENOENT: its
 * segment is not there, or what reading says; @ret_bytes has anything then. Bytes from a disk have
 * the digest that they were packed with; those from the store are taken as they are.
 */
int gcr_packed_read(struct gcr_packed *packed, uint64_t piece, void *ret_bytes,
		    enum gcr_packed_what *ret_what);

#endif

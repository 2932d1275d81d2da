/* SPDX-License-Identifier: MIT */
/*
 * The table of one file: for each piece (2 MiB of the file) whether it is packed, and the locations
 * of its chunks. The table is a mapped file that outlives the daemon; each piece becomes packed or
 * unpacked in one atomic step. The table holds no references to chunks: those belong to the callers
 * of publish and clear.
 *
 * Readers may run beside a change of another piece; the caller serialises changes, and keeps
 * readers away from the piece that is changed.
 */
#ifndef GCR_FS_PACK_PACK_TABLE_H
#define GCR_FS_PACK_PACK_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"
#include "lib/error.h"
#include "lib/pack_file.h"

struct gcr_pack_table; /* reference-counted */

struct gcr_pack_figures {
	uint64_t pieces;
	uint64_t packed_bytes;	  /* bytes of the file that are packed */
	uint64_t packed_to_bytes; /* their size when packed, only of chunks that were new */
	uint64_t shared_bytes;	  /* of packed_bytes: in chunks that were stored already */
	uint64_t zero_bytes;	  /* of packed_bytes: zeros */
	uint64_t hole_bytes;	  /* of packed_bytes: in pieces of zeros only */
};

/*
 * Opens the table @name in the directory, of a file of @file_bytes. With @create a missing table is
 * created, with all of its memory allocated: gcr_pack_table_bytes() in small pages. Sets @error:
 * -ENOENT, -ENOSPC, -ENOMEM, -EPROTO (the table is damaged, or of another user or another size).
 */
int gcr_pack_table_open(int directory_fd, const char *name, uint64_t file_bytes, uid_t uid,
			bool create, struct gcr_pack_table **ret_table, struct gcr_error *error);
/*
 * Opens a table that an earlier daemon has left, of a file of *ret_file_bytes. -ENOENT: the table
 * was never finished; -EPROTO: the table is damaged. Other errors (-ENOMEM, -EMFILE, ...) say
 * nothing about the table.
 */
int gcr_pack_table_open_left(int directory_fd, const char *name, uid_t uid,
			     struct gcr_pack_table **ret_table, uint64_t *ret_file_bytes,
			     uint64_t *ret_table_bytes);
/*
 * Opens again a table that this daemon has closed, of a file of @file_bytes and with these figures,
 * without checking its pieces. -ENOENT, -EPROTO: the file has been changed by others; -ENOMEM,
 * -EMFILE, ...
 */
int gcr_pack_table_open_again(int directory_fd, const char *name, uint64_t file_bytes, uid_t uid,
			      const struct gcr_pack_figures *figures,
			      struct gcr_pack_table **ret_table);
struct gcr_pack_table *gcr_pack_table_ref(struct gcr_pack_table *table);
void gcr_pack_table_unref(struct gcr_pack_table *table); /* NULL is allowed; the file stays */
GCR_DEFINE_CLEANUP(struct gcr_pack_table *, gcr_pack_table_unref);

/*
 * Sets a new size of the file. The pieces beyond the smaller size, and the one in which it ends,
 * must not be packed (-EINVAL). No other thread may use the table. -ENOSPC, -ENOMEM: nothing has
 * changed.
 */
int gcr_pack_table_resize(struct gcr_pack_table *table, uint64_t file_bytes);

uint64_t gcr_pack_table_pieces(const struct gcr_pack_table *table);
/* Bytes of a piece: the last one may be shorter. */
uint32_t gcr_pack_table_piece_bytes(const struct gcr_pack_table *table, uint64_t piece);

/* Is the piece packed? False beyond the end. */
bool gcr_pack_table_is_packed(const struct gcr_pack_table *table, uint64_t piece);
/* The entries of a packed piece; entries beyond the end of the file are GCR_PACK_NOTHING. */
void gcr_pack_table_read(const struct gcr_pack_table *table, uint64_t piece,
			 struct gcr_pack_entry ret_entries[GCR_PACK_PIECE_CHUNKS]);
/* Does a packed piece consist of zeros only? */
bool gcr_pack_table_is_hole(const struct gcr_pack_table *table, uint64_t piece);
/*
 * Marks an unpacked piece as packed with these entries; after a crash the piece is either packed or
 * not. -EINVAL: the piece is packed, or the entries do not fit it. gcr_pack_table_clear() undoes
 * it.
 */
int gcr_pack_table_publish(struct gcr_pack_table *table, uint64_t piece,
			   const struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS]);
void gcr_pack_table_clear(struct gcr_pack_table *table, uint64_t piece);
/*
 * Marks the stored chunks of a packed piece from @first to before @end as lost: they cannot be
 * read, and hold no reference to drop.
 */
void gcr_pack_table_lose(struct gcr_pack_table *table, uint64_t piece, size_t first, size_t end);

/* Sums over the packed pieces. Any thread may call this function. */
void gcr_pack_table_figures(struct gcr_pack_table *table, struct gcr_pack_figures *ret_figures);

/*
 * Calls @visit with the entries of each packed piece of the table @name, which may be in use: the
 * entries are those of some moment, and hold no references. A missing table has none. -EMFILE,
 * -EIO, ...
 */
typedef void gcr_pack_table_visit(const struct gcr_pack_entry *entries, void *data);
int gcr_pack_table_each(int directory_fd, const char *name, gcr_pack_table_visit *visit,
			void *data);

#endif

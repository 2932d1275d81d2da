/* SPDX-License-Identifier: MIT */
/*
 * The table of one file: which of its pieces are packed, and where their chunks are. It is a mapped
 * file that outlives the daemon; a piece becomes packed, and is so no longer, in one step. It holds
 * no reference to chunks: that is for who publishes and clears.
 *
 * Readers may go on beside a change of another piece; changes, and readers of the piece that is
 * changed, are kept apart by the caller.
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
	uint64_t packed_bytes;	  /* of the file that stand packed */
	uint64_t packed_to_bytes; /* which they have become: chunks that were new */
	uint64_t shared_bytes;	  /* of packed_bytes: in chunks that were there already */
	uint64_t zero_bytes;	  /* of packed_bytes: zeros */
	uint64_t hole_bytes;	  /* of packed_bytes: in pieces that are nothing but zeros */
};

/*
 * The table @name in the directory, of a file of @file_bytes; with @create it is made if there is
 * none, and all of its memory, gcr_pack_table_bytes() in small pages, is there then. Errors, with
 * words: -ENOENT, -ENOSPC, -ENOMEM, -EPROTO (it is damaged, or of another user or another size).
 */
int gcr_pack_table_open(int directory_fd, const char *name, uint64_t file_bytes, uid_t uid,
			bool create, struct gcr_pack_table **ret_table, struct gcr_error *error);
/*
 * One that an earlier daemon has left, of a file of *ret_file_bytes. -ENOENT: it was never
 * finished; -EPROTO: it is damaged. With other errors (-ENOMEM, -EMFILE, ...) nothing is known of
 * it.
 */
int gcr_pack_table_open_left(int directory_fd, const char *name, uid_t uid,
			     struct gcr_pack_table **ret_table, uint64_t *ret_file_bytes,
			     uint64_t *ret_table_bytes);
/*
 * One that was open before, of a file of @file_bytes, and had these figures when it was closed: it
 * is not looked through again. -ENOENT, -EPROTO: somebody has done something to it; -ENOMEM,
 * -EMFILE, ...
 */
int gcr_pack_table_open_again(int directory_fd, const char *name, uint64_t file_bytes, uid_t uid,
			      const struct gcr_pack_figures *figures,
			      struct gcr_pack_table **ret_table);
struct gcr_pack_table *gcr_pack_table_ref(struct gcr_pack_table *table);
void gcr_pack_table_unref(struct gcr_pack_table *table); /* NULL is allowed; the file stays */
GCR_DEFINE_CLEANUP(struct gcr_pack_table *, gcr_pack_table_unref);

/*
 * The file has another size now. Its pieces beyond it, and the one in which it ends, are not
 * packed. Nobody uses the table meanwhile. -ENOSPC, -ENOMEM: nothing has changed.
 */
int gcr_pack_table_resize(struct gcr_pack_table *table, uint64_t file_bytes);

uint64_t gcr_pack_table_pieces(const struct gcr_pack_table *table);
/* Bytes of a piece: the last may be shorter. */
uint32_t gcr_pack_table_piece_bytes(const struct gcr_pack_table *table, uint64_t piece);

/* False beyond the end. */
bool gcr_pack_table_is_packed(const struct gcr_pack_table *table, uint64_t piece);
/* Of one that is packed; entries beyond the end of the file are GCR_PACK_NOTHING. */
void gcr_pack_table_read(const struct gcr_pack_table *table, uint64_t piece,
			 struct gcr_pack_entry ret_entries[GCR_PACK_PIECE_CHUNKS]);
/* Is all of it zeros? Of one that is packed. */
bool gcr_pack_table_is_hole(const struct gcr_pack_table *table, uint64_t piece);
/*
 * A piece that is not packed is, from now on; a daemon that is killed meanwhile leaves it packed or
 * not. -EINVAL: these are not entries of this piece.
 */
int gcr_pack_table_publish(struct gcr_pack_table *table, uint64_t piece,
			   const struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS]);
void gcr_pack_table_clear(struct gcr_pack_table *table, uint64_t piece);
/*
 * The stored ones of the chunks of a packed piece from @first to before @end are not there: they
 * cannot be read, and are nobody's to drop.
 */
void gcr_pack_table_lose(struct gcr_pack_table *table, uint64_t piece, size_t first, size_t end);

/* Any thread may ask. */
void gcr_pack_table_figures(struct gcr_pack_table *table, struct gcr_pack_figures *ret_figures);

/*
 * Calls @visit with the entries of each piece that the table @name says is packed, whoever else
 * uses it: they are those of some moment, and are nobody's reference. There may be none. -EMFILE,
 * -EIO, ...
 */
typedef void gcr_pack_table_visit(const struct gcr_pack_entry *entries, void *data);
int gcr_pack_table_each(int directory_fd, const char *name, gcr_pack_table_visit *visit,
			void *data);

#endif

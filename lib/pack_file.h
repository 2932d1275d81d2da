/* SPDX-License-Identifier: MIT */
/*
 * The format of packed snapshots in files of the store. The daemon writes them; the daemon, a later
 * daemon and the worker read them. Numbers have the machine's byte order; the files never leave it.
 *
 *  packs/<uid>/<number>	segments: the packed chunks of one user, one after the other
 *  <snapshot>/packed-<uid>/<inode>	a table: which chunks of a file are packed, and where
 *
 * Chunks are packed by pieces, the store's huge pages: either all chunks of a piece are packed, or
 * none is.
 */
#ifndef GCR_PACK_FILE_H
#define GCR_PACK_FILE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/digest.h"

#define GCR_PACK_PIECE_BYTES  (2u << 20)
#define GCR_PACK_PIECE_CHUNKS (GCR_PACK_PIECE_BYTES / GCR_CHUNK_BYTES)

/*
 * The number of pieces of a file of @file_bytes; the last piece may be shorter, and so may its
 * chunks.
 */
static inline uint64_t gcr_pack_pieces(uint64_t file_bytes)
{
	return file_bytes / GCR_PACK_PIECE_BYTES + (file_bytes % GCR_PACK_PIECE_BYTES != 0);
}

/* ---- segments ---- */

#define GCR_PACKS_NAME	       "packs"
#define GCR_PACK_SEGMENT_BYTES (256u << 20)
/* A chunk begins at a multiple of this. */
#define GCR_PACK_ALIGN_BYTES   16

enum gcr_pack_kind {
	GCR_PACK_NOTHING, /* not packed, or beyond the end of the file */
	GCR_PACK_ZEROS,	  /* a hole */
	GCR_PACK_STORED,  /* in a segment */
	GCR_PACK_LOST,	  /* a later daemon did not find its bytes: the entry holds no reference */
};

/* An identical chunk had been packed before: the memory is accounted to that chunk. */
#define GCR_PACK_FLAG_SHARED 1
/*
 * This chunk is never shared with another: its process is in a container, or there were more chunks
 * of the same digest than are compared.
 */
#define GCR_PACK_FLAG_ALONE  2

/* The entry of one chunk. Fields without a meaning for its kind are 0. */
struct gcr_pack_entry {
	struct gcr_digest digest; /* digest of the unpacked bytes */
	uint32_t segment;
	uint32_t offset; /* in bytes, a multiple of GCR_PACK_ALIGN_BYTES */
	uint16_t packed_bytes_less_1;
	uint16_t bytes_less_1;
	uint8_t kind; /* enum gcr_pack_kind */
	uint8_t form; /* enum gcr_pack_form */
	uint8_t flags;
	uint8_t reserved;
};
_Static_assert(sizeof(struct gcr_pack_entry) == 32, "a format");

static inline uint32_t gcr_pack_entry_bytes(const struct gcr_pack_entry *entry)
{
	return entry->bytes_less_1 + 1u;
}

static inline uint32_t gcr_pack_entry_packed_bytes(const struct gcr_pack_entry *entry)
{
	return entry->packed_bytes_less_1 + 1u;
}

/* ---- tables ---- */

#define GCR_PACK_TABLE_MAGIC   "GCRPACKT"
#define GCR_PACK_TABLE_VERSION 1

#define GCR_PACK_TABLES_NAME	  "packed-" /* and the user's number */
#define GCR_PACK_TABLE_NAME_BYTES 24

/*
 * A table's name is the number of its file's inode, not the file's name: files can be renamed and
 * replaced without a moment at which a killed daemon leaves a file with another file's table.
 */
static inline void gcr_pack_table_name(uint64_t ino, char ret_name[GCR_PACK_TABLE_NAME_BYTES])
{
	snprintf(ret_name, GCR_PACK_TABLE_NAME_BYTES, "%" PRIu64, ino);
}

struct gcr_pack_table_header {
	char magic[8];
	uint32_t version;
	uint32_t chunk_bytes; /* GCR_CHUNK_BYTES */
	uint64_t file_bytes;
	uint32_t uid; /* owner of the segments: the directory below packs/ */
	uint32_t reserved[249];
};
_Static_assert(sizeof(struct gcr_pack_table_header) == 1024, "a format");

/*
 * The entries of a piece. The piece is packed if and only if the kind of its first chunk is not
 * GCR_PACK_NOTHING: that byte is written last, and cleared first.
 */
struct gcr_pack_table_piece {
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
};
_Static_assert(sizeof(struct gcr_pack_table_piece) == 1024, "a format");

static inline bool gcr_pack_table_piece_is_packed(const struct gcr_pack_table_piece *piece)
{
	return __atomic_load_n(&piece->entries[0].kind, __ATOMIC_ACQUIRE) != GCR_PACK_NOTHING;
}

/* The size of a table: the header, followed by all pieces of the file. */
static inline uint64_t gcr_pack_table_bytes(uint64_t file_bytes)
{
	return sizeof(struct gcr_pack_table_header) +
	       gcr_pack_pieces(file_bytes) * sizeof(struct gcr_pack_table_piece);
}

#endif

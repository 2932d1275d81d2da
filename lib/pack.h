/* SPDX-License-Identifier: MIT */
/*
 * Lossless, fast compression ("packing") of chunks of device memory, the same chunks that have
 * digests: by LZ4, and floating-point numbers by byte planes. The functions work on memory only: no
 * files, no locks. Their output is the format of packed chunks in the store, so later versions of
 * the daemon have to be able to read it.
 *
 *   RAW       the bytes themselves
 *   LZ4       one block of LZ4
 *   PLANES_n  elements of n bytes, each rotated left by one bit, so that the sign is the lowest
 *             bit and the exponent has the highest byte for itself; plane 0 has the lowest byte of
 *             each element, and so on. First 4 bytes for each plane: its kind (0 raw, 1 LZ4,
 *             2 codes, see pack_codes.h), 0, its packed length as 16 bits, little-endian. Then the
 *             planes, then the bytes after the last whole element.
 */
#ifndef GCR_PACK_H
#define GCR_PACK_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/cleanup.h"
#include "lib/digest.h"

#define GCR_PACK_CHUNK_BYTES GCR_CHUNK_BYTES
/* A packed chunk is never longer than the chunk. */
#define GCR_PACK_MAX_BYTES   GCR_PACK_CHUNK_BYTES

/* The numbers are part of the store's format. */
enum gcr_pack_form {
	GCR_PACK_RAW = 0,
	GCR_PACK_LZ4 = 1,
	GCR_PACK_PLANES_2 = 2,
	GCR_PACK_PLANES_4 = 3,
};

/*
 * Creates a packer: working memory of some 200 KiB, for one thread at a time. The caller destroys
 * it. -ENOMEM.
 */
struct gcr_packer;
int gcr_packer_create(struct gcr_packer **ret_packer);
void gcr_packer_destroy(struct gcr_packer *packer);
GCR_DEFINE_CLEANUP(struct gcr_packer *, gcr_packer_destroy);

/*
 * Packs a chunk of @size bytes, at most GCR_PACK_CHUNK_BYTES. @ret_packed has room for @size bytes;
 * the return value is the length used. If less than 5 % would be saved, the form is RAW and the
 * length @size.
 */
size_t gcr_pack(struct gcr_packer *packer, const void *bytes, size_t size, void *ret_packed,
		enum gcr_pack_form *ret_form);

/*
 * Unpacks a chunk whose original length is @size. -EBADMSG: the input is not the output of
 * gcr_pack() for @size bytes; the contents of @ret_bytes are undefined then. Whatever the input,
 * the function accesses nothing outside of the two buffers.
 */
int gcr_unpack(struct gcr_packer *packer, enum gcr_pack_form form, const void *packed,
	       size_t packed_size, void *ret_bytes, size_t size);

bool gcr_pack_is_zero(const void *bytes, size_t size);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Packing chunks of device memory, those that digests are of, without loss and fast: by LZ4, and
 * numbers in floating point by byte planes. Memory in, memory out: no files, no locks. What it
 * makes is the format of packed chunks in the store: an upgraded daemon has to read it.
 *
 *  RAW       the bytes themselves
 *  LZ4       one block of LZ4
 *  PLANES_n  elements of n bytes, each rotated left by a bit, so that the sign is the lowest and
 * the exponent has the highest byte for itself; plane 0 has the lowest byte of each element, and so
 * on. First 4 bytes for each plane: its kind (0 raw, 1 LZ4, 2 codes, see pack_codes.h), 0, its
 * packed length as 16 bits, little-endian. Then the planes, then the bytes after the last whole
 * element.
 */
#ifndef GCR_PACK_H
#define GCR_PACK_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/cleanup.h"
#include "lib/digest.h"

#define GCR_PACK_CHUNK_BYTES GCR_CHUNK_BYTES
#define GCR_PACK_MAX_BYTES   GCR_PACK_CHUNK_BYTES /* nothing is packed to more than it was */

/* Known in the store by these numbers. */
enum gcr_pack_form {
	GCR_PACK_RAW = 0,
	GCR_PACK_LZ4 = 1,
	GCR_PACK_PLANES_2 = 2,
	GCR_PACK_PLANES_4 = 3,
};

/* Memory to work in, some 200 KiB, of one thread at a time. -ENOMEM */
struct gcr_packer;
int gcr_packer_create(struct gcr_packer **ret_packer);
void gcr_packer_destroy(struct gcr_packer *packer);
GCR_DEFINE_CLEANUP(struct gcr_packer *, gcr_packer_destroy);

/*
 * Pack a chunk, @size at most GCR_PACK_CHUNK_BYTES: the length of what is in @ret_packed then,
 * which has room for @size. RAW, and as long as it was, where 5 % are not gained.
 */
size_t gcr_pack(struct gcr_packer *packer, const void *bytes, size_t size, void *ret_packed,
		enum gcr_pack_form *ret_form);

/*
 * The @size bytes that were packed. -EBADMSG: gcr_pack() made no such thing of so many; @ret_bytes
 * has anything then. Whatever it is given, it reads and writes nothing outside of the two.
 */
int gcr_unpack(struct gcr_packer *packer, enum gcr_pack_form form, const void *packed,
	       size_t packed_size, void *ret_bytes, size_t size);

bool gcr_pack_is_zero(const void *bytes, size_t size);

#endif

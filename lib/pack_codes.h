/* SPDX-License-Identifier: MIT */
/*
 * Compression of bytes most of which have one of a few values, such as the exponents of weights:
 * each byte becomes a code of 1 to 5 bits. Codes are faster than LZ4 in both directions, and
 * compress data on which LZ4 fails, because LZ4 looks for repeated sequences.
 *
 * Format in the store: the number of bits of a code (w), the number of values (at most 2^w - 1),
 * the values; then for every 8 bytes w bytes with their codes, the first in the lowest bits; then
 * all bytes that have none of the values, whose code is 2^w - 1.
 */
#ifndef GCR_PACK_CODES_H
#define GCR_PACK_CODES_H

#include <stddef.h>
#include <stdint.h>

#define GCR_CODES_BITS_MAX   5
#define GCR_CODES_VALUES_MAX ((1u << GCR_CODES_BITS_MAX) - 1)

struct gcr_codes {
	unsigned bits;	/* 0: codes would save nothing */
	unsigned count; /* number of values, the most frequent first */
	uint8_t values[GCR_CODES_VALUES_MAX];
	size_t size;   /* length of the input that the codes were chosen for */
	size_t packed; /* its packed length */
};

/* Chooses the best codes for @size bytes, less than 4 GiB. */
void gcr_codes_choose(const uint8_t *bytes, size_t size, struct gcr_codes *ret_codes);

/*
 * Packs the bytes for which the codes were chosen. @ret_packed has room for @codes->packed bytes.
 */
void gcr_codes_pack(const struct gcr_codes *codes, const uint8_t *bytes, uint8_t *ret_packed);

/*
 * Unpacks @size bytes into @ret_bytes, which has room for @size rounded up to 8. -EBADMSG: the
 * input is not the output of gcr_codes_pack(); no byte outside the buffers is read or written.
 */
int gcr_codes_unpack(const uint8_t *packed, size_t packed_size, uint8_t *ret_bytes, size_t size);

#endif

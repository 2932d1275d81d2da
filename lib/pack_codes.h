/* SPDX-License-Identifier: MIT */
/*
 * Bytes most of which have one of a few values, as exponents of weights do: each becomes a code of
 * 1 to 5 bits. It is faster than LZ4, both ways, and finds what LZ4 does not, which looks for bytes
 * that come again in the same order.
 *
 * In the store: the bits of a code (w), how many values there are (at most 2^w - 1), the values;
 * then for every 8 bytes w bytes with their codes, the first in the lowest bits; then all bytes
 * that have none of the values, whose code is 2^w - 1.
 */
#ifndef GCR_PACK_CODES_H
#define GCR_PACK_CODES_H

#include <stddef.h>
#include <stdint.h>

#define GCR_CODES_BITS_MAX   5
#define GCR_CODES_VALUES_MAX ((1u << GCR_CODES_BITS_MAX) - 1)

struct gcr_codes {
	unsigned bits;	/* 0: nothing is gained by them */
	unsigned count; /* of values, the most frequent first */
	uint8_t values[GCR_CODES_VALUES_MAX];
	size_t size;   /* of the bytes that it was chosen for */
	size_t packed; /* what they take */
};

/* The best for these bytes, at most 4 GiB. */
void gcr_codes_choose(const uint8_t *bytes, size_t size, struct gcr_codes *ret_codes);

/* @ret_packed has room for @codes->packed; the bytes are those that it was chosen for. */
void gcr_codes_pack(const struct gcr_codes *codes, const uint8_t *bytes, uint8_t *ret_packed);

/*
 * @ret_bytes has room for @size rounded up to 8. -EBADMSG: it is nothing that was packed; nothing
 * outside is read or written.
 */
int gcr_codes_unpack(const uint8_t *packed, size_t packed_size, uint8_t *ret_bytes, size_t size);

#endif

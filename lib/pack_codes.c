/* SPDX-License-Identifier: MIT */
/* Codes of a few bits for frequent bytes (see pack_codes.h). Nothing here has a state. */
#include "lib/pack_codes.h"

#include <errno.h>
#include <string.h>

#define VALUES	     256
#define GROUP	     8 /* codes that begin and end with a byte, whatever their width */
#define HEADER_BYTES 2

/* Several counters of each value: equal bytes would wait for each other. */
#define COUNTERS 4

/* For loops whose width the compiler is to know. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

static void count_values(const uint8_t *bytes, size_t size, uint32_t ret_counts[VALUES])
{
	uint32_t counts[COUNTERS][VALUES] = {{0}};
	size_t i = 0;

	for (; i + COUNTERS <= size; i += COUNTERS)
		for (size_t j = 0; j < COUNTERS; j++)
			counts[j][bytes[i + j]]++;
	for (; i < size; i++)
		counts[0][bytes[i]]++;
	for (size_t value = 0; value < VALUES; value++) {
		ret_counts[value] = 0;
		for (size_t j = 0; j < COUNTERS; j++)
			ret_counts[value] += counts[j][value];
	}
}

/* The most frequent value, which is not counted any more then. */
static uint32_t take_largest(uint32_t counts[VALUES], uint8_t *ret_value)
{
	size_t largest = 0;
	uint32_t count;

	for (size_t value = 1; value < VALUES; value++)
		if (counts[value] > counts[largest])
			largest = value;
	count = counts[largest];
	counts[largest] = 0;
	*ret_value = (uint8_t)largest;
	return count;
}

void gcr_codes_choose(const uint8_t *bytes, size_t size, struct gcr_codes *ret_codes)
{
	size_t groups = size / GROUP + (size % GROUP != 0);
	struct gcr_codes codes = {.size = size, .packed = size};
	uint32_t counts[VALUES], last = (uint32_t)size;
	unsigned taken = 0;
	size_t left = size;

	count_values(bytes, size, counts);
	for (unsigned bits = 1; bits <= GCR_CODES_BITS_MAX; bits++) {
		unsigned count = (1u << bits) - 1;
		size_t most = (size_t)last * (count - taken);
		size_t packed = HEADER_BYTES + count + groups * bits;

		/* None of the next values is more frequent than the last one. */
		if (packed + (left > most ? left - most : 0) >= codes.packed)
			continue;
		for (; left && taken < count; left -= last)
			last = take_largest(counts, &codes.values[taken++]);
		packed = HEADER_BYTES + taken + groups * bits + left;
		if (packed < codes.packed) {
			codes.bits = bits;
			codes.count = taken;
			codes.packed = packed;
		}
	}
	*ret_codes = codes;
}

ALWAYS_INLINE void pack_groups(unsigned bits, const struct gcr_codes *codes, const uint8_t *bytes,
			       uint8_t *packed, uint8_t *others)
{
	unsigned other = (1u << bits) - 1;
	uint8_t code_of[VALUES];

	memset(code_of, (int)other, sizeof(code_of));
	for (unsigned i = 0; i < codes->count; i++)
		code_of[codes->values[i]] = (uint8_t)i;
	for (size_t i = 0; i < codes->size; i += GROUP) {
		size_t count = codes->size - i < GROUP ? codes->size - i : GROUP;
		uint64_t group = 0;

		for (size_t j = 0; j < count; j++) {
			unsigned code = code_of[bytes[i + j]];

			group |= (uint64_t)code << (j * bits);
			if (code == other)
				*others++ = bytes[i + j];
		}
		for (unsigned j = 0; j < bits; j++)
			*packed++ = (uint8_t)(group >> (8 * j));
	}
}

void gcr_codes_pack(const struct gcr_codes *codes, const uint8_t *bytes, uint8_t *ret_packed)
{
	size_t groups = codes->size / GROUP + (codes->size % GROUP != 0);
	uint8_t *packed = ret_packed + HEADER_BYTES + codes->count;
	uint8_t *others = packed + groups * codes->bits;

	ret_packed[0] = (uint8_t)codes->bits;
	ret_packed[1] = (uint8_t)codes->count;
	memcpy(ret_packed + HEADER_BYTES, codes->values, codes->count);
	switch (codes->bits) {
	case 1:
		pack_groups(1, codes, bytes, packed, others);
		break;
	case 2:
		pack_groups(2, codes, bytes, packed, others);
		break;
	case 3:
		pack_groups(3, codes, bytes, packed, others);
		break;
	case 4:
		pack_groups(4, codes, bytes, packed, others);
		break;
	default:
		pack_groups(5, codes, bytes, packed, others);
	}
}

/* Two codes at once are looked up. */
struct pair {
	uint8_t values[2];
};

ALWAYS_INLINE int unpack_groups(unsigned bits, const uint8_t values[1u << GCR_CODES_BITS_MAX],
				const uint8_t *packed, size_t packed_size, uint8_t *ret_bytes,
				size_t size)
{
	const size_t groups = size / GROUP + (size % GROUP != 0);
	const unsigned codes = 1u << bits;
	struct pair pairs[1u << (2 * GCR_CODES_BITS_MAX)];
	const uint8_t *end = packed + packed_size;
	const uint8_t *others;
	uint64_t lowest = 0;

	if (packed_size < groups * bits)
		return -EBADMSG;
	others = packed + groups * bits;
	for (unsigned i = 0; i < codes * codes; i++)
		pairs[i] = (struct pair){{values[i % codes], values[i / codes]}};
	for (unsigned i = 0; i < GROUP; i++)
		lowest |= UINT64_C(1) << (i * bits);
	for (size_t i = 0; i < groups; i++, packed += bits, ret_bytes += GROUP) {
		uint64_t group = 0, is_other;

		for (unsigned j = 0; j < bits; j++)
			group |= (uint64_t)packed[j] << (8 * j);
		is_other = group & lowest;
		for (unsigned j = 1; j < bits; j++)
			is_other &= group >> j;
		for (unsigned j = 0; j < GROUP / 2; j++)
			memcpy(ret_bytes + 2 * j,
			       &pairs[group >> (2 * j * bits) & (codes * codes - 1)], 2);
		for (; is_other; is_other &= is_other - 1) {
			if (others == end)
				return -EBADMSG;
			ret_bytes[(unsigned)__builtin_ctzll(is_other) / bits] = *others++;
		}
	}
	return others == end ? 0 : -EBADMSG;
}

int gcr_codes_unpack(const uint8_t *packed, size_t packed_size, uint8_t *ret_bytes, size_t size)
{
	uint8_t values[1u << GCR_CODES_BITS_MAX] = {0};
	unsigned bits, count;

	if (packed_size < HEADER_BYTES)
		return -EBADMSG;
	bits = packed[0];
	count = packed[1];
	if (!bits || bits > GCR_CODES_BITS_MAX || count >= 1u << bits ||
	    packed_size - HEADER_BYTES < count)
		return -EBADMSG;
	memcpy(values, packed + HEADER_BYTES, count);
	packed += HEADER_BYTES + count;
	packed_size -= HEADER_BYTES + count;
	switch (bits) {
	case 1:
		return unpack_groups(1, values, packed, packed_size, ret_bytes, size);
	case 2:
		return unpack_groups(2, values, packed, packed_size, ret_bytes, size);
	case 3:
		return unpack_groups(3, values, packed, packed_size, ret_bytes, size);
	case 4:
		return unpack_groups(4, values, packed, packed_size, ret_bytes, size);
	default:
		return unpack_groups(5, values, packed, packed_size, ret_bytes, size);
	}
}

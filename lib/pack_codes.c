/* SPDX-License-Identifier: MIT */
/* Codes of a few bits for frequent bytes (see pack_codes.h). The functions have no global state. */
#include "lib/pack_codes.h"

#include <errno.h>
#include <string.h>

/* The vector code, on x86-64 only; a test builds this file without it. */
#if defined(__x86_64__) && !defined(GCR_PACK_PLAIN)
#define WIDE
#include <immintrin.h>
#endif

#define VALUES	     256
#define GROUP	     8 /* codes of one group start and end at a byte, whatever their width */
#define HEADER_BYTES 2

/* Several counters for each value: increments of the same counter would wait for each other. */
#define COUNTERS 4

/* For loops whose bit width must be a compile-time constant. */
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

/* Returns the count of the most frequent value, and removes that value from @counts. */
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

		/* None of the next values is more frequent than the last one taken. */
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

/* The state of unpacking: the groups, and the bytes that have no code. */
struct unpacking {
	const uint8_t *packed;
	const uint8_t *others; /* stored after the groups */
	const uint8_t *end;
	uint8_t *bytes;
	size_t groups;
	uint8_t values[1u << GCR_CODES_BITS_MAX];
};

/* A table entry for two codes at once. */
struct pair {
	uint8_t values[2];
};

ALWAYS_INLINE int unpack_groups(unsigned bits, struct unpacking *at)
{
	const unsigned codes = 1u << bits;
	struct pair pairs[1u << (2 * GCR_CODES_BITS_MAX)];
	uint64_t lowest = 0;

	for (unsigned i = 0; i < codes * codes && at->groups; i++)
		pairs[i] = (struct pair){{at->values[i % codes], at->values[i / codes]}};
	for (unsigned i = 0; i < GROUP; i++)
		lowest |= UINT64_C(1) << (i * bits);
	for (; at->groups; at->groups--, at->packed += bits, at->bytes += GROUP) {
		uint64_t group = 0, is_other;

		for (unsigned j = 0; j < bits; j++)
			group |= (uint64_t)at->packed[j] << (8 * j);
		is_other = group & lowest;
		for (unsigned j = 1; j < bits; j++)
			is_other &= group >> j;
		for (unsigned j = 0; j < GROUP / 2; j++)
			memcpy(at->bytes + 2 * j,
			       &pairs[group >> (2 * j * bits) & (codes * codes - 1)], 2);
		for (; is_other; is_other &= is_other - 1) {
			if (at->others == at->end)
				return -EBADMSG;
			at->bytes[(unsigned)__builtin_ctzll(is_other) / bits] = *at->others++;
		}
	}
	return at->others == at->end ? 0 : -EBADMSG;
}

#ifdef WIDE

#define BLOCK	     64 /* bytes of a vector */
#define BLOCK_GROUPS (BLOCK / GROUP)

/*
 * Unpacks as many groups as possible, a vector at a time: four times as fast, mainly because there
 * are no branches on which bytes have no code.
 */
__attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt"))) static int unpack_blocks(
	unsigned bits, struct unpacking *at)
{
	const uint8_t *packed = at->packed, *others = at->others;
	const __m512i other = _mm512_set1_epi8((char)((1 << bits) - 1));
	const __mmask64 block = (UINT64_C(1) << (BLOCK_GROUPS * bits)) - 1;
	__m512i values, places, shifts;
	uint8_t table[3][BLOCK] = {{0}};

	memcpy(table[0], at->values, sizeof(at->values));
	for (unsigned i = 0; i < BLOCK; i++) {
		table[1][i] = (uint8_t)(i / GROUP * bits + i % GROUP); /* each group gets a word */
		table[2][i] = (uint8_t)(i % GROUP * bits);	       /* each code gets a byte */
	}
	values = _mm512_loadu_si512(table[0]);
	places = _mm512_loadu_si512(table[1]);
	shifts = _mm512_loadu_si512(table[2]);
	for (; at->groups >= BLOCK_GROUPS; at->groups -= BLOCK_GROUPS) {
		__m512i words =
			_mm512_permutexvar_epi8(places, _mm512_maskz_loadu_epi8(block, packed));
		__m512i codes =
			_mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, words), other);
		__mmask64 is_other = _mm512_cmpeq_epi8_mask(codes, other);
		size_t count = (size_t)_mm_popcnt_u64(is_other);

		if (count > (size_t)(at->end - others))
			return -EBADMSG;
		_mm512_storeu_si512(at->bytes, _mm512_mask_expandloadu_epi8(
						       _mm512_permutexvar_epi8(codes, values),
						       is_other, others));
		others += count;
		packed += BLOCK_GROUPS * bits;
		at->bytes += BLOCK;
	}
	at->packed = packed;
	at->others = others;
	return 0;
}

static int unpack_most(unsigned bits, struct unpacking *at)
{
	return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2")
		       ? unpack_blocks(bits, at)
		       : 0;
}

#else

static int unpack_most(unsigned bits, struct unpacking *at)
{
	return 0;
}

#endif

int gcr_codes_unpack(const uint8_t *packed, size_t packed_size, uint8_t *ret_bytes, size_t size)
{
	struct unpacking at = {.bytes = ret_bytes, .groups = size / GROUP + (size % GROUP != 0)};
	unsigned bits, count;
	int result;

	if (packed_size < HEADER_BYTES)
		return -EBADMSG;
	bits = packed[0];
	count = packed[1];
	if (!bits || bits > GCR_CODES_BITS_MAX || count >= 1u << bits ||
	    packed_size - HEADER_BYTES < count ||
	    (packed_size - HEADER_BYTES - count) / bits < at.groups)
		return -EBADMSG;
	memcpy(at.values, packed + HEADER_BYTES, count);
	at.packed = packed + HEADER_BYTES + count;
	at.others = at.packed + at.groups * bits;
	at.end = packed + packed_size;
	result = unpack_most(bits, &at);
	if (result < 0)
		return result;
	switch (bits) {
	case 1:
		return unpack_groups(1, &at);
	case 2:
		return unpack_groups(2, &at);
	case 3:
		return unpack_groups(3, &at);
	case 4:
		return unpack_groups(4, &at);
	default:
		return unpack_groups(5, &at);
	}
}

/* SPDX-License-Identifier: MIT */
/*
 * Packed chunks (see pack.h). A sample of a chunk shows whether its bytes are floating-point
 * numbers and of what size, so that only one method is applied to the whole chunk.
 */
#include "lib/pack.h"

#include <endian.h>
#include <errno.h>
#include <lz4.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/pack_codes.h"

#define PLANES_MAX	   4
#define PLANE_HEADER_BYTES 4
#define SLACK_BYTES	   64 /* codes are unpacked 8 at a time */
#define SAMPLE_BYTES	   4096
#define SAMPLE_SPOTS	   4
#define GAIN_OF		   20 /* at least 1/GAIN_OF has to be saved */

enum plane_kind { PLANE_RAW, PLANE_LZ4, PLANE_CODES };

struct gcr_packer {
	void *lz4; /* state of liblz4 */
	uint8_t planes[GCR_PACK_CHUNK_BYTES + SLACK_BYTES * PLANES_MAX];
	uint8_t sample[SAMPLE_BYTES];
	uint8_t scratch[SAMPLE_BYTES];
};

/* The planes of a chunk in memory. */
struct planes {
	size_t count;
	size_t elements; /* bytes of each plane */
	uint8_t *bytes[PLANES_MAX];
};

/* The best form for a chunk, estimated from a sample. */
struct estimate {
	enum gcr_pack_form form;
	enum plane_kind kinds[PLANES_MAX];
	size_t packed; /* length of the packed sample */
};

int gcr_packer_create(struct gcr_packer **ret_packer)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *packer = malloc(sizeof(*packer));

	if (!packer)
		return -ENOMEM;
	packer->lz4 = malloc((size_t)LZ4_sizeofState());
	if (!packer->lz4)
		return -ENOMEM;
	*ret_packer = TAKE_PTR(packer);
	return 0;
}

void gcr_packer_destroy(struct gcr_packer *packer)
{
	if (!packer)
		return;
	free(packer->lz4);
	free(packer);
}

bool gcr_pack_is_zero(const void *bytes, size_t size)
{
	const char *first = bytes;

	return !size || (!*first && !memcmp(first, first + 1, size - 1));
}

/* ---- planes ---- */

static size_t planes_of(enum gcr_pack_form form)
{
	return form == GCR_PACK_PLANES_2 ? 2 : 4;
}

static struct planes lay_out(size_t count, size_t size, uint8_t *memory)
{
	struct planes planes = {.count = count, .elements = size / count};

	for (size_t i = 0; i < count; i++)
		planes.bytes[i] = memory + i * (planes.elements + SLACK_BYTES);
	return planes;
}

static void split_2(const uint8_t *restrict bytes, size_t elements, uint8_t *restrict low,
		    uint8_t *restrict high)
{
	for (size_t i = 0; i < elements; i++) {
		uint16_t element;

		memcpy(&element, bytes + 2 * i, sizeof(element));
		element = le16toh(element);
		element = (uint16_t)(element << 1 | element >> 15);
		low[i] = (uint8_t)element;
		high[i] = (uint8_t)(element >> 8);
	}
}

static void join_2(const uint8_t *restrict low, const uint8_t *restrict high, size_t elements,
		   uint8_t *restrict ret_bytes)
{
	for (size_t i = 0; i < elements; i++) {
		uint16_t element = (uint16_t)(low[i] | high[i] << 8);

		element = htole16((uint16_t)(element >> 1 | element << 15));
		memcpy(ret_bytes + 2 * i, &element, sizeof(element));
	}
}

static void split_4(const uint8_t *restrict bytes, size_t elements, uint8_t *restrict plane0,
		    uint8_t *restrict plane1, uint8_t *restrict plane2, uint8_t *restrict plane3)
{
	for (size_t i = 0; i < elements; i++) {
		uint32_t element;

		memcpy(&element, bytes + 4 * i, sizeof(element));
		element = le32toh(element);
		element = element << 1 | element >> 31;
		plane0[i] = (uint8_t)element;
		plane1[i] = (uint8_t)(element >> 8);
		plane2[i] = (uint8_t)(element >> 16);
		plane3[i] = (uint8_t)(element >> 24);
	}
}

static void join_4(const uint8_t *restrict plane0, const uint8_t *restrict plane1,
		   const uint8_t *restrict plane2, const uint8_t *restrict plane3, size_t elements,
		   uint8_t *restrict ret_bytes)
{
	for (size_t i = 0; i < elements; i++) {
		uint32_t element = (uint32_t)plane0[i] | (uint32_t)plane1[i] << 8 |
				   (uint32_t)plane2[i] << 16 | (uint32_t)plane3[i] << 24;

		element = htole32(element >> 1 | element << 31);
		memcpy(ret_bytes + 4 * i, &element, sizeof(element));
	}
}

static void split(const struct planes *planes, const uint8_t *bytes)
{
	uint8_t *const *to = planes->bytes;

	if (planes->count == 2)
		split_2(bytes, planes->elements, to[0], to[1]);
	else
		split_4(bytes, planes->elements, to[0], to[1], to[2], to[3]);
}

static void join(size_t count, const uint8_t *const *planes, size_t elements, uint8_t *ret_bytes)
{
	if (count == 2)
		join_2(planes[0], planes[1], elements, ret_bytes);
	else
		join_4(planes[0], planes[1], planes[2], planes[3], elements, ret_bytes);
}

/* ---- packing ---- */

/*
 * Packs bytes by LZ4, and returns their packed length; 0: the result would be longer than @limit.
 */
static size_t pack_lz4(struct gcr_packer *packer, const void *bytes, size_t size, void *ret_packed,
		       size_t limit)
{
	int packed = LZ4_compress_fast_extState(packer->lz4, bytes, ret_packed, (int)size,
						(int)limit, 1);

	return packed > 0 ? (size_t)packed : 0;
}

/* Copies whole elements from SAMPLE_SPOTS places of the chunk. Returns the sample's length. */
static size_t take_sample(const uint8_t *bytes, size_t size, uint8_t ret_sample[SAMPLE_BYTES])
{
	size_t part = SAMPLE_BYTES / SAMPLE_SPOTS;

	if (size < SAMPLE_BYTES) {
		memcpy(ret_sample, bytes, size);
		return size;
	}
	for (size_t i = 0; i < SAMPLE_SPOTS; i++) {
		size_t at = (size - part) / (SAMPLE_SPOTS - 1) * i;

		memcpy(ret_sample + i * part, bytes + at / PLANES_MAX * PLANES_MAX, part);
	}
	return SAMPLE_BYTES;
}

/* Splits the sample into @count planes: estimates the best kind for each, and the total length. */
static struct estimate estimate_planes(struct gcr_packer *packer, size_t count, size_t sampled)
{
	struct planes planes = lay_out(count, sampled, packer->planes);
	struct estimate estimate = {.form = count == 2 ? GCR_PACK_PLANES_2 : GCR_PACK_PLANES_4};

	split(&planes, packer->sample);
	for (size_t i = 0; i < count; i++) {
		size_t best = planes.elements;
		struct gcr_codes codes;
		size_t packed;

		gcr_codes_choose(planes.bytes[i], planes.elements, &codes);
		if (codes.packed < best) {
			best = codes.packed;
			estimate.kinds[i] = PLANE_CODES;
		}
		packed = pack_lz4(packer, planes.bytes[i], planes.elements, packer->scratch, best);
		if (packed && packed < best) {
			best = packed;
			estimate.kinds[i] = PLANE_LZ4;
		}
		estimate.packed += best;
	}
	return estimate;
}

/* Estimates the best form for a chunk from a sample. */
static struct estimate choose_form(struct gcr_packer *packer, const uint8_t *bytes, size_t size)
{
	size_t sampled = take_sample(bytes, size, packer->sample);
	struct estimate best = {.form = GCR_PACK_LZ4};

	best.packed = pack_lz4(packer, packer->sample, sampled, packer->scratch, sampled);
	if (best.packed)
		/* LZ4 compresses a whole chunk at least as well as so short a sample. */
		best.packed -= best.packed / 16;
	else
		best.packed = sampled;
	for (size_t count = 2; count <= PLANES_MAX; count *= 2) {
		struct estimate estimate = estimate_planes(packer, count, sampled);

		if (estimate.packed < best.packed)
			best = estimate;
	}
	return best;
}

/*
 * Packs a plane. Returns its length, at most @limit, and its kind; 0: the result would be longer.
 */
static size_t pack_plane(struct gcr_packer *packer, const uint8_t *plane, size_t elements,
			 enum plane_kind wanted, uint8_t *ret_packed, size_t limit,
			 enum plane_kind *ret_kind)
{
	size_t shorter = elements < limit ? elements : limit;
	struct gcr_codes codes;
	size_t packed;

	if (wanted == PLANE_LZ4) {
		packed = pack_lz4(packer, plane, elements, ret_packed, shorter);
		*ret_kind = PLANE_LZ4;
		if (packed)
			return packed;
	}
	if (wanted != PLANE_RAW) {
		gcr_codes_choose(plane, elements, &codes);
		*ret_kind = PLANE_CODES;
		if (codes.bits && codes.packed <= shorter) {
			gcr_codes_pack(&codes, plane, ret_packed);
			return codes.packed;
		}
	}
	if (elements > limit)
		return 0;
	memcpy(ret_packed, plane, elements);
	*ret_kind = PLANE_RAW;
	return elements;
}

static size_t pack_planes(struct gcr_packer *packer, const struct estimate *estimate,
			  const uint8_t *bytes, size_t size, uint8_t *ret_packed, size_t limit)
{
	size_t count = planes_of(estimate->form);
	struct planes planes = lay_out(count, size, packer->planes);
	size_t rest = size % count;
	size_t at = count * PLANE_HEADER_BYTES;

	if (at + rest > limit)
		return 0;
	split(&planes, bytes);
	for (size_t i = 0; i < count; i++) {
		uint8_t *header = ret_packed + i * PLANE_HEADER_BYTES;
		enum plane_kind kind;
		size_t packed = pack_plane(packer, planes.bytes[i], planes.elements,
					   estimate->kinds[i], ret_packed + at, limit - rest - at,
					   &kind);

		if (!packed)
			return 0;
		header[0] = (uint8_t)kind;
		header[1] = 0;
		header[2] = (uint8_t)packed;
		header[3] = (uint8_t)(packed >> 8);
		at += packed;
	}
	memcpy(ret_packed + at, bytes + size - rest, rest);
	return at + rest;
}

size_t gcr_pack(struct gcr_packer *packer, const void *bytes, size_t size, void *ret_packed,
		enum gcr_pack_form *ret_form)
{
	struct estimate estimate = choose_form(packer, bytes, size);
	size_t limit = size / GAIN_OF * (GAIN_OF - 1);
	size_t packed = 0;

	if (estimate.form != GCR_PACK_LZ4)
		packed = pack_planes(packer, &estimate, bytes, size, ret_packed, limit);
	if (!packed) {
		/* LZ4 gives up early on data that cannot be compressed. */
		estimate.form = GCR_PACK_LZ4;
		packed = pack_lz4(packer, bytes, size, ret_packed, limit);
	}
	if (!packed) {
		estimate.form = GCR_PACK_RAW;
		memcpy(ret_packed, bytes, size);
		packed = size;
	}
	*ret_form = estimate.form;
	return packed;
}

/* ---- unpacking ---- */

static int unpack_lz4(const uint8_t *packed, size_t packed_size, void *ret_bytes, size_t size)
{
	int unpacked =
		LZ4_decompress_safe((const char *)packed, ret_bytes, (int)packed_size, (int)size);

	return unpacked == (int)size ? 0 : -EBADMSG;
}

/*
 * Unpacks a plane into @memory; *ret_plane points to @memory, or to the input if the plane is raw.
 */
static int unpack_plane(unsigned kind, const uint8_t *packed, size_t packed_size, uint8_t *memory,
			size_t elements, const uint8_t **ret_plane)
{
	*ret_plane = memory;
	switch (kind) {
	case PLANE_RAW:
		*ret_plane = packed;
		return packed_size == elements ? 0 : -EBADMSG;
	case PLANE_LZ4:
		return unpack_lz4(packed, packed_size, memory, elements);
	case PLANE_CODES:
		return gcr_codes_unpack(packed, packed_size, memory, elements);
	default:
		return -EBADMSG;
	}
}

static int unpack_planes(struct gcr_packer *packer, size_t count, const uint8_t *packed,
			 size_t packed_size, uint8_t *ret_bytes, size_t size)
{
	struct planes planes = lay_out(count, size, packer->planes);
	const uint8_t *unpacked[PLANES_MAX];
	size_t at = count * PLANE_HEADER_BYTES;
	size_t rest = size % count;

	if (packed_size < at + rest)
		return -EBADMSG;
	for (size_t i = 0; i < count; i++) {
		const uint8_t *header = packed + i * PLANE_HEADER_BYTES;
		size_t length = header[2] | (size_t)header[3] << 8;
		int result;

		if (header[1] || length > packed_size - rest - at)
			return -EBADMSG;
		result = unpack_plane(header[0], packed + at, length, planes.bytes[i],
				      planes.elements, &unpacked[i]);
		if (result < 0)
			return result;
		at += length;
	}
	if (at + rest != packed_size)
		return -EBADMSG;
	join(count, unpacked, planes.elements, ret_bytes);
	memcpy(ret_bytes + size - rest, packed + at, rest);
	return 0;
}

int gcr_unpack(struct gcr_packer *packer, enum gcr_pack_form form, const void *packed,
	       size_t packed_size, void *ret_bytes, size_t size)
{
	if (size > GCR_PACK_CHUNK_BYTES || packed_size > size)
		return -EBADMSG;
	switch (form) {
	case GCR_PACK_RAW:
		if (packed_size != size)
			return -EBADMSG;
		memcpy(ret_bytes, packed, size);
		return 0;
	case GCR_PACK_LZ4:
		return unpack_lz4(packed, packed_size, ret_bytes, size);
	case GCR_PACK_PLANES_2:
	case GCR_PACK_PLANES_4:
		return unpack_planes(packer, planes_of(form), packed, packed_size, ret_bytes, size);
	}
	return -EBADMSG;
}
